"""`--toolbox URL`: our control plane in front of a foreign toolbox, over HTTP and WebSockets."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web
from daytona import (
    CreateSandboxFromSnapshotParams,
    Daytona,
    DaytonaBadRequestError,
    DaytonaConfig,
    DaytonaNotFoundError,
)

from tests.fakes.daytona import LocalDaytona, local_daytona


class Toolbox:
    """Speaks as much of a toolbox as these tests use, without any sandbox behind it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path_qs, dict(request.headers)))
        match request.path:
            case "/process/execute":
                return web.json_response({"exitCode": 0, "result": (await request.json())["command"]})
            case "/files/info":
                body = {"statusCode": 404, "message": "gone", "code": "FILE_NOT_FOUND", "source": "DAYTONA_DAEMON"}
                return web.json_response(body, status=404)
            case "/files/bulk-upload":
                size = len(await request.read())
                return web.json_response({"files": [{"path": "x", "bytes": size}]})
            case "/process/pty/create-connect":
                return await self.pty(request)
        return web.Response(status=404)

    async def pty(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str('{"type": "control", "status": "connected"}')
        message = await socket.receive()
        assert message.type is WSMsgType.BINARY
        await socket.send_bytes(b"echo " + message.data)
        await socket.send_str('{"type": "control", "status": "exited", "exitCode": 7, "exitReason": "non-zero exit"}')
        await socket.close(code=1011, message=json.dumps({"exitCode": 7, "exitReason": "non-zero exit"}).encode())
        return socket


@pytest.fixture
def toolbox() -> Iterator[tuple[Toolbox, str]]:
    foreign = Toolbox()
    loop = asyncio.new_event_loop()
    started: list[str] = []
    ready = threading.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{tail:.*}", foreign.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        started.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()

    asyncio.run_coroutine_threadsafe(serve(), loop)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield foreign, started[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.fixture
def server(toolbox: tuple[Toolbox, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalDaytona]:
    monkeypatch.chdir(tmp_path)
    with local_daytona(tmp_path, toolbox=toolbox[1] + "/") as running:
        yield running


def test_toolbox_requests_reach_the_foreign_daemon_and_control_requests_do_not(
    toolbox: tuple[Toolbox, str], server: LocalDaytona
) -> None:
    foreign, _ = toolbox
    client = Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))
    sandbox = client.create(CreateSandboxFromSnapshotParams(name="a", labels={"x": "y"}))
    assert foreign.seen == []
    assert sandbox.process.exec("hello").result == "hello"
    with pytest.raises(DaytonaNotFoundError, match="gone"):
        sandbox.fs.get_file_info("some file.txt")
    sandbox.fs.upload_file(b"x" * 3_000_000, "big")
    paths = [(method, path) for method, path, _ in foreign.seen]
    assert paths[0] == ("POST", "/process/execute")
    assert paths[1] in (("GET", "/files/info?path=some%20file.txt"), ("GET", "/files/info?path=some+file.txt"))
    assert all("Authorization" not in headers for _, _, headers in foreign.seen)
    assert server.requests()["by_operation"] == {"create": 1, "execute": 1, "file_info": 1, "upload": 1}
    assert server.status()["isolation"] == "foreign"
    sandbox.stop()
    with pytest.raises(DaytonaBadRequestError):
        sandbox.process.exec("refused here")
    sandbox.delete()
    assert len(foreign.seen) == 3


def test_pty_frames_and_the_close_code_pass_both_ways(toolbox: tuple[Toolbox, str], server: LocalDaytona) -> None:
    client = Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))
    sandbox = client.create(CreateSandboxFromSnapshotParams())
    handle = sandbox.process.create_pty_session(id="p", envs={"A": "b"})
    handle.send_input("typed")
    shown: list[bytes] = []
    ended = handle.wait(shown.append)
    assert (b"".join(shown), ended.exit_code) == (b"echo typed", 7)
    offered = toolbox[0].seen[0][2]["Sec-WebSocket-Protocol"]
    assert "X-Daytona-Pty-Exit-Control" in offered
    assert "X-Daytona-Pty-Envs~" in offered


def test_an_unreachable_toolbox_is_a_bare_bad_gateway(tmp_path: Path) -> None:
    with local_daytona(tmp_path, toolbox="http://127.0.0.1:9") as server:
        client = Daytona(DaytonaConfig(api_key=server.api_key, api_url=server.url))
        sandbox = client.create(CreateSandboxFromSnapshotParams())
        with pytest.raises(Exception) as caught:
            sandbox.process.exec("x")
        assert getattr(caught.value, "status_code", None) == 502
