"""PTYs of the loopback server as the SDK's two clients use them, with their limits, endings and faults."""

import asyncio
import hashlib
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaConfig,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
)
from daytona.common.pty import PtySize

from tests.fakes.daytona import LocalDaytona, local_daytona

RAW_CAT = "stty raw -echo; echo RE''ADY; exec cat\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaytona]:
    with local_daytona(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(running: LocalDaytona, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalDaytona]:
    monkeypatch.chdir(tmp_path)
    running.reset_requests()
    yield running
    running.heal()
    for sandbox in running.status()["sandboxes"]:
        running.happen("destroy", sandbox["id"])


class Screen:
    """What a PTY has shown so far."""

    def __init__(self) -> None:
        self.shown = b""
        self.changed = asyncio.Event()

    async def show(self, data: bytes) -> None:
        self.shown += data
        self.changed.set()

    async def until(self, condition: Callable[[bytes], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition(self.shown):
                self.changed.clear()
                await self.changed.wait()


def run(server: LocalDaytona, story: Callable[[AsyncSandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncDaytona(DaytonaConfig(api_key=server.api_key, api_url=server.url)) as client:
            sandbox = await client.create(CreateSandboxFromSnapshotParams(name=f"p-{uuid.uuid4().hex[:12]}"))
            async with asyncio.timeout(90):
                await story(sandbox)

    asyncio.run(main())


def test_the_sync_client_reads_output_and_the_exit_code(server: LocalDaytona) -> None:
    client = Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))
    sandbox = client.create(CreateSandboxFromSnapshotParams())
    handle = sandbox.process.create_pty_session(id="p", envs={"FOO": "b'a r"}, cwd="/tmp")
    handle.send_input("echo $FOO $TERM $PWD; exit 3\n")
    shown: list[bytes] = []
    ended = handle.wait(shown.append)
    assert (ended.exit_code, ended.error) == (3, "non-zero exit")
    assert b"b'a r xterm-256color /tmp" in b"".join(shown)


def test_creating_and_connecting_is_one_request(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        screen = Screen()
        handle = await sandbox.process.create_pty_session(id="p", on_data=screen.show)
        await handle.send_input(RAW_CAT)
        await screen.until(lambda shown: b"READY" in shown)
        await handle.send_input(b"\x1e{}\n")
        await screen.until(lambda shown: shown.endswith(b"\x1e{}\n"))
        told = server.requests()
        assert told["by_operation"] == {"create": 1, "pty_create_connect": 1}
        assert [row["frames_in"] for row in told["requests"] if row["websocket"]] == [2]
        with pytest.raises(DaytonaConflictError):
            await sandbox.process.create_pty_session(id="p", on_data=screen.show)

    run(server, story)


def test_a_dropped_pty_lives_on_and_is_reattached(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        first, second = Screen(), Screen()
        handle = await sandbox.process.create_pty_session(id="p", on_data=first.show)
        await handle.send_input(RAW_CAT)
        await first.until(lambda shown: b"READY" in shown)
        server.happen("drop_sockets")
        ended = await asyncio.wait_for(handle.wait(), 30)
        assert ended.exit_code is None
        again = await sandbox.process.connect_pty_session("p", on_data=second.show)
        await again.send_input(b"still here\n")
        await second.until(lambda shown: b"still here\n" in shown)
        info = await sandbox.process.get_pty_session_info("p")
        assert (info.active, info.cols, info.rows) == (True, 80, 24)
        resized = await again.resize(PtySize(rows=50, cols=200))
        assert (resized.cols, resized.rows) == (200, 50)
        assert [pty.id for pty in await sandbox.process.list_pty_sessions()] == ["p"]
        await sandbox.process.kill_pty_session("p")
        ended = await asyncio.wait_for(again.wait(), 30)
        assert (ended.exit_code, ended.error) == (137, "SIGKILL")
        with pytest.raises(DaytonaNotFoundError):
            await sandbox.process.get_pty_session_info("p")
        with pytest.raises(DaytonaError, match="not found"):
            await sandbox.process.connect_pty_session("p", on_data=second.show)

    run(server, story)


def test_several_clients_see_the_same_output(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        screens = [Screen(), Screen()]
        handle = await sandbox.process.create_pty_session(id="p", on_data=screens[0].show)
        await sandbox.process.connect_pty_session("p", on_data=screens[1].show)
        await handle.send_input(RAW_CAT)
        for screen in screens:
            await screen.until(lambda shown: b"READY" in shown)

    run(server, story)


def test_ten_megabytes_typed_in_64_kib_frames_arrive_in_order(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        screen = Screen()
        handle = await sandbox.process.create_pty_session(id="p", on_data=screen.show)
        await handle.send_input("stty raw -echo; echo RE''ADY; head -c 10485760 | sha256sum; exit\n")
        await screen.until(lambda shown: b"READY" in shown)
        sent = bytes(range(256)) * 256
        for _ in range(160):
            await handle.send_input(sent)
        expected = hashlib.sha256(sent * 160).hexdigest().encode()
        await screen.until(lambda shown: expected in shown)

    run(server, story)


def test_a_frame_above_64_kib_closes_the_connection_but_not_the_pty(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        handle = await sandbox.process.create_pty_session(id="p", on_data=Screen().show)
        await handle.send_input(b"x" * (64 * 1024 + 1))
        ended = await asyncio.wait_for(handle.wait(), 30)
        assert ended.exit_code is None
        assert (await sandbox.process.get_pty_session_info("p")).active

    run(server, story)


def _narrow_socket(address: Any) -> socket.socket:
    made = socket.socket(*address[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    return made


async def _raw_client(server: LocalDaytona, sandbox: AsyncSandbox) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    url = f"{server.origin}/toolbox/{sandbox.id}/process/pty/p/connect"
    headers = {"Authorization": f"Bearer {server.api_key}"}
    connector = aiohttp.TCPConnector(socket_factory=_narrow_socket)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.ws_connect(url, headers=headers, max_msg_size=0) as client,
    ):
        yield client


def test_a_client_that_does_not_read_is_dropped_as_a_slow_consumer(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        screen = Screen()
        handle = await sandbox.process.create_pty_session(id="p", on_data=screen.show)
        await handle.send_input("stty raw -echo; echo RE''ADY\n")
        await screen.until(lambda shown: b"READY" in shown)
        async for client in _raw_client(server, sandbox):
            await client.receive()  # connected
            await handle.send_input("for i in $(seq 400); do head -c 20000 /dev/zero; sleep 0.002; done; echo DO''NE\n")
            await screen.until(lambda shown: b"DONE" in shown)
            received = 0
            while True:
                message = await asyncio.wait_for(client.receive(), 30)
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                received += len(message.data)
            assert (message.data, message.extra) == (1008, "slow consumer")
            assert received < 8_000_000
        assert (await sandbox.process.get_pty_session_info("p")).active

    run(server, story)


def test_an_exit_is_told_by_control_frame_and_close_code(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        await sandbox.process.create_pty_session(id="p", on_data=Screen().show)
        async for client in _raw_client(server, sandbox):
            assert (await client.receive()).data == '{"type": "control", "status": "connected"}'
            await client.send_str("kill -9 $$\n")
            while (message := await asyncio.wait_for(client.receive(), 30)).type is aiohttp.WSMsgType.BINARY:
                pass
            assert (message.data, message.extra) == (1011, '{"exitCode": 137, "exitReason": "SIGKILL"}')

    run(server, story)


def test_an_old_daemon_does_not_know_create_connect(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        server.faults(old_daemon=True)
        with pytest.raises(DaytonaNotFoundError):
            await sandbox.process.create_pty_session(id="p", on_data=Screen().show)
        from daytona_toolbox_api_client_async import PtyCreateRequest

        request = PtyCreateRequest(id="p", cols=80, rows=24)
        await sandbox.process._api_client.create_pty_session(request=request)
        screen = Screen()
        handle = await sandbox.process.connect_pty_session("p", on_data=screen.show)
        await handle.send_input(RAW_CAT)
        await screen.until(lambda shown: b"READY" in shown)

    run(server, story)


def test_a_late_connected_breaks_the_sync_client_and_leaves_the_pty(server: LocalDaytona) -> None:
    client = Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))
    sandbox = client.create(CreateSandboxFromSnapshotParams())
    server.faults(connected_delay_s=0.5)
    with pytest.raises(DaytonaError):
        sandbox.process.create_pty_session(id="late")
    server.heal()
    assert sandbox.process.get_pty_session_info("late").active


def test_stalled_replies_arrive_later_and_complete(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        screen = Screen()
        handle = await sandbox.process.create_pty_session(id="p", on_data=screen.show)
        await handle.send_input(RAW_CAT)
        await screen.until(lambda shown: b"READY" in shown)
        await asyncio.to_thread(server.happen, "stall_replies", seconds=1)
        await asyncio.sleep(0.1)
        started = asyncio.get_running_loop().time()
        await handle.send_input(b"stalled\n")
        await screen.until(lambda shown: b"stalled\n" in shown)
        assert asyncio.get_running_loop().time() - started > 0.6

    run(server, story)


def test_sockets_can_be_cut_after_a_number_of_frames(server: LocalDaytona) -> None:
    async def story(sandbox: AsyncSandbox) -> None:
        server.faults(drop_sockets_after_frames=3)
        handle = await sandbox.process.create_pty_session(id="p", on_data=Screen().show)
        await handle.send_input("while :; do echo x; sleep 0.05; done\n")
        ended = await asyncio.wait_for(handle.wait(), 30)
        assert ended.exit_code is None

    run(server, story)
