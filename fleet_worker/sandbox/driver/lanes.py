"""Lanes: an interpreter process each, and the cells that ran in it. The root loop has one, every child its own."""

import collections
import functools
import json
import os
import select
import signal
import socket
import struct
import time

from forks import PIPE_BYTES
from outputs import CellOutput
from processes import kill_all, kill_since, status_of

#: Seconds between an interrupt and the kill: for a timeout, and for a cancel, whose namespace nobody needs any more.
GRACE_S = 2.0
CANCEL_GRACE_S = 0.15
#: What is kept of finished cells: cells, and characters of text, arguments and replies; of one cell's replies.
KEPT_CELLS = 200
KEPT_CHARACTERS = 8 * 1024 * 1024
KEPT_REPLIES = 4 * 1024 * 1024
READ_BYTES = 1 << 16
#: Bytes taken from the pipes at the end of a cell; a process that goes on writing cannot hold the supervisor.
DRAIN_BYTES = 4 * PIPE_BYTES
MESSAGE_LIMIT = 64 * 1024 * 1024


class Cell:
    """A running cell."""

    def __init__(self, message, output):
        self.number = message["cell"]
        self.digest = message["digest"]
        self.timeout = message["timeout"]
        self.scan = message.get("scan")
        self.output = output
        self.started = time.monotonic()
        self.started_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.counted = self.started
        self.busy = 0.0
        self.calls = collections.OrderedDict()
        self.answered = []
        self.answered_characters = 0
        self.adopted = 0
        self.stopped = None
        self.kill_at = None

    def count(self):
        """Add the time since the last look to the busy time, unless a tool is awaited."""
        now = time.monotonic()
        if not self.calls:
            self.busy += now - self.counted
        self.counted = now

    def answer(self, call, reply):
        """Keep a call with its reply; beyond the bound without the reply's value."""
        value = reply.get("v")
        kept = {"fn": call["fn"], "args": call["args"], "ok": reply["ok"], "v": value}
        self.answered_characters += len(json.dumps([call["args"], value]))
        if self.answered_characters > KEPT_REPLIES:
            kept.update(args={}, v=None, cut=True)
        self.answered.append(kept)


