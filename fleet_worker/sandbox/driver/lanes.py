"""Lanes: an interpreter process each, and the cells that ran in it. The root loop has one, every child its own."""

import collections
import fcntl
import functools
import json
import os
import select
import signal
import socket
import struct
import time

from cells import Link, start_interpreter
from outputs import CellOutput

#: Seconds between an interrupt and the kill: for a timeout, and for a cancel.
GRACE_S = 2.0
CANCEL_GRACE_S = 0.4
KEPT_CELLS = 200
KEPT_CHARACTERS = 8 * 1024 * 1024
READ_BYTES = 1 << 16
MESSAGE_LIMIT = 64 * 1024 * 1024


class Cell:
    """A running cell."""

    def __init__(self, number, digest, timeout, output):
        self.number = number
        self.digest = digest
        self.timeout = timeout
        self.output = output
        self.started = time.monotonic()
        self.counted = self.started
        self.busy = 0.0
        self.calls = collections.OrderedDict()
        self.answered = []
        self.stopped = None
        self.kill_at = None
        self.ended = None

    def count(self):
        """Add the time since the last look to the busy time, unless a tool is awaited."""
        now = time.monotonic()
        if not self.calls:
            self.busy += now - self.counted
        self.counted = now


class Lane:
    """One interpreter process and its cells. `tell` sends a message to the host."""

    def __init__(self, name, folder, cwd, tell):
        self.name = name
        self.folder = folder
        self.cwd = cwd
        self.tell = tell
        self.pid = None
        self.sock = None
        self.pipes = {}
        self.buffer = b""
        self.cell = None
        self.kept = collections.OrderedDict()
        self.tools = None
        self.fields = None
        self.had_cells = False

    def run(self, message):
        """Run a cell, or answer it from what is kept, or adopt the one that is running."""
        number, digest = message["cell"], message["digest"]
        kept = self.kept.get(number)
        if kept is not None and kept["digest"] == digest:
            self.tell(dict(kept, replayed=True))
            return
        if self.cell is not None:
            if self.cell.number == number and self.cell.digest == digest:
                self.cell.output.show_again()
                for call in self.cell.calls.values():
                    self.tell(call)
                return
            self.kill("another cell took its place")
        for old in [n for n in self.kept if n >= number]:
            del self.kept[old]
        self._start(message)

    def reply(self, message):
        """Pass a tool's reply on to the cell that waits for it."""
        cell = self.cell
        call = cell.calls.pop(message["id"], None) if cell is not None else None
        if call is None:
            return
        cell.count()
        cell.answered.append({"fn": call["fn"], "args": call["args"], "ok": message["ok"], "v": message.get("v")})
        answer = {name: message.get(name) for name in ("id", "ok", "v", "error")}
        self._send(dict(answer, t="ret"))

    def interrupt(self, reason):
        """Stop the running cell: an interrupt first, a kill when it does not help. `reason` is timeout or cancelled."""
        cell = self.cell
        if cell is None or cell.stopped is not None:
            return
        cell.stopped = reason
        cell.kill_at = time.monotonic() + (CANCEL_GRACE_S if reason == "cancelled" else GRACE_S)
        self._signal(signal.SIGINT)

    def read_output(self, drain=False):
        """Take what the cell wrote; with `drain` until its pipes are empty."""
        while True:
            readable, _, _ = select.select(list(self.pipes), [], [], 0)
            if not readable:
                return
            for fd in readable:
                try:
                    data = os.read(fd, READ_BYTES)
                except OSError:
                    data = b""
                if not data:
                    os.close(fd)
                    del self.pipes[fd]
                elif self.cell is not None:
                    self.cell.output.add(self.pipes[fd], data)
            if not drain:
                return

    def read_link(self):
        """Take what the interpreter says."""
        if self.sock is None:
            return
        try:
            data = self.sock.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.died()
            return
        self.buffer += data
        while len(self.buffer) >= 4:
            size = struct.unpack("!I", self.buffer[:4])[0]
            if size > MESSAGE_LIMIT:
                self.kill("it sent a message of %d bytes" % size)
                return
            if len(self.buffer) < 4 + size:
                return
            body, self.buffer = self.buffer[4 : 4 + size], self.buffer[4 + size :]
            self._heard(json.loads(body))

    def tick(self):
        """Flush live output, watch the clock; how soon to look again, None when nothing is due."""
        cell = self.cell
        if cell is None:
            return None
        cell.output.flush()
        cell.count()
        now = time.monotonic()
        if cell.stopped is None and cell.busy >= cell.timeout:
            self.interrupt("timeout")
        if cell.kill_at is not None:
            if now >= cell.kill_at:
                self.kill("")
                return None
            return min(0.05, cell.kill_at - now)
        return 0.02 if cell.output.pending else max(0.01, min(1.0, cell.timeout - cell.busy))

    def kill(self, why):
        """Kill the interpreter process."""
        if self.pid is not None:
            self._signal(signal.SIGKILL)
            self.died(why)

    def died(self, why=""):
        """The interpreter process is gone: its cell ends, its namespace is lost."""
        pid, self.pid = self.pid, None
        status = _wait(pid) if pid is not None else None
        self.read_output(drain=True)
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        for fd in self.pipes:
            os.close(fd)
        self.pipes, self.buffer = {}, b""
        if self.cell is not None:
            self._finish("crashed", {"kind": "InterpreterDied", "message": why or told(status), "trace": ""}, lost=True)

    def _start(self, message):
        if self.pid is None:
            self._fork()
        if message.get("tools") is not None:
            self.tools = message["tools"]
        if message.get("fields") is not None:
            self.fields = message["fields"]
        number = message["cell"]
        path = os.path.join(self.folder, "out", "%s-cell-%d.txt" % (self.name, number))
        output = CellOutput(path, message["keep"], message["live"], functools.partial(self._show, number))
        self.cell = Cell(number, message["digest"], message["timeout"], output)
        self.had_cells = True
        self._send(
            {
                "t": "run",
                "cell": number,
                "code": message["code"],
                "vars": message.get("vars") or {},
                "folder": os.path.join(self.folder, "vars"),
                "tools": self.tools,
                "fields": self.fields,
            }
        )

    def _fork(self):
        ours, theirs = socket.socketpair()
        (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
        for fd in (out_write, err_write):
            fcntl.fcntl(fd, 1031, 1 << 20)  # F_SETPIPE_SZ; a smaller pipe only costs speed
        pid = os.fork()
        if pid == 0:
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in (out_write, err_write, theirs.fileno())]
            keep = {*high, 0, 1, 2}
            close = [fd for fd in _open_fds() if fd not in keep]
            start_interpreter(high[2], {1: high[0], 2: high[1]}, self.cwd, close)
        os.close(out_write)
        os.close(err_write)
        theirs.close()
        self.pid, self.sock, self.pipes = pid, ours, {out_read: "o", err_read: "e"}

    def _heard(self, message):
        cell = self.cell
        if cell is None or message.get("cell") != cell.number:
            return
        if message["t"] == "call":
            call = {
                "t": "call",
                "lane": self.name,
                "cell": cell.number,
                "id": message["id"],
                "fn": message["fn"],
                "args": message["args"],
            }
            self.read_output(drain=True)
            cell.output.flush()
            cell.count()
            cell.calls[message["id"]] = call
            self.tell(call)
        elif message["t"] == "end":
            self.read_output(drain=True)
            status, error = message["status"], message.get("error")
            if cell.stopped == "timeout" and status != "submit":
                status = "timeout"
                told_text = "the cell ran longer than %g s and was interrupted; variables are kept" % cell.timeout
                error = {"kind": "CellTimeout", "message": told_text, "trace": (error or {}).get("trace", "")}
            self._finish(status, error, lost=False, submit=message.get("submit"))

    def _finish(self, status, error, lost, submit=None):
        cell, self.cell = self.cell, None
        output = cell.output
        output.finish()
        if status == "crashed" and cell.stopped == "timeout":
            status = "timeout"
            error["kind"] = "CellTimeout"
            error["message"] = (
                "the cell ran longer than %g s and was killed: interrupting it did not help" % cell.timeout
            )
        done = {
            "t": "done",
            "lane": self.name,
            "cell": cell.number,
            "digest": cell.digest,
            "status": status,
            "text": output.text(),
            "chars": output.chars,
            "truncated": output.is_truncated,
            "full": output.path if output.has_file else None,
            "ms": int((time.monotonic() - cell.started) * 1000),
            "busy_ms": int(cell.busy * 1000),
            "error": error,
            "submit": submit,
            "lost": lost,
            "stopped": cell.stopped,
            "calls": cell.answered,
        }
        if cell.stopped != "cancelled":
            self._keep(cell.number, done)
        self.tell(dict(done, calls=len(cell.answered), replayed=False))

    def _keep(self, number, done):
        self.kept[number] = done
        size = sum(
            len(item["text"]) + sum(len(str(call["v"])) for call in item["calls"]) for item in self.kept.values()
        )
        while len(self.kept) > KEPT_CELLS or (size > KEPT_CHARACTERS and len(self.kept) > 1):
            _, old = self.kept.popitem(last=False)
            size -= len(old["text"]) + sum(len(str(call["v"])) for call in old["calls"])

    def _show(self, number, stream, text):
        self.tell({"t": "out", "lane": self.name, "cell": number, "s": stream, "d": text})

    def _send(self, message):
        try:
            Link(self.sock).send(message)
        except OSError:
            self.died()

    def _signal(self, number):
        try:
            os.killpg(self.pid, number)
        except OSError:
            try:
                os.kill(self.pid, number)
            except OSError:
                pass


def told(status):
    """How a process ended, for the model."""
    if status is None:
        return "the interpreter process died"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else "signal %d" % number
        more = " (killed, probably for using too much memory)" if number == signal.SIGKILL else ""
        return "the interpreter process died of %s%s" % (name, more)
    return "the interpreter process died with exit code %d" % os.WEXITSTATUS(status)


def _wait(pid):
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return status
        time.sleep(0.002)
    try:
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    except OSError:
        return None


def _open_fds():
    fds = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
            fds.append(int(name))
        except OSError:
            continue
    return fds
