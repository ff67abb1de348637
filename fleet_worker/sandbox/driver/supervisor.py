"""The supervisor: lives as long as the sandbox, owns the terminal, and never runs the model's code itself.

Started over a PTY as `python3 -u supervisor.py NONCE`. It answers the host of the highest (turn, attempt) alone, keeps
the cells of the present Turn with their results, and serves requests about files. Ends when its terminal is gone.
"""

import base64
import ctypes
import fcntl
import json
import os
import selectors
import shutil
import signal
import sys
import time
import tty

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from lanes import Lane
from lines import Receiver, Sender, line_of
from trees import ATTACHMENTS, WORKSPACE, Tree, empty, ensure_directory, kill_others, reap, remove, sha256_of

PROTOCOL = 1
HEARTBEAT_S = 10.0
#: Bytes of file content that travel in one answer instead of a download.
INLINE_LIMIT = 4 * 1024 * 1024
PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """The state of one sandbox and the loop that serves it."""

    def __init__(self, folder):
        self.folder = folder
        self.pair = None
        self.sender = Sender("")
        self.receiver = Receiver()
        self.lanes = {}
        self.trees = {"workspace": Tree(WORKSPACE), "attachments": Tree(ATTACHMENTS)}
        self.outgoing = b""
        self.acked = 0
        self.beat_at = 0.0

    def serve(self):
        """Serve until the terminal is gone."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        while True:
            self._flush()
            selector = selectors.DefaultSelector()
            selector.register(0, selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0))
            for lane in self.lanes.values():
                if lane.sock is not None:
                    selector.register(lane.sock, selectors.EVENT_READ, lane.read_link)
                for fd in lane.pipes:
                    selector.register(fd, selectors.EVENT_READ, lane.read_output)
            ready = selector.select(self._next_look())
            selector.close()
            for key, _ in ready:
                if key.fd == 0:
                    if not self._read_terminal():
                        return
                else:
                    self._guarded(key.data)
            if time.monotonic() - self.beat_at >= HEARTBEAT_S:
                self._beat()

    def _guarded(self, read):
        try:
            read()
        except (OSError, ValueError):
            pass  # the lane ended while others were served in this round

    def _next_look(self):
        waits = [wait for wait in (lane.tick() for lane in list(self.lanes.values())) if wait is not None]
        self._flush()
        reap_idle(self.lanes)
        return min([*waits, max(0.0, self.beat_at + HEARTBEAT_S - time.monotonic())])

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
        if message["t"] in ("ack", "hb"):
            return
        before = self.receiver.received
        whole = self.receiver.accept(message)
        if self.receiver.received - self.acked >= 16 or self.receiver.received == before:
            self._acknowledge()
        if whole is not None:
            self._handle(whole)

    def _hello(self, message):
        pair, connection = (message["turn"], message["attempt"]), message["c"]
        if self.pair is not None and (pair < self.pair or (pair == self.pair and connection != self.sender.connection)):
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
        welcome = {"t": "welcome", "c": connection, "recv": self.receiver.received, "protocol": PROTOCOL}
        welcome.update(python="%d.%d.%d" % sys.version_info[:3], resumed=resumed, running=running)
        welcome.update(cells={lane.name: len(lane.kept) for lane in self.lanes.values()})
        self._send_now(welcome)
        if resumed:
            self.outgoing += b"".join(self.sender.again())

    def _handle(self, message):
        kind = message["t"]
        if kind == "run":
            self._run(message)
        elif kind == "ret":
            if message.get("vf"):
                message["v"] = self._take_json(message["vf"])
            lane = self.lanes.get(message.get("lane"))
            if lane is not None:
                lane.reply(message)
        elif kind == "int":
            lane = self.lanes.get(message.get("lane"))
            if lane is not None:
                lane.interrupt("cancelled")
        elif kind == "close":
            lane = self.lanes.pop(message.get("lane"), None)
            if lane is not None:
                lane.kill("closed")
        elif kind == "req":
            self._answer(message)

    def _run(self, message):
        name = message["lane"]
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name, self.folder, message.get("cwd") or WORKSPACE, self.sender_put)
        variables = {}
        for variable, item in (message.get("vars") or {}).items():
            variables[variable] = item["d"]
            if "j" in item:
                self._write_file("vars", item["d"], item["j"].encode("utf-8", "surrogatepass"))
            elif "f" in item:
                os.makedirs(os.path.join(self.folder, "vars"), exist_ok=True)
                shutil.move(item["f"], os.path.join(self.folder, "vars", item["d"]))
        message["vars"] = variables
        if message.get("codef"):
            message["code"] = self._take_json(message["codef"])
        lane.run(message)

    def sender_put(self, message):
        """Send a message to the host, reliably."""
        self.sender.put(message)

    def _answer(self, message):
        operations = {
            "stage": self._stage,
            "scan": self._scan,
            "read": self._read,
            "publish": self._publish,
            "clean": self._clean,
        }
        answer = {"t": "res", "id": message["id"], "ok": True}
        try:
            answer["v"] = operations[message["op"]](message["args"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            answer.update(ok=False, error="%s: %s" % (type(error).__name__, error))
        self.sender_put(answer)

    def _stage(self, args):
        """Put files in place in `tree`; with `read_only` its files and directories cannot be written afterwards."""
        tree = self.trees[args["tree"]]
        ensure_directory(tree.root)
        if args.get("read_only"):
            _set_writable(tree.root, True)
        tree.place(args.get("files", []), args.get("directories", []), args.get("removed", []))
        entries, left_out = tree.scan(args["limit"])
        if args.get("read_only"):
            _set_writable(tree.root, False)
            entries, left_out = tree.scan(args["limit"])
        return {"entries": entries, "left_out": left_out}

    def _scan(self, args):
        tree = self.trees[args["tree"]]
        ensure_directory(tree.root)
        entries, left_out = tree.scan(args["limit"])
        return {"entries": entries, "left_out": left_out}

    def _read(self, args):
        """The content of small files by path, base64, until INLINE_LIMIT is used up; others come back as None."""
        left, contents = INLINE_LIMIT, {}
        for path in args["paths"]:
            size = os.path.getsize(path)
            if size > left:
                contents[path] = None
                continue
            with open(path, "rb") as source:
                contents[path] = base64.b64encode(source.read()).decode("ascii")
            left -= size
        return contents

    def _publish(self, args):
        """A snapshot of a Workspace file: {path, snapshot, bytes, sha256}."""
        tree = self.trees["workspace"]
        asked = args["path"]
        full = os.path.realpath(os.path.join(tree.root, asked))
        if not (full + "/").startswith(tree.root + "/") or not os.path.isfile(full):
            raise ValueError("publish needs the path of a file in /workspace, and %s is none" % asked)
        size = os.path.getsize(full)
        if size > args["limit"]:
            raise ValueError("%s has %d bytes, more than the %d allowed" % (asked, size, args["limit"]))
        folder = os.path.join(self.folder, "published")
        os.makedirs(folder, exist_ok=True)
        partial = os.path.join(folder, "partial")
        shutil.copyfile(full, partial)
        digest = sha256_of(partial)
        os.replace(partial, os.path.join(folder, digest))
        relative = os.path.relpath(full, tree.root)
        return {"path": relative, "snapshot": os.path.join(folder, digest), "bytes": size, "sha256": digest}

    def _clean(self, args):
        """Kill everything that runs, empty /tmp and the home directory; the trees are restored by staging."""
        self._end_lanes()
        kill_others(set())
        home = os.path.expanduser("~")
        mine = os.path.realpath(self.folder)
        for place in ("/tmp", "/var/tmp", "/dev/shm", home):
            paths = {name: os.path.realpath(os.path.join(place, name)) for name in _names(place)}
            keep = {name for name, path in paths.items() if (mine + "/").startswith(path + "/")}
            empty(place, keep | set(args.get("keep", [])))
        for name in ("published", "out"):
            remove(os.path.join(self.folder, name))
        for tree in self.trees.values():
            tree.scanned_at = time.time() + 1e9  # marks may lie: hash everything once
        return {}

    def _end_lanes(self):
        for lane in self.lanes.values():
            lane.cell = None
            lane.kill("the Turn has ended")
        self.lanes = {}
        kill_others(set())

    def _take_json(self, path):
        with open(path, encoding="utf-8") as source:
            value = json.load(source)
        os.unlink(path)
        return value

    def _write_file(self, kind, name, data):
        folder = os.path.join(self.folder, kind)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "partial"), "wb") as out:
            out.write(data)
        os.replace(os.path.join(folder, "partial"), os.path.join(folder, name))

    def _flush(self):
        lines = self.sender.ready(self.receiver.received)
        if lines:
            self.acked = self.receiver.received
            self.outgoing += b"".join(lines)
        self._write()

    def _acknowledge(self):
        self.acked = self.receiver.received
        self._send_now({"t": "ack", "a": self.acked, "c": self.sender.connection})

    def _beat(self):
        self.beat_at = time.monotonic()
        if self.pair is not None and len(self.outgoing) < 4096:
            self._send_now({"t": "hb", "a": self.receiver.received, "c": self.sender.connection})

    def _send_now(self, message):
        self.outgoing += line_of(message)
        self._write()

    def _write(self):
        while self.outgoing:
            try:
                sent = os.write(1, self.outgoing[:4096])
            except BlockingIOError:
                return
            self.outgoing = self.outgoing[sent:]


def reap_idle(lanes):
    """Collect ended orphans, and notice interpreters that died while no cell was running."""
    for pid, _ in reap_except({lane.pid for lane in lanes.values() if lane.cell is not None}):
        for lane in lanes.values():
            if lane.pid == pid:
                lane.died()


def reap_except(busy):
    """Ended children other than interpreters with a running cell, whose end their lane reads itself."""
    return [] if busy - {None} else reap()


def _names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _set_writable(root, writable):
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o755 if writable else 0o555)
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o644 if writable else 0o444)


def main():
    """Take the terminal, say READY, serve; afterwards nothing of this sandbox's processes is left."""
    nonce, folder = sys.argv[1], os.path.dirname(os.path.abspath(__file__))
    tty.setraw(0)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    fcntl.fcntl(0, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, line_of({"t": "ready", "nonce": nonce, "protocol": PROTOCOL}))
    try:
        Supervisor(folder).serve()
    finally:
        kill_others(set())


if __name__ == "__main__":
    main()
