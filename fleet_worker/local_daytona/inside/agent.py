"""The first process of a sandbox: does what the server asks over one socket, and ends everything when that socket
ends."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from typing import Any, Callable, NoReturn

from . import files, processes, wire


class Agent:
    """One request at a time; what may take long is done by a forked copy that answers for itself."""

    def __init__(self, control: socket.socket, bounds: processes.Bounds) -> None:
        self._control = control
        self._bounds = bounds
        self._children: set[int] = set()

    def run(self) -> None:
        """Serve until the server closes the socket (or dies)."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # A first process is spared the signals of its own kind that it has no action for; Python brings one for this.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._send({"event": "ready", "python": ".".join(map(str, sys.version_info[:3]))})
        while True:
            readable, _, _ = select.select([self._control.fileno(), wake_read], [], [])
            if wake_read in readable:
                os.read(wake_read, 4096)
                self._report_exits()
            if self._control.fileno() in readable:
                received = wire.receive(self._control)
                if received is None:
                    return
                self._answer(*received)

    def _report_exits(self) -> None:
        for pid, code in processes.reap():
            if pid in self._children:
                self._children.discard(pid)
                self._send({"event": "exit", "pid": pid, "code": code})

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            if request["op"] not in SLOW:
                reply, out = self._reply(request, fds)
                self._send(reply, out)
                for fd in out:
                    os.close(fd)
            elif os.fork() == 0:
                self._answer_and_exit(request)
        except OSError as error:  # no process for a slow request
            self._send({"id": request["id"], "error": "invalid", "message": str(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _answer_and_exit(self, request: dict[str, Any]) -> NoReturn:
        reply = {"id": request["id"], "error": "invalid", "message": "the operation failed"}
        try:
            reply, _ = self._reply(request, [])
        finally:
            self._send(reply)
            os._exit(0)

    def _reply(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], tuple[int, ...]]:
        """What to answer, refusals included, and the descriptors to send with it."""
        number = request["id"]
        try:
            result, out = self._do(request, fds)
        except OSError as error:
            refused = files.refusal(error)
            return {"id": number, "error": refused.code, "message": str(refused)}, ()
        except files.Refused as error:
            return {"id": number, "error": error.code, "message": str(error)}, ()
        except ValueError as error:  # a name that no file can have
            return {"id": number, "error": "invalid", "message": str(error)}, ()
        return {"id": number, **result}, out

    def _do(self, request: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], tuple[int, ...]]:
        op = request["op"]
        if op == "start":
            argv = request.get("argv") or [processes.shell(request["env"])]
            pid = processes.start(argv, request["env"], _cwd(request), self._bounds, fds)
            self._children.add(pid)
            return {"pid": pid}, ()
        if op == "terminal":
            argv = [processes.shell(request["env"]), "-i", "-l"]
            size = (request["rows"], request["cols"])
            pid, master = processes.start_on_terminal(argv, request["env"], _cwd(request), self._bounds, size)
            self._children.add(pid)
            return {"pid": pid}, (master,)
        if op == "segments":
            return {"bytes": processes.segment_bytes()}, ()
        if op == "signal":
            processes.signal_session(request["pid"], request["number"])
            return {}, ()
        if op == "open":
            found, fd = files.open_file(request["path"], request["write"])
            return found, (fd,)
        if op == "open_append":
            return {}, (files.open_append(request["path"]),)
        if op == "open_fifo":
            return {}, (files.open_fifo(request["path"]),)
        done = QUICK.get(op) or SLOW.get(op)
        if done is not None:
            return done(request), ()
        raise files.Refused("invalid", f"unknown operation: {op}")

    def _send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send(self._control, message, fds)
        except (BrokenPipeError, ConnectionError):
            processes.kill_everything()
            os._exit(0)


def _cwd(request: dict[str, Any]) -> str:
    cwd = str(request["cwd"])
    if not os.path.isdir(cwd):
        raise files.Refused("invalid", f"working directory does not exist: {cwd}")
    return cwd


def _info(request: dict[str, Any]) -> dict[str, Any]:
    return {"info": files.info(request["path"])}


def _folder(request: dict[str, Any]) -> dict[str, Any]:
    files.make_folder(request["path"], request["mode"])
    return {}


def _permissions(request: dict[str, Any]) -> dict[str, Any]:
    files.permissions(request["path"], request["mode"], request["owner"], request["group"])
    return {}


def _remove(request: dict[str, Any]) -> dict[str, Any]:
    files.remove(request["path"], request["recursive"])
    return {}


def _move(request: dict[str, Any]) -> dict[str, Any]:
    files.move(request["source"], request["destination"])
    return {}


QUICK: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "info": _info,
    "folder": _folder,
    "permissions": _permissions,
}
SLOW: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "list": lambda request: {"entries": files.listing(request["path"], request["depth"])},
    "remove": _remove,
    "move": _move,
    "search": lambda request: {"files": files.search(request["path"], request["pattern"])},
    "find": lambda request: {"matches": files.find(request["path"], request["pattern"])},
    "replace": lambda request: {"results": files.replace(request["files"], request["pattern"], request["text"])},
}


def main(control_fd: int, tasks: int | None, file_bytes: int | None, data_bytes: int | None) -> None:
    """Serve one sandbox over the socket `control_fd`, then end whatever runs in it."""
    os.set_inheritable(control_fd, False)
    processes.protect_self()
    control = socket.socket(fileno=control_fd)
    try:
        Agent(control, processes.Bounds(tasks, file_bytes, data_bytes)).run()
    finally:
        processes.kill_everything()
