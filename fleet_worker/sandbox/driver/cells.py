"""The interpreter process: runs the cells of one Turn (or child) in one namespace, forked from the supervisor.

Talks to the supervisor over a socket with length-prefixed JSON. Standard output and error are pipes, so that what
the cell, its threads and its subprocesses write arrives in order, whatever the cell does to `sys.stdout`.
"""

import ast
import asyncio
import builtins
import ctypes
import inspect
import io
import json
import linecache
import marshal
import os
import resource
import signal
import socket
import struct
import sys
import threading
import traceback

from streams import Stream, no_input
from values import plain_value, shown

OUT, ERR = 1, 2
TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
PR_SET_PDEATHSIG = 1
#: Most characters of JSON in a tool's arguments, and tool calls of one cell that wait at once.
ARGUMENTS_LIMIT = 8 * 1024 * 1024
WAITING_CALLS = 1024


class Submitted(BaseException):
    """Ends a cell after SUBMIT; a BaseException, so that `except Exception` lets it through."""


class ToolError(RuntimeError):
    """A tool failed; the message tells why."""


class Link:
    """Length-prefixed JSON over a socket. An interrupt never cuts a message in two."""

    def __init__(self, sock):
        self.sock = sock
        self.lock = threading.Lock()
        self.shielded = False
        self.interrupted = False

    def send(self, message):
        self.send_text(json.dumps(message))

    def send_text(self, text):
        data = text.encode("ascii")
        data = struct.pack("!I", len(data)) + data
        if threading.current_thread() is not threading.main_thread():
            with self.lock:
                self.sock.sendall(data)
            return
        self.shielded = True
        try:
            with self.lock:
                self.sock.sendall(data)
        finally:
            self.shielded = False
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt

    def on_interrupt(self, number, frame):
        """The handler of SIGINT: waits for the end of a message that is being sent."""
        if self.shielded:
            self.interrupted = True
        else:
            raise KeyboardInterrupt

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

    def __init__(self, link, pipes):
        self.link = link
        self.pipes = pipes
        self.namespace = {"__name__": "__main__", "__builtins__": builtins}
        self.variables = {}
        self.copies = {}
        self.tools = {}
        self.fields = []
        self.submit_limit = 0
        self.submitted = None
        self.cell = 0
        self.calls = {}
        self.next_call = 0
        self.calls_lock = threading.Lock()
        self.inbox = []
        self.inbox_ready = threading.Condition()
        self.running = False
        self.is_copy = False
        self.entered = False
        self.loop = None

    def serve(self):
        """Run cells until the supervisor closes the link."""
        # Pickle, dataclasses and multiprocessing look the cell's classes up in the main module.
        main = sys.modules["__main__"]
        main.__dict__.clear()
        main.__dict__.update(self.namespace)
        self.namespace = main.__dict__
        os.register_at_fork(after_in_child=self._become_copy)
        threading.Thread(target=self._read, name="fleet-link", daemon=True).start()
        _ignore_interrupts()
        while True:
            with self.inbox_ready:
                self.inbox_ready.wait_for(lambda: self.inbox)
                message = self.inbox.pop(0)
            if message is None:
                os._exit(0)
            self._run(message)

    def _become_copy(self):
        """A cell forked: its copy of this process must not speak for it."""
        self.is_copy = True
        self.calls_lock = threading.Lock()
        self.link.sock.close()

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
                if self.is_copy:
                    os._exit(0)
        except KeyboardInterrupt:
            result.update(status="error", error={"kind": "KeyboardInterrupt", "message": "interrupted", "trace": ""})
        _ignore_interrupts()
        self.running = False
        self._settle_output()
        if self.submitted is not None:  # also when the cell swallowed the exception that ends it
            result.update(status="submit", submit=self.submitted)
        self._fail_calls()
        self.link.send(result)

    def _prepare(self, message):
        for fd, pipe in self.pipes.items():
            os.dup2(pipe, fd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
        sys.stdout = Stream(OUT, self.pipes[ERR])
        sys.stderr = Stream(ERR, self.pipes[OUT])
        signal.signal(signal.SIGINT, self.link.on_interrupt)
        builtins.input = no_input
        self._enter_directory(message["cwd"])
        if message.get("tools") is not None:
            for name in self.tools:
                self.namespace.pop(name, None)
            self.tools = {name: self._tool(name, parameters) for name, parameters in message["tools"]}
        if message.get("fields") is not None:
            self.fields = message["fields"]
        self.submit_limit = message["submit_limit"]
        for name, digest in (message.get("vars") or {}).items():
            self.namespace[name] = self._variable(digest, message["folder"])
        self.namespace.update(self.tools)
        self.namespace["SUBMIT"] = self._submit
        self.running = True

    def _enter_directory(self, path):
        """Begin in the lane's directory; a directory that an earlier cell chose stays, unless it is gone."""
        try:
            os.getcwd()
        except OSError:
            self.entered = False
        if not self.entered:
            os.makedirs(path, exist_ok=True)
            os.chdir(path)
            self.entered = True

    def _variable(self, digest, folder):
        """The value of a variable: the same object for immutable ones, a fresh copy of a list or dict."""
        if digest in self.copies:
            return marshal.loads(self.copies[digest])
        if digest not in self.variables:
            with open(os.path.join(folder, digest), encoding="utf-8") as source:
                value = json.load(source)
            if isinstance(value, (list, dict)):
                self.copies[digest] = marshal.dumps(value)
                return value
            self.variables[digest] = value
        return self.variables[digest]

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
                sys.stdout.write(shown(value) + "\n")

    def _evaluate(self, compiled):
        value = eval(compiled, self.namespace)
        if not compiled.co_flags & inspect.CO_COROUTINE:
            return value
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        patched, asyncio.run = asyncio.run, _run_beside
        try:
            return self.loop.run_until_complete(value)
        except KeyboardInterrupt:
            self.loop.close()  # its tasks were cut short anywhere
            raise
        finally:
            asyncio.run = patched

    def _described(self, error):
        if isinstance(error, SyntaxError) and error.filename == "<cell %d>" % self.cell:
            text = "".join(traceback.format_exception_only(type(error), error))
            return {"kind": type(error).__name__, "message": error.msg or "", "trace": text.strip(), "syntax": True}
        try:
            message = str(error)
        except BaseException:
            message = "(the error cannot be shown)"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
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
        text = json.dumps({key: plain_value(value) for key, value in arguments.items()})
        if len(text) > ARGUMENTS_LIMIT:
            raise ToolError("%s() was given %d characters, %d are allowed" % (name, len(text), ARGUMENTS_LIMIT))
        waiting = [threading.Event(), None]
        with self.calls_lock:
            if self.is_copy:
                raise ToolError("%s() cannot be called from a forked process; use threads" % name)
            if not self.running:
                raise ToolError("%s() was called after its cell had ended" % name)
            if len(self.calls) >= WAITING_CALLS:
                raise ToolError("%d tool calls wait already" % WAITING_CALLS)
            self.next_call += 1
            call_id = "%d.%d" % (self.cell, self.next_call)
            self.calls[call_id] = waiting
        head = json.dumps({"t": "call", "cell": self.cell, "id": call_id, "fn": name})
        self.link.send_text('%s, "args": %s}' % (head[:-1], text))
        waiting[0].wait()
        reply = waiting[1]
        if not reply["ok"]:
            raise ToolError(reply["error"])
        return reply["v"]

    def _fail_calls(self):
        with self.calls_lock:
            unanswered, self.calls = self.calls, {}
        for waiting in unanswered.values():
            waiting[1] = {"ok": False, "error": "the cell has ended"}
            waiting[0].set()

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
        submitted = {key: plain_value(value, strict=True) for key, value in values.items()}
        size = len(json.dumps(submitted))
        if size > self.submit_limit:
            told = "SUBMIT was given %d characters, %d are allowed; write long results to a file and publish it"
            raise ValueError(told % (size, self.submit_limit))
        self.submitted = submitted
        raise Submitted

    def _settle_output(self):
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass


def start_interpreter(link_fd, pipes, close):
    """Become the interpreter process; never returns. Called in the child of a fork."""
    try:
        for fd in close:
            os.close(fd)
        _leave_no_modules()
        os.setsid()  # no terminal: what a cell writes to /dev/tty must not reach the supervisor's stream
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            with open("/proc/self/oom_score_adj", "w") as out:
                out.write("1000")
        except OSError:
            pass
        Interpreter(Link(socket.socket(fileno=link_fd)), pipes).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _leave_no_modules():
    """Let a cell's `import` find the modules in its directory, never the driver's."""
    for name, module in list(sys.modules.items()):
        if name != "__main__" and _is_ours(getattr(module, "__file__", None) or ""):
            del sys.modules[name]
    sys.path[:] = ["", *(path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__)))]


def _ignore_interrupts():
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        except KeyboardInterrupt:
            continue  # one that was under way


def _is_ours(filename):
    return os.path.dirname(filename) == os.path.dirname(os.path.abspath(__file__))


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