class Lane:
    """One interpreter process and its cells.

    `tell` sends a message to the host, `scan` looks at a tree, `fork` gives an interpreter process, `kill_strays` kills
    what ended ones left.
    """

    def __init__(self, name, folder, cwd, *, tell, scan, fork, kill_strays):
        self.name = name
        self.folder = folder
        self.cwd = cwd
        self.tell = tell
        self.scan = scan
        self.fork = fork
        self.kill_strays = kill_strays
        self.pid = None
        self.sock = None
        self.pipes = {}
        self.buffer = bytearray()
        self.outgoing = bytearray()
        self.cell = None
        self.kept = collections.OrderedDict()
        self.tools = None
        self.fields = None

    def run(self, message):
        """Run a cell, or answer it from what is kept, or adopt the one that is running."""
        number, digest = message["cell"], message["digest"]
        kept = self.kept.get(number)
        if kept is not None and kept["digest"] == digest:
            self.tell(dict(kept, replayed=True, scan=self._scanned(kept["status"], message.get("scan"))))
            return
        if self.cell is not None:
            if self.cell.number == number and self.cell.digest == digest:
                self._adopt()
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
        cell.answer(call, message)
        answer = {name: message.get(name) for name in ("id", "ok", "v", "error")}
        self._send(dict(answer, t="ret"))

    def interrupt(self, reason):
        """Stop the running cell: an interrupt first, a kill when it does not help. `reason` is timeout or cancelled."""
        cell = self.cell
        if cell is None or cell.stopped == reason or cell.stopped == "cancelled":
            return
        cell.stopped = reason
        cell.kill_at = time.monotonic() + (CANCEL_GRACE_S if reason == "cancelled" else GRACE_S)
        self._signal(signal.SIGINT)

    @property
    def readable(self):
        """The pipes to watch: only while a cell runs; what others write meanwhile waits in them and is dropped."""
        return self.pipes if self.cell is not None else ()

    def read_output(self, limit=READ_BYTES):
        """Take at most about `limit` bytes of what was written."""
        while limit > 0 and self.pipes:
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
                limit -= len(data)

    def read_link(self):
        """Take what the interpreter says. Raises ValueError and the like when that is no message."""
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
            size = struct.unpack_from("!I", self.buffer)[0]
            if size > MESSAGE_LIMIT:
                raise ValueError("a message of %d bytes" % size)
            if len(self.buffer) < 4 + size:
                return
            body = bytes(self.buffer[4 : 4 + size])
            del self.buffer[: 4 + size]
            self._heard(json.loads(body))

    def tick(self):
        """Flush live output, watch the clock; how soon to look again, None when nothing is due."""
        cell = self.cell
        if cell is None:
            return None
        due = cell.output.due()
        if due == 0.0:
            cell.output.flush()
            due = None
        cell.count()
        now = time.monotonic()
        if cell.stopped is None and cell.busy >= cell.timeout:
            self.interrupt("timeout")
        if cell.kill_at is not None:
            if now >= cell.kill_at:
                self.kill("")
                return None
            return min(0.05, cell.kill_at - now)
        wait = max(0.01, min(1.0, cell.timeout - cell.busy))
        return wait if due is None else min(wait, due)

    def kill(self, why):
        """Kill the interpreter process and what it started."""
        if self.pid is not None:
            kill_all(self.pid)
            self.died(why)

    def died(self, why="", status=None):
        """The interpreter process is gone: its cell ends, its namespace is lost, what it started is killed."""
        pid, self.pid = self.pid, None
        if pid is not None and status is None:
            status = status_of(pid)
        self.kill_strays()
        self.read_output(DRAIN_BYTES)
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        for fd in self.pipes:
            os.close(fd)
        self.pipes, self.buffer, self.outgoing = {}, bytearray(), bytearray()
        if self.cell is not None:
            self._finish("crashed", {"kind": "InterpreterDied", "message": why or told(status), "trace": ""}, lost=True)

    def close(self):
        """End without a word to the host."""
        self.cell = None
        self.kill("")

    def _adopt(self):
        """Tell another host all that was told of the running cell: its output, its waiting calls."""
        cell = self.cell
        cell.adopted = len(cell.answered)
        cell.output.show_again()
        for call in cell.calls.values():
            self.tell(call)

    def _start(self, message):
        if self.pid is None:
            self.pid, self.sock, self.pipes = self.fork()
        else:
            self.read_output(DRAIN_BYTES)  # written since the last cell: nobody's output
        if message.get("tools") is not None:
            self.tools = message["tools"]
        if message.get("fields") is not None:
            self.fields = message["fields"]
        number = message["cell"]
        path = os.path.join(self.folder, "out", "%s-cell-%d.txt" % (self.name, number))
        output = CellOutput(path, message["keep"], message["live"], functools.partial(self._show, number))
        self.cell = Cell(message, output)
        self._send(
            {
                "t": "run",
                "cell": number,
                "code": message["code"],
                "cwd": self.cwd,
                "vars": message.get("vars") or {},
                "folder": os.path.join(self.folder, "vars"),
                "tools": self.tools,
                "fields": self.fields,
                "submit_limit": message["submit"],
            }
        )

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
            self.read_output(PIPE_BYTES)
            cell.output.flush()
            cell.count()
            cell.calls[message["id"]] = call
            self.tell(call)
        elif message["t"] == "end":
            self.read_output(DRAIN_BYTES)
            status, error = message["status"], message.get("error")
            if cell.stopped == "timeout" and status != "submit":
                status = "timeout"
                told_text = "the cell ran longer than %g s and was interrupted; variables are kept" % cell.timeout
                error = {"kind": "CellTimeout", "message": told_text, "trace": (error or {}).get("trace", "")}
            if cell.stopped is not None:
                kill_since(self.pid, cell.started_boot)
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
            "calls": cell.answered,
        }
        if cell.stopped != "cancelled":
            self._keep(cell, done)
        # The host of an adopted cell has not seen the calls that were answered before.
        scan = self._scanned(status, cell.scan)
        self.tell(dict(done, calls=cell.answered[: cell.adopted], replayed=False, scan=scan))

    def _scanned(self, status, wanted):
        return self.scan(wanted) if status == "submit" and wanted is not None else None

    def _keep(self, cell, done):
        done["size"] = len(done["text"]) + min(cell.answered_characters, KEPT_REPLIES)
        self.kept[cell.number] = done
        size = sum(item["size"] for item in self.kept.values())
        while len(self.kept) > KEPT_CELLS or (size > KEPT_CHARACTERS and len(self.kept) > 1):
            size -= self.kept.popitem(last=False)[1]["size"]

    def _show(self, number, stream, text):
        self.tell({"t": "out", "lane": self.name, "cell": number, "s": stream, "d": text})

    def push(self):
        """Write to the interpreter what its socket takes."""
        while self.outgoing and self.sock is not None:
            try:
                sent = self.sock.send(self.outgoing, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                self.died()
                return
            del self.outgoing[:sent]

    def _send(self, message):
        data = json.dumps(message).encode("ascii")
        self.outgoing += struct.pack("!I", len(data)) + data
        self.push()

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
