"""The supervisor: lives as long as the sandbox, owns the terminal, and never runs the model's code itself.

Started over a terminal as `python3 -u supervisor.py NONCE`. It answers the host of the highest (turn, attempt) alone,
keeps the cells of the present Turn with their results, and serves requests about files. Ends with its terminal.
"""

import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import time
import tty

from files import Files
from forks import Forks
from lanes import Lane
from lines import Receiver, Sender, line_of
from processes import kill_others, reap, retire_older
from variables import Variables

PROTOCOL = 1
HEARTBEAT_S = 10.0
ACK_LINES = 16
PR_SET_CHILD_SUBREAPER = 36
READ = select.POLLIN | select.POLLHUP | select.POLLERR


class Supervisor:
    """The state of one sandbox and the loop that serves it."""

    def __init__(self, folder, wakeup):
        self.folder = folder
        self.wakeup = wakeup
        self.pair = None
        self.sender = Sender("")
        self.receiver = Receiver()
        self.lanes = {}
        self.files = Files(folder)
        self.variables = Variables(os.path.join(folder, "vars"))
        self.forks = Forks()
        self.outgoing = bytearray()
        self.acked = 0
        self.beat_at = 0.0

    def serve(self):
        """Serve until the terminal is gone."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        while True:
            wait = self._next_look()
            poll, readers = select.poll(), {}
            poll.register(0, READ | (select.POLLOUT if self.outgoing else 0))
            poll.register(self.wakeup, READ)
            for lane in self.lanes.values():
                if lane.sock is not None:
                    poll.register(lane.sock, READ | (select.POLLOUT if lane.outgoing else 0))
                    readers[lane.sock.fileno()] = (lane, lane.read_link)
                for fd in lane.readable:
                    poll.register(fd, READ)
                    readers[fd] = (lane, lane.read_output)
            for fd, event in poll.poll(wait * 1000):
                if fd == 0:
                    if not self._read_terminal():
                        return
                elif fd == self.wakeup:
                    self._reap()
                else:
                    self._serve_lane(*readers[fd], event)

    def _serve_lane(self, lane, read, event):
        if event & select.POLLOUT:
            lane.push()
        if not event & READ:
            return
        try:
            read()
        except OSError:
            pass  # the lane ended while others were served in this round
        except Exception as error:
            # Code in a cell can reach the socket: whatever it sends must not end the supervisor.
            lane.kill("the interpreter process broke its protocol: %s" % type(error).__name__)

    def _next_look(self):
        waits = [wait for wait in (lane.tick() for lane in list(self.lanes.values())) if wait is not None]
        if time.monotonic() - self.beat_at >= HEARTBEAT_S:
            self._beat()
        self._flush()
        if not self.lanes:
            self.forks.prepare()
        return min([*waits, max(0.0, self.beat_at + HEARTBEAT_S - time.monotonic())])

    def _reap(self):
        os.read(self.wakeup, 4096)
        for pid, status in reap():
            if pid == self.forks.spare_pid:
                self.forks.drop(is_dead=True)
            for lane in list(self.lanes.values()):
                if lane.pid == pid:
                    lane.died(status=status)

    def _read_terminal(self):
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            self._write()
            return True
        except OSError:
            return False
        if not data:
            return False
        for message in self.receiver.feed(data):
            self._line(message)
        self._write()
        return True

    def _line(self, message):
        if message["t"] == "hello":
            self._hello(message)
            return
        if message.get("c") != self.sender.connection or self.pair is None:
            return
        if isinstance(message.get("a"), int):
            self.sender.acknowledged(message["a"])
        if message["t"] == "again":
            self.outgoing += b"".join(self.sender.again())
        if self.receiver.misses(message, time.monotonic()):
            self._send_now({"t": "again"})
        if message["t"] in ("ack", "hb", "again"):
            return
        before = self.receiver.received
        whole = self.receiver.accept(message)
        if self.receiver.received - self.acked >= ACK_LINES or self.receiver.received == before:
            self._acknowledge()
        if whole is not None:
            self._handle(whole)

    def _hello(self, message):
        pair, connection = (message["turn"], message["attempt"]), message["c"]
        # The same attempt may come with a new connection: it has given up the one before.
        if self.pair is not None and pair < self.pair:
            self._send_now({"t": "superseded", "c": connection})
            return
        resumed = connection == self.sender.connection
        if not resumed:
            if self.pair is None or pair[0] != self.pair[0]:
                self._end_lanes()
            self.pair = pair
            self.sender, receiver = Sender(connection), Receiver()
            receiver.buffer = self.receiver.buffer
            self.receiver, self.acked = receiver, 0
        else:
            self.sender.acknowledged(message["recv"])
        running = {lane.name: lane.cell.number for lane in self.lanes.values() if lane.cell is not None}
        welcome = {"t": "welcome", "recv": self.receiver.received, "protocol": PROTOCOL, "resumed": resumed}
        welcome.update(python="%d.%d.%d" % sys.version_info[:3], running=running, held=self.variables.held())
        welcome.update(cells={lane.name: len(lane.kept) for lane in self.lanes.values()})
        self._send_now(welcome)
        if resumed:
            self.outgoing += b"".join(self.sender.again())

    def _handle(self, message):
        kind, lane = message["t"], self.lanes.get(message.get("lane"))
        if kind == "run":
            self._run(message)
        elif kind == "ret" and lane is not None:
            if message.get("vf"):
                message["v"] = _taken(message["vf"])
            lane.reply(message)
        elif kind == "int" and lane is not None:
            lane.interrupt("cancelled")
        elif kind == "close" and lane is not None:
            del self.lanes[lane.name]
            lane.close()
        elif kind == "end":
            self._end_lanes()
        elif kind == "req":
            self._answer(message)

    def _run(self, message):
        name = message["lane"]
        variables, missing = self.variables.take(message.get("vars") or {})
        if missing:
            self.sender.put({"t": "need", "lane": name, "cell": message["cell"], "d": missing})
            return
        message["vars"] = variables
        if message.get("codef"):
            message["code"] = _taken(message["codef"])
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(
                name,
                self.folder,
                message["cwd"],
                tell=self.tell,
                scan=self.files.scanned,
                fork=self.forks.take,
                kill_strays=self._kill_strays,
            )
        lane.run(message)

    def tell(self, message):
        """Send a message to the host, reliably."""
        self.sender.put(message)

    def _answer(self, message):
        answer = {"t": "res", "id": message["id"], "ok": True}
        try:
            if message["op"] == "clean":
                self.forks.drop()
                self._end_lanes()
            answer["v"] = self.files.answer(message["op"], message["args"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer.update(ok=False, error="%s: %s" % (type(error).__name__, error))
        self.sender.put(answer)

    def _kill_strays(self):
        kill_others({self.forks.spare_pid, *(lane.pid for lane in self.lanes.values())} - {None})

    def _end_lanes(self):
        """The Turn is over: nothing of it runs on, and what was kept of its cells is forgotten."""
        lanes, self.lanes = self.lanes, {}
        for lane in lanes.values():
            lane.close()
        self._kill_strays()

    def _flush(self):
        lines = self.sender.ready(self.receiver.received)
        if lines:
            self.acked = self.receiver.received
            self.outgoing += b"".join(lines)
        self._write()

    def _acknowledge(self):
        self.acked = self.receiver.received
        self._send_now({"t": "ack"})

    def _beat(self):
        self.beat_at = time.monotonic()
        if self.pair is not None and len(self.outgoing) < 4096:
            self._send_now({"t": "hb"})

    def _send_now(self, message):
        line = {"c": self.sender.connection, "a": self.receiver.received, "s": self.sender.last}
        self.outgoing += line_of({**line, **message})
        self._write()

    def _write(self):
        while self.outgoing:
            try:
                sent = os.write(1, self.outgoing[:4096])
            except BlockingIOError:
                return
            del self.outgoing[:sent]


def _taken(path):
    """The JSON of an uploaded file, which is removed."""
    with open(path, encoding="utf-8") as source:
        value = json.load(source)
    os.unlink(path)
    return value


def main():
    """Take the terminal, say READY, serve; afterwards nothing of this sandbox's processes is left."""
    nonce, folder = sys.argv[1], os.path.dirname(os.path.abspath(__file__))
    tty.setraw(0)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for fd in (0, 1):
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGPIPE, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wakeup, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    retire_older("/.fleet-")
    supervisor = Supervisor(folder, wakeup)
    os.write(1, line_of({"t": "ready", "nonce": nonce, "protocol": PROTOCOL}))
    try:
        supervisor.serve()
    finally:
        kill_others(())


if __name__ == "__main__":
    main()
