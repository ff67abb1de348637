"""A raw byte stream over a terminal of the sandbox, on the loop that carries frames."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from daytona.common.errors import DaytonaError
from daytona.common.pty import PTY_EXIT_CONTROL_SUBPROTOCOL, WS_KEEPALIVE_INTERVAL_SECONDS
from daytona.handle.async_pty_handle import AsyncPtyHandle

from fleet_shared.domain.errors import SandboxLost
from fleet_worker.sandbox.daytona.loops import Loop

#: Bytes of one frame to the terminal; the daemon closes the stream above 64 KiB.
FRAME_BYTES: Final = 32 * 1024
#: Seconds until a terminal that was reached has said that it is connected.
CONNECTED_S: Final = 10.0
#: What the SDK's generated client needs to build the address, and what is replaced in it.
_PLACE: Final = "fleet-place"


class Frames:
    """The WebSockets of a process: one client session on a loop of their own."""

    def __init__(self) -> None:
        self.loop = Loop("sandbox-frames")
        self._session: aiohttp.ClientSession | None = None

    async def connect(self, process: Any, terminal_id: str, on_data: Callable[[bytes], None]) -> "PtyHandle":
        """Attach to a terminal that exists."""
        url, headers = _address(process)
        return await self._open(url.replace(_PLACE, terminal_id), headers, on_data)

    async def create(self, process: Any, terminal_id: str, on_data: Callable[[bytes], None]) -> "PtyHandle":
        """Make a terminal and attach to it in one request. Daemons before v0.200 answer 404 (measured)."""
        url, headers = _address(process)
        query = urlencode({"id": terminal_id, "cols": 80, "rows": 24})
        url = url.replace(f"/process/pty/{_PLACE}/connect", f"/process/pty/create-connect?{query}")
        return await self._open(url, headers, on_data)

    def stop(self) -> None:
        """Close all streams and end the loop."""
        session = self._session
        if session is not None:
            with contextlib.suppress(TimeoutError):
                self.loop.run(session.close(), timeout_s=2)
        self.loop.stop()

    async def _open(self, url: str, headers: dict[str, str], on_data: Callable[[bytes], None]) -> "PtyHandle":
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=True)
        if self._session.closed:
            raise OSError("the connections were closed")
        socket = await self._session.ws_connect(
            url,
            headers=headers,
            protocols=[PTY_EXIT_CONTROL_SUBPROTOCOL],
            heartbeat=WS_KEEPALIVE_INTERVAL_SECONDS,
            max_msg_size=0,
        )
        handle = PtyHandle(socket, on_data)
        try:
            await asyncio.wait_for(handle.settled.wait(), CONNECTED_S)
        except BaseException:
            await handle.disconnect()
            raise
        if not handle.is_connected():
            await handle.disconnect()
            raise DaytonaError(handle.error or "the terminal is not there")
        return handle


class PtyHandle(AsyncPtyHandle):
    """The SDK's handle, which tells at once when it is connected: the SDK's own wait looks every 100 ms."""

    def __init__(self, socket: Any, on_data: Callable[[bytes], None]) -> None:
        self.settled = asyncio.Event()
        super().__init__(socket, on_data)
        self._wait.add_done_callback(lambda _: self.settled.set())

    async def _handle_control_message(self, control_msg: dict[str, object]) -> None:
        await super()._handle_control_message(control_msg)
        self.settled.set()


class Terminal:
    """A transport over a terminal. `send` queues and returns at once; a failed write shows as a loss."""

    def __init__(self, loop: Loop, on_lost: Callable[[], None]) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._handle: AsyncPtyHandle | None = None
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False

    def attached(self, handle: AsyncPtyHandle) -> None:
        """Begin to write and to watch for the end. Runs on the loop's thread."""
        self._handle = handle
        self._tasks = [asyncio.ensure_future(self._write(handle)), asyncio.ensure_future(self._watch(handle))]

    def send(self, data: bytes) -> None:
        """Queue bytes."""
        for start in range(0, len(data), FRAME_BYTES):
            self._loop.call_soon(self._outgoing.put_nowait, data[start : start + FRAME_BYTES])

    def close(self) -> None:
        """Detach, after what is queued was written; what runs on the terminal lives on."""
        self._closed = True
        self._loop.call_soon(self._outgoing.put_nowait, None)

    async def _write(self, handle: AsyncPtyHandle) -> None:
        while True:
            data = await self._outgoing.get()
            pieces: list[bytes] = []
            while data is not None:
                pieces.append(data)
                if self._outgoing.empty() or sum(map(len, pieces)) >= FRAME_BYTES:
                    break
                data = self._outgoing.get_nowait()
            try:
                if pieces:
                    await handle.send_input(b"".join(pieces))
            except DaytonaError:
                self._lost()
                await handle.disconnect()
                return
            if data is None:
                await handle.disconnect()
                return

    async def _watch(self, handle: AsyncPtyHandle) -> None:
        await handle.wait()
        self._lost()

    def _lost(self) -> None:
        if not self._closed:
            self._on_lost()


def _address(process: Any) -> tuple[str, dict[str, str]]:
    """Where the terminals of a sandbox are, as the SDK's own client builds it."""
    try:
        _, url, headers, *_ = process._api_client._connect_pty_session_serialize(
            session_id=_PLACE, _request_auth=None, _content_type=None, _headers=None, _host_index=None
        )
    except AttributeError as error:
        raise SandboxLost("The installed Daytona SDK cannot be used; Fleet needs version 0.226.1.") from error
    return re.sub(r"^http", "ws", url), headers
