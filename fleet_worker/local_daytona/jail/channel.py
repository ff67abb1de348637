"""The server's end of the talk with one sandbox's agent: requests with descriptors, replies, and exits of processes."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fleet_worker.local_daytona.inside import wire

REQUEST_S: Final = 60.0
"""Longest wait for the agent's answer to one request (a search through a full disk takes seconds)."""


class AgentGone(Exception):
    """The sandbox's first process is no longer there."""


class AgentRefused(Exception):
    """The agent could not do it; `code` is one of `inside.files`' codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's reply: its fields and the descriptors that came with it, which the receiver must close."""

    fields: dict[str, Any]
    fds: list[int]


@dataclass(frozen=True, slots=True)
class Process:
    """A process in a sandbox, leader of its own session. `ended` gives the exit status, negative for a signal."""

    pid: int
    ended: asyncio.Future[int]
    channel: "Channel"

    async def wait(self) -> int:
        """The exit status, when there is one. Giving up waiting changes nothing."""
        return await asyncio.shield(self.ended)

    async def kill(self) -> None:
        """Kill the process and everything of its session."""
        with contextlib.suppress(AgentGone):
            await self.channel.request("signal", pid=self.pid, number=int(signal.SIGKILL), session=True)


class Channel:
    """Owns the socket to one agent. Used from the event loop alone."""

    def __init__(self, control: socket.socket, on_gone: Callable[[], None]) -> None:
        control.setblocking(False)
        self._control = control
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._next = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._running: dict[int, asyncio.Future[int]] = {}
        self._sending = asyncio.Lock()
        self._open = True
        self.ready: asyncio.Future[str] = self._loop.create_future()
        self._loop.add_reader(control.fileno(), self._readable)

    async def start(
        self, *, argv: list[str] | None, env: dict[str, str], cwd: str, fds: tuple[int, int, int]
    ) -> Process:
        """Start a program (None: the shell) with the three descriptors as its standard streams."""
        answer = await self.request("start", fds=fds, argv=argv, env=env, cwd=cwd)
        return self._process(answer)

    async def terminal(self, *, env: dict[str, str], cwd: str, rows: int, cols: int) -> tuple[Process, int]:
        """Start an interactive login shell on a new terminal; also returns the terminal's controlling side."""
        answer = await self.request("terminal", env=env, cwd=cwd, rows=rows, cols=cols)
        return self._process(answer), answer.fds[0]

    async def open_file(self, path: str, *, write: bool) -> tuple[int, int]:
        """A descriptor of a regular file of the sandbox, and its size."""
        answer = await self.request("open", path=path, write=write)
        return answer.fds[0], int(answer.fields["size"])

    async def request(self, op: str, *, fds: tuple[int, ...] = (), **arguments: Any) -> Answer:
        """Ask the agent and wait for its reply. Raises `AgentRefused`, `AgentGone`, `TimeoutError`."""
        self._next += 1
        number = self._next
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = answered
        try:
            async with asyncio.timeout(REQUEST_S):
                await self._send({"id": number, "op": op, **arguments}, fds)
                answer = await answered
        except BaseException:
            if answered.done() and not answered.cancelled() and answered.exception() is None:
                _close_all(answered.result().fds)
            raise
        finally:
            self._waiting.pop(number, None)
        if "error" in answer.fields:
            raise AgentRefused(str(answer.fields["error"]), str(answer.fields.get("message", "")))
        return answer

    def close(self) -> None:
        """Let go of the agent, which then ends everything in its sandbox."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(AgentGone())
        for ended in self._running.values():
            if not ended.done():
                ended.set_result(-int(signal.SIGKILL))
        self._running.clear()
        if not self.ready.done():
            self.ready.set_exception(AgentGone())
            self.ready.exception()  # nobody may be waiting

    def _process(self, answer: Answer) -> Process:
        pid = int(answer.fields["pid"])
        return Process(pid, answer.fields["ended"], self)

    async def _send(self, message: dict[str, Any], fds: tuple[int, ...]) -> None:
        async with self._sending:
            while self._open:
                try:
                    wire.send(self._control, message, fds)
                except BlockingIOError:
                    await self._writable()
                except OSError as error:
                    raise AgentGone from error
                else:
                    return
        raise AgentGone

    async def _writable(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_writer(self._control.fileno(), lambda: None if writable.done() else writable.set_result(None))
        try:
            await writable
        finally:
            if self._open:
                self._loop.remove_writer(self._control.fileno())

    def _readable(self) -> None:
        while self._open:
            try:
                received = wire.receive(self._control)
            except BlockingIOError:
                return
            except (OSError, wire.WireBroken):
                received = None
            if received is None:
                self.close()
                self._on_gone()
                return
            self._received(*received)

    def _received(self, message: dict[str, Any], fds: list[int]) -> None:
        match message:
            case {"event": "ready", "python": version} if not self.ready.done():
                self.ready.set_result(str(version))
            case {"event": "exit", "pid": int(pid), "code": int(code)}:
                ended = self._running.pop(pid, None)
                if ended is not None and not ended.done():
                    ended.set_result(code)
            case {"id": int(number)}:
                if isinstance(message.get("pid"), int):
                    # Registered here, not by the waiting task: the exit may be the very next packet.
                    message["ended"] = self._running[message["pid"]] = self._loop.create_future()
                answered = self._waiting.pop(number, None)
                if answered is not None and not answered.done():
                    answered.set_result(Answer(message, fds))
                    return
        _close_all(fds)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
