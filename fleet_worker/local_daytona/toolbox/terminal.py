"""One PTY of a sandbox: a login shell whose screen any number of WebSocket clients watch and type into.

Limits as the real daemon has them: a client more than 256 frames behind is dropped, a frame of a client is at most
64 KiB,
what is written while nobody watches is lost.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import struct
import termios
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import WSMsgType, web

from fleet_worker.local_daytona.jail.channel import Process
from fleet_worker.local_daytona.refusals import timestamp

QUEUE_FRAMES: Final = 256
INPUT_FRAMES: Final = 1024
READ_BYTES: Final = 32 * 1024
CLIENT_FRAME_BYTES: Final = 64 * 1024
EXIT_CONTROL: Final = "X-Daytona-Pty-Exit-Control"
DRAIN_S: Final = 0.02
WRITE_S: Final = 10.0
EXIT_REASONS: Final = {130: "Ctrl+C", 137: "SIGKILL", 143: "SIGTERM"}


@dataclass(slots=True, eq=False)
class Viewer:
    """A client's place: the frames it has not been sent, and how its connection is to end."""

    tells_exit: bool
    frames: deque[bytes] = field(default_factory=deque)
    ending: tuple[int, bytes, dict[str, Any] | None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Terminal:
    """A running PTY. `on_end` is called once, when its shell has ended."""

    def __init__(
        self,
        *,
        name: str,
        cwd: str,
        envs: dict[str, str],
        size: tuple[int, int],
        process: Process,
        master: int,
        on_end: Callable[[str], None],
    ) -> None:
        self.name, self.cwd, self.envs = name, cwd, envs
        self.rows, self.cols = size
        self.created_at = timestamp()
        self.loses_output_at_exit = False
        self._process = process
        self._master = master
        self._on_end = on_end
        self._open = True
        self._viewers: list[Viewer] = []
        self._input: deque[bytes] = deque()
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(master, False)
        self._loop.add_reader(master, self._read)
        self._ending = asyncio.create_task(self._end())

    def info(self) -> dict[str, Any]:
        """The API's description of this PTY."""
        return {
            "id": self.name,
            "cwd": self.cwd,
            "envs": self.envs,
            "cols": self.cols,
            "rows": self.rows,
            "createdAt": self.created_at,
            "active": self._open,
            "lazyStart": False,
        }

    def resize(self, rows: int, cols: int) -> None:
        """Change the size the programs in it see."""
        self.rows, self.cols = rows, cols
        if self._open:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    async def kill(self) -> None:
        """End the shell and everything of its session."""
        await self._process.kill()

    async def serve(
        self, socket: web.WebSocketResponse, *, offered: list[str], connected_delay_s: float, cut: Callable[[], None]
    ) -> None:
        """Connect one client until it leaves, falls behind, or the shell ends. `cut` breaks a connection that
        takes nothing."""
        viewer = Viewer(EXIT_CONTROL in offered)
        self._viewers.append(viewer)
        if not self._open:
            viewer.ending = (1000, b"", None)
        if connected_delay_s:
            await asyncio.sleep(connected_delay_s)
        await socket.send_str(json.dumps({"type": "control", "status": "connected"}))
        sending = asyncio.create_task(_send(socket, viewer, cut))
        try:
            async for message in socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                await self._type(message.data.encode() if message.type is WSMsgType.TEXT else bytes(message.data))
        finally:
            if viewer in self._viewers:
                self._viewers.remove(viewer)
            if viewer.ending is None:
                sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await sending

    async def _type(self, data: bytes) -> None:
        while len(self._input) >= INPUT_FRAMES:
            self._room.clear()
            await self._room.wait()
        self._input.append(data)
        self._write()

    def _write(self) -> None:
        while self._input and self._open:
            data = self._input.popleft()
            try:
                written = os.write(self._master, data)
            except BlockingIOError:
                written = 0
            except OSError:
                self._input.clear()
                break
            if written < len(data):
                self._input.appendleft(data[written:])
                self._loop.add_writer(self._master, self._write)
                self._room.set()
                return
        if self._open:
            self._loop.remove_writer(self._master)
        self._room.set()

    def _read(self) -> None:
        try:
            data = os.read(self._master, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._master)
            return
        for viewer in list(self._viewers):
            if len(viewer.frames) >= QUEUE_FRAMES:
                self._dismiss(viewer, 1008, b"slow consumer", None)
            else:
                viewer.frames.append(data)
                viewer.changed.set()

    def _dismiss(self, viewer: Viewer, code: int, reason: bytes, exited: dict[str, Any] | None) -> None:
        self._viewers.remove(viewer)
        if code == 1008 or self.loses_output_at_exit:
            viewer.frames.clear()
        viewer.ending = (code, reason, exited)
        viewer.changed.set()

    async def _end(self) -> None:
        status = await self._process.wait()
        await asyncio.sleep(DRAIN_S)
        self._read_rest()
        self._open = False
        self._loop.remove_reader(self._master)
        self._loop.remove_writer(self._master)
        os.close(self._master)
        self._input.clear()
        self._room.set()
        exited = exit_report(status)
        for viewer in list(self._viewers):
            self._dismiss(viewer, 1000 if exited["exitCode"] == 0 else 1011, json.dumps(exited).encode(), exited)
        self._on_end(self.name)

    def _read_rest(self) -> None:
        for _ in range(QUEUE_FRAMES):
            before = sum(len(viewer.frames) for viewer in self._viewers)
            self._read()
            if sum(len(viewer.frames) for viewer in self._viewers) == before:
                return


async def _send(socket: web.WebSocketResponse, viewer: Viewer, cut: Callable[[], None]) -> None:
    """Send a viewer its frames, and in the end why there are no more."""
    try:
        while True:
            await viewer.changed.wait()
            viewer.changed.clear()
            while viewer.frames:
                async with asyncio.timeout(WRITE_S):
                    await socket.send_bytes(viewer.frames.popleft())
            if viewer.ending is not None:
                code, reason, exited = viewer.ending
                async with asyncio.timeout(WRITE_S):
                    if exited is not None and viewer.tells_exit:
                        await socket.send_str(json.dumps({"type": "control", "status": "exited", **exited}))
                    await socket.close(code=code, message=reason)
                return
    except TimeoutError:
        cut()


def exit_report(status: int) -> dict[str, Any]:
    """A shell's exit status (negative: a signal) as the API words it."""
    code = 128 - status if status < 0 else status
    if code == 0:
        return {"exitCode": 0}
    if code in EXIT_REASONS:
        return {"exitCode": code, "exitReason": EXIT_REASONS[code]}
    return {"exitCode": code, "exitReason": f"signal {code - 128}" if status < 0 else "non-zero exit"}
