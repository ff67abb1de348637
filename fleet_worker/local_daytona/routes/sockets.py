"""A WebSocket of the API: counted in the access log, keeping its sandbox awake, and cut when a fault asks for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakSet

from aiohttp import WSMessage, WSMsgType, web

from fleet_worker.local_daytona.access import Entry, entry_of
from fleet_worker.local_daytona.faults import Faults
from fleet_worker.local_daytona.sandbox import Sandbox


class CountedSocket(web.WebSocketResponse):
    """A server-side WebSocket whose data frames are counted."""

    def __init__(self, *, entry: Entry, drop_after_frames: int, max_msg_size: int) -> None:
        super().__init__(max_msg_size=max_msg_size, compress=False)
        self._entry = entry
        self._drop_after_frames = drop_after_frames
        self._wire: asyncio.Transport | None = None

    async def prepare(self, request: web.BaseRequest) -> Any:
        self._wire = request.transport
        return await super().prepare(request)

    async def receive(self, timeout: float | None = None) -> WSMessage:
        message = await super().receive(timeout)
        if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            self._entry.frames_in += 1
            self._entry.bytes_in += len(message.data)
        return message

    async def send_bytes(self, data: bytes, compress: int | None = None) -> None:
        self._count(len(data))
        await super().send_bytes(data, compress)

    async def send_str(self, data: str, compress: int | None = None) -> None:
        self._count(len(data))
        await super().send_str(data, compress)

    def cut(self) -> None:
        """Lose the connection as a broken network does: no close frame."""
        if self._wire is not None:
            self._wire.abort()

    def _count(self, size: int) -> None:
        self._entry.frames_out += 1
        self._entry.bytes_out += size
        if self._drop_after_frames and self._entry.frames_out > self._drop_after_frames:
            self.cut()


class Sockets:
    """All open WebSockets, so that faults can cut them."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._open: WeakSet[CountedSocket] = WeakSet()

    @contextlib.asynccontextmanager
    async def accept(
        self, request: web.Request, sandbox: Sandbox | None, *, max_msg_size: int = 0
    ) -> AsyncIterator[CountedSocket]:
        """Answer the upgrade and count the socket as activity of its sandbox while it is open."""
        after = self._faults.switches.drop_sockets_after_frames
        socket = CountedSocket(entry=entry_of(request), drop_after_frames=after, max_msg_size=max_msg_size)
        await socket.prepare(request)
        life = self._faults.socket_life_s()
        cutting = None if life is None else asyncio.get_running_loop().call_later(life, socket.cut)
        self._open.add(socket)
        if sandbox is not None:
            sandbox.sockets.add(socket.cut)
        try:
            with contextlib.suppress(ConnectionError):
                yield socket
        finally:
            self._open.discard(socket)
            if cutting is not None:
                cutting.cancel()
            if sandbox is not None:
                sandbox.sockets.discard(socket.cut)
                sandbox.touch()

    def cut_all(self) -> int:
        """Lose every connection; how many there were."""
        sockets = list(self._open)
        for socket in sockets:
            socket.cut()
        return len(sockets)
