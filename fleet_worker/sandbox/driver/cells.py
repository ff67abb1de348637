"""The interpreter process: runs the cells of one Turn (or child) in one namespace, forked from the supervisor.

Talks to the supervisor over a socket with length-prefixed JSON. Standard output and error are pipes, so that what
the cell, its threads and its subprocesses write arrives in order, whatever the cell does to `sys.stdout`.
"""

import ast
import asyncio
import builtins
import ctypes
import fcntl
import inspect
import io
import json
import linecache
import os
import resource
import signal
import socket
import struct
import sys
import termios
import threading
import time
import traceback

OUT, ERR = 1, 2
TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Submitted(BaseException):
    """Ends a cell after SUBMIT; a BaseException, so that `except Exception` lets it through."""


class ToolError(RuntimeError):
    """A tool failed; the message tells why."""


class Link:
    """Length-prefixed JSON over a socket."""

    def __init__(self, sock):
        self.sock = sock
        self.lock = threading.Lock()

    def send(self, message):
        data = json.dumps(message).encode("ascii")
        with self.lock:
            self.sock.sendall(struct.pack("!I", len(data)) + data)

    def receive(self):
        """The next message, None at the end."""
        head = self._exactly(4)
        if head is None:
            return None
        body = self._exactly(struct.unpack("!I", head)[0])
        return None if body is None else json.loads(body)

    def _exactly(self, size):
        data = bytearray()
        while len(data) < size:
            block = self.sock.recv(min(1 << 20, size - len(data)))
            if not block:
                return None
            data += block
        return bytes(data)


class Interpreter:
    """One namespace and the loop that runs cells in it."""

    def __init__(self, link, pipes, cwd):
        self.link = link
        self.pipes = pipes
        self.cwd = cwd
        self.main = sys.modules["__main__"]
        self.namespace = {"__name__": "__main__", "__builtins__": builtins}
        self.variables = {}
        self.texts = {}
        self.tools = {}
        self.fields = []
        self.submitted = None
        self.cell = 0
        self.calls = {}
        self.next_call = 0
        self.calls_lock = threading.Lock()
        self.inbox = []
        self.inbox_ready = threading.Condition()
        self.running = False

    def serve(self):
        """Run cells until the supervisor closes the link."""
        # Pickle, dataclasses and multiprocessing look the cell's classes up in the main module.
        self.main.__dict__.clear()
        self.main.__dict__.update(self.namespace)
        self.namespace = self.main.__dict__
        threading.Thread(target=self._read, name="fleet-link", daemon=True).start()
        while True:
            try:
                with self.inbox_ready:
                    self.inbox_ready.wait_for(lambda: self.inbox)
                    message = self.inbox.pop(0)
            except KeyboardInterrupt:
                continue  # an interrupt that came when the cell had just ended
            if message is None:
                os._exit(0)
            self._run(message)

    def _read(self):
        while True:
            try:
                message = self.link.receive()
            except (OSError, ValueError):
                message = None
            if message is not None and message["t"] == "ret":
                with self.calls_lock:
                    waiting = self.calls.pop(message["id"], None)
                if waiting is not None:
                    waiting[1] = message
                    waiting[0].set()
                continue
            with self.inbox_ready:
                self.inbox.append(message)
                self.inbox_ready.notify()
            if message is None:
                return

    def _run(self, message):
        self.cell = message["cell"]
        self.submitted = None
        result = {"t": "end", "cell": self.cell}
        try:
            try:
                self._prepare(message)
                self._execute(message["code"])
                result["status"] = "ok"
            except Submitted:
                result["status"] = "ok"
            except BaseException as error:
                result.update(status="error", error=self._described(error))
            finally:
                self.running = False
                self._settle_output()
        except KeyboardInterrupt:
            result.update(status="error", error={"kind": "KeyboardInterrupt", "message": "interrupted", "trace": ""})
        if self.submitted is not None:  # also when the cell swallowed the exception that ends it
            result.update(status="submit", submit=self.submitted)
        self._fail_calls()
        while True:
            try:
                self.link.send(result)
                return
            except KeyboardInterrupt:
                continue

    def _prepare(self, message):
        for fd, pipe in self.pipes.items():
            os.dup2(pipe, fd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
        sys.stdout = Stream(OUT, self.pipes[ERR])
        sys.stderr = Stream(ERR, self.pipes[OUT])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.makedirs(self.cwd, exist_ok=True)
        os.chdir(self.cwd)
        builtins.input = _no_input
        if message.get("tools") is not None:
            for name in self.tools:
                self.namespace.pop(name, None)
            self.tools = {name: self._tool(name, parameters) for name, parameters in message["tools"]}
        if message.get("fields") is not None:
            self.fields = message["fields"]
        for name, digest in (message.get("vars") or {}).items():
            self.namespace[name] = self._variable(digest, message["folder"])
        self.namespace.update(self.tools)
        self.namespace["SUBMIT"] = self._submit
        self.running = True

    def _variable(self, digest, folder):
        if digest in self.variables:
            return self.variables[digest]
        text = self.texts.get(digest)
        if text is None:
            with open(os.path.join(folder, digest), encoding="utf-8") as source:
                text = source.read()
        value = json.loads(text)
        if isinstance(value, (list, dict)):
            self.texts[digest] = text  # a cell may change it: every cell gets a fresh copy
        else:
            self.variables[digest] = value
        return value

    def _execute(self, code):
        name = "<cell %d>" % self.cell
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = ast.parse(code, name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)
        self._evaluate(compile(tree, name, "exec", TOP_LEVEL_AWAIT, dont_inherit=True))
        if last is not None:
            value = self._evaluate(compile(last, name, "eval", TOP_LEVEL_AWAIT, dont_inherit=True))
            if value is not None:
                sys.stdout.write(_text_of(value) + "\n")

    def _evaluate(self, compiled):
        value = eval(compiled, self.namespace)
        if compiled.co_flags & inspect.CO_COROUTINE:
            loop = asyncio.new_event_loop()
            patched, asyncio.run = asyncio.run, _run_beside
            try:
                value = loop.run_until_complete(value)
            finally:
                asyncio.run = patched
                loop.close()
        return value

    def _described(self, error):
        if isinstance(error, SyntaxError) and error.filename == "<cell %d>" % self.cell:
            text = "".join(traceback.format_exception_only(type(error), error))
            return {"kind": type(error).__name__, "message": error.msg or "", "trace": text.strip(), "syntax": True}
        try:
            message = str(error)
        except BaseException:
            message = "(the error cannot be shown)"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        if len(frames) > 12:
            frames = frames[:6] + frames[-6:]
        trace = "".join(traceback.format_list(frames))
        return {"kind": type(error).__name__, "message": message[:20_000], "trace": trace[-6000:]}

    def _tool(self, name, parameters):
        def tool(*args, **kwargs):
            return self._call(name, parameters, args, kwargs)

        tool.__name__ = tool.__qualname__ = name
        return tool

    def _call(self, name, parameters, args, kwargs):
        if len(args) > len(parameters):
            raise TypeError("%s() takes %d arguments but %d were given" % (name, len(parameters), len(args)))
        arguments = dict(zip(parameters, args))
        for key, value in kwargs.items():
            if key in arguments:
                raise TypeError("%s() got several values for the argument %r" % (name, key))
            arguments[key] = value
        plain = {key: plain_value(value) for key, value in arguments.items()}
        event = [threading.Event(), None]
        with self.calls_lock:
            if not self.running:
                raise ToolError("%s() was called after its cell had ended" % name)
            self.next_call += 1
            call_id = "%d.%d" % (self.cell, self.next_call)
            self.calls[call_id] = event
        self.link.send({"t": "call", "cell": self.cell, "id": call_id, "fn": name, "args": plain})
        while not event[0].wait(3600):
            pass
        reply = event[1]
        if not reply["ok"]:
            raise ToolError(reply["error"])
        return reply["v"]

    def _fail_calls(self):
        with self.calls_lock:
            waiting, self.calls = self.calls, {}
        for event in waiting.values():
            event[1] = {"ok": False, "error": "the cell has ended"}
            event[0].set()

    def _submit(self, *args, **kwargs):
        names = [field["name"] for field in self.fields] or ["answer"]
        if len(args) > len(names):
            raise TypeError("SUBMIT takes %d values (%s), %d were given" % (len(names), ", ".join(names), len(args)))
        values = dict(zip(names, args))
        for key, value in kwargs.items():
            if key in values:
                raise TypeError("SUBMIT got several values for %r" % key)
            values[key] = value
        unknown = [key for key in values if key not in names]
        missing = [name for name in names if name not in values]
        if unknown or missing:
            told = ["unknown: " + ", ".join(unknown)] if unknown else []
            told += ["missing: " + ", ".join(missing)] if missing else []
            raise TypeError("SUBMIT(%s): %s" % (", ".join("%s=…" % name for name in names), "; ".join(told)))
        for field in self.fields:
            if field.get("type") == "str" and values[field["name"]] is None:
                raise TypeError("SUBMIT: %s must be a str, not None" % field["name"])
        self.submitted = {key: plain_value(value, strict=True) for key, value in values.items()}
        raise Submitted

    def _settle_output(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass


class Stream(io.TextIOBase):
    """Text to a file descriptor at once; waits until the other stream's pipe is read, which keeps their order."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, fd, other):
        super().__init__()
        self.fd = fd
        self.other = other
        self.buffer = ByteStream(self)

    def fileno(self):
        return self.fd

    def writable(self):
        return True

    def isatty(self):
        return False

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not " + type(text).__name__)
        self.write_bytes(text.encode("utf-8", "replace"))
        return len(text)

    def write_bytes(self, data):
        deadline = time.monotonic() + 0.2
        while _waiting(self.other) and time.monotonic() < deadline:
            time.sleep(0.0002)
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]


class ByteStream(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def writable(self):
        return True

    def fileno(self):
        return self.text.fd

    def write(self, data):
        data = bytes(data)
        self.text.write_bytes(data)
        return len(data)


def start_interpreter(link_fd, pipes, cwd, close):
    """Become the interpreter process; never returns. Called in the child of a fork."""
    try:
        for fd in close:
            os.close(fd)
        os.setpgid(0, 0)
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            with open("/proc/self/oom_score_adj", "w") as out:
                out.write("1000")
        except OSError:
            pass
        Interpreter(Link(socket.socket(fileno=link_fd)), pipes, cwd).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def plain_value(value, strict=False):
    """`value` as JSON data: sets, tuples, dates, numpy, pandas, pydantic and dataclasses are converted.

    What cannot be converted becomes its str, or with `strict` a TypeError.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value
    if isinstance(value, dict):
        return {str(key): plain_value(item, strict) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = list(value)
        if isinstance(value, (set, frozenset)):
            try:
                items.sort()
            except TypeError:
                items.sort(key=repr)
        return [plain_value(item, strict) for item in items]
    for name in ("model_dump", "tolist", "to_dict", "_asdict", "isoformat"):
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            try:
                return plain_value(method(orient="records") if _is_frame(value) else method(), strict)
            except (TypeError, ValueError):
                continue
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: plain_value(getattr(value, name), strict) for name in value.__dataclass_fields__}
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if strict:
        raise TypeError("SUBMIT cannot send a %s; convert it to text, numbers, lists or dicts" % type(value).__name__)
    return str(value)


def _is_frame(value):
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns")


def _text_of(value):
    try:
        return repr(value)
    except Exception as error:
        return "<%s whose repr fails: %s>" % (type(value).__name__, error)


def _no_input(prompt=""):
    raise EOFError("input() is not available here: there is nobody to answer")


def _waiting(fd):
    try:
        count = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return False
    return struct.unpack("i", count)[0] > 0


def _run_beside(coroutine, **options):
    """`asyncio.run` for cells that use top-level await: a loop runs already, so this one gets a thread of its own."""
    box = {}

    def work():
        loop = asyncio.new_event_loop()
        try:
            box["value"] = loop.run_until_complete(coroutine)
        except BaseException as error:
            box["error"] = error
        finally:
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if "error" in box:
        raise box["error"]
    return box["value"]
