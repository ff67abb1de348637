"""The dspy 3.4.0 CodeInterpreter over a bridge: cells run in the sandbox, tools run here, in the caller's context.

`start` does not wait: the sandbox may be made while the first model call runs; the first `execute` waits for it.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import inspect
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput
from dspy.utils.callback import with_callbacks

from fleet_shared.domain.errors import SandboxLost
from fleet_shared.domain.text import clean_text
from fleet_worker.sandbox.bridge import Bridge, Lost, Superseded
from fleet_worker.sandbox.protocol import AnsweredCall, CellDone, CellOutput, Scanned, ToolCall, VariablesNeeded
from fleet_worker.sandbox.values import VariableTexts, parameters_of, plain
from fleet_worker.scope import Scope

log = logging.getLogger(__name__)

#: Tool calls of one cell that run at once.
PARALLEL_TOOLS: Final = 8
#: Characters of a variable, a cell's code or a tool's reply that travel on the stream, below its window so that they
#: never wait for an acknowledgement; longer ones are uploaded, which costs a request.
INLINE_CHARACTERS: Final = 200_000
#: Most characters of a tool's reply.
REPLY_LIMIT: Final = 64 * 1024 * 1024
#: Tool calls of a cell that may wait for their turn.
WAITING_CALLS: Final = 4096
#: Seconds a stopped cell has to end before its Run goes on without it.
CANCEL_PATIENCE_S: Final = 1.5


class CellListener(Protocol):
    """Hears of what happens in cells, on the interpreter's thread; must not block for long."""

    def output(self, stream: str, text: str) -> None:
        """A running cell wrote text."""

    def finished(self, done: CellDone) -> None:
        """A cell ended."""

    def answered_before(self, call: AnsweredCall) -> None:
        """A kept cell had this tool call; what it did on the host has to be done again."""


class Silent:
    """A listener that does nothing."""

    def output(self, stream: str, text: str) -> None:
        """Ignored."""

    def finished(self, done: CellDone) -> None:
        """Ignored."""

    def answered_before(self, call: AnsweredCall) -> None:
        """Ignored."""


@dataclass(frozen=True, slots=True)
class CellLimits:
    """Bounds of one cell: seconds without waiting for tools, characters for the model, characters shown live,
    characters of JSON in SUBMIT."""

    timeout_s: float = 120.0
    output_chars: int = 20_000
    live_bytes: int = 1024 * 1024
    submit_chars: int = 4_000_000


@dataclass(frozen=True, slots=True)
class Connected:
    """A bridge that is open, and how long text gets into the sandbox."""

    bridge: Bridge
    upload: Callable[[Mapping[str, bytes | str]], None]
    incoming: str


class SandboxInterpreter:
    """One namespace in a sandbox. Not to be shared between loops; `execute` is not re-entrant."""

    def __init__(
        self,
        connect: Callable[[], Connected],
        *,
        lane: str = "root",
        cwd: str = "/workspace",
        limits: CellLimits | None = None,
        listener: CellListener | None = None,
        scope: Scope | None = None,
        submit_scan: Callable[[], dict[str, Any]] | None = None,
        before_submit: Callable[[Scanned], None] | None = None,
        keep: bool = False,
    ) -> None:
        """`connect` gives the bridge and may wait. With `keep` shutdown leaves the process for a later attempt.

        `submit_scan` gives the arguments of a scan that comes along with a SUBMIT; `before_submit` is given its result
        and may refuse the SUBMIT with a ValueError, which the model sees.
        """
        self.tools: dict[str, Callable[..., Any]] = {}
        self.output_fields: list[dict[str, Any]] | None = None
        self._tools_registered = False
        self._connect = connect
        self._lane = lane
        self._cwd = cwd
        self._limits = limits or CellLimits()
        self._listener: CellListener = listener or Silent()
        self._scope = scope
        self._submit_scan = submit_scan
        self._before_submit = before_submit
        self._keep = keep
        self._connected: Connected | None = None
        self._cell = 0
        self._shut = False
        self._executing = threading.Lock()
        self._texts = VariableTexts()

    @with_callbacks
    def start(self) -> None:
        """Nothing to do yet: the first `execute` connects."""

    @with_callbacks
    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """The cell's output, or FinalOutput after SUBMIT.

        Raises CodeExecutionError or SyntaxError for what the model can repair, CodeInterpreterError when the sandbox
        is lost, RunStopped when the Run has to stop.
        """
        if self._shut:
            raise CodeInterpreterError("The interpreter was shut down.")
        if not self._executing.acquire(blocking=False):
            raise CodeInterpreterError("A tool cannot run code in the interpreter that called it.")
        try:
            return self._execute(code, variables or {})
        finally:
            self._executing.release()

    def interrupt(self) -> None:
        """Stop the running cell, from any thread; its `execute` ends with an error the model can see."""
        if self._connected is not None:
            self._connected.bridge.interrupt(self._lane)

    @with_callbacks
    def shutdown(self) -> None:
        """Leave the sandbox; fast, and never raises."""
        if self._shut:
            return
        self._shut = True
        if self._connected is not None and not self._keep:
            self._connected.bridge.leave_lane(self._lane)

    @with_callbacks
    def invoke_tool(self, tool_name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a host tool. DSPy's callbacks see it under this name."""
        return self.tools[tool_name](*args, **kwargs)

    def _execute(self, code: str, variables: dict[str, Any]) -> Any:
        self._check()
        connected = self._ready()
        bridge = connected.bridge
        messages = bridge.lane(self._lane)
        self._cell += 1
        code = clean_text(code)
        message: dict[str, Any] = {
            "t": "run",
            "lane": self._lane,
            "cwd": self._cwd,
            "cell": self._cell,
            "digest": hashlib.sha256(code.encode()).hexdigest(),
            "tools": [[name, parameters_of(tool)] for name, tool in self.tools.items()],
            "fields": self.output_fields or [],
            "timeout": self._limits.timeout_s,
            "keep": self._limits.output_chars,
            "live": self._limits.live_bytes,
            "submit": self._limits.submit_chars,
        }
        if self._submit_scan is not None:
            message["scan"] = self._submit_scan()
        try:
            digests = {name: self._texts.digest(name, value) for name, value in variables.items()}
        except TypeError as error:
            raise CodeInterpreterError(str(error)) from error
        with self._stop_on_cancel(bridge):
            self._send_cell(connected, message, code, digests)
            done = self._follow(connected, messages, lambda: self._send_cell(connected, message, code, digests))
        self._listener.finished(done)
        for call in done.calls:
            self._listener.answered_before(call)
        self._check()
        return self._outcome(done)

    def _send_cell(self, connected: Connected, message: dict[str, Any], code: str, digests: Mapping[str, str]) -> None:
        """Send a cell with the variables the sandbox does not hold; what is long is uploaded first."""
        bridge, uploads = connected.bridge, {}
        bound: dict[str, dict[str, Any]] = {name: {"d": digest} for name, digest in digests.items()}
        new = {digest: name for name, digest in digests.items() if not bridge.holds(digest)}
        for digest, name in new.items():
            text = self._texts.text(name)
            if len(text) <= INLINE_CHARACTERS:
                bound[name]["j"] = text
            else:
                bound[name]["f"] = f"{connected.incoming}/var-{digest}"
                uploads[bound[name]["f"]] = text.encode()
        if len(code) > INLINE_CHARACTERS:
            message["codef"] = f"{connected.incoming}/code-{message['digest']}"
            uploads[message["codef"]] = json.dumps(code).encode()
        else:
            message["code"] = code
        if uploads:
            connected.upload(uploads)
        bridge.send({**message, "vars": bound})
        bridge.now_holds(new)
        self._texts.forget_texts()

    def _follow(
        self, connected: Connected, messages: "queue.SimpleQueue[Any]", send_again: Callable[[], None]
    ) -> CellDone:
        """Show output and run tools until the cell has ended."""
        pool = ThreadPoolExecutor(PARALLEL_TOOLS, thread_name_prefix="tool")
        try:
            return self._listen(connected, messages, send_again, pool)
        finally:
            # A tool that does not end with its cell is on its own: it answers nobody, and its scope stops it.
            pool.shutdown(wait=False, cancel_futures=True)

    def _listen(
        self,
        connected: Connected,
        messages: "queue.SimpleQueue[Any]",
        send_again: Callable[[], None],
        pool: ThreadPoolExecutor,
    ) -> CellDone:
        abort: list[BaseException] = []
        waiting = threading.Semaphore(WAITING_CALLS)
        deadline: float | None = None
        while True:
            stopped = bool(abort) or self._is_stopped()
            if stopped:
                deadline = deadline or time.monotonic() + CANCEL_PATIENCE_S
                if time.monotonic() > deadline:
                    self._raise_stop(abort)
            try:
                told = messages.get(timeout=0.05 if stopped else 0.25)
            except queue.Empty:
                continue
            match told:
                case CellOutput() if told.cell == self._cell:
                    self._listener.output(told.stream, told.text)
                case ToolCall() if told.cell == self._cell:
                    if not waiting.acquire(blocking=False):
                        raise CodeInterpreterError("The sandbox calls more tools than it may.")
                    context = contextvars.copy_context()
                    pool.submit(context.run, self._answer, connected, told, abort).add_done_callback(
                        lambda _: waiting.release()
                    )
                case VariablesNeeded() if told.cell == self._cell:
                    connected.bridge.no_longer_holds(told.digests)
                    send_again()
                case CellDone() if told.cell == self._cell:
                    if abort:
                        raise abort[0]
                    return told
                case Lost():
                    self._raise_lost(told)
                case _:
                    pass  # an earlier cell's late word

    def _raise_stop(self, abort: list[BaseException]) -> None:
        if abort:
            raise abort[0]
        self._check()

    def _raise_lost(self, lost: Lost) -> None:
        self._check()
        if isinstance(lost.error, Superseded):
            if self._scope is not None:
                self._scope.stop(lost.error.reason)
            raise lost.error
        raise CodeInterpreterError(lost.error.detail) from lost.error

    def _answer(self, connected: Connected, call: ToolCall, abort: list[BaseException]) -> None:
        reply: dict[str, Any] = {"t": "ret", "lane": self._lane, "id": call.id, "ok": True}
        try:
            value = plain(self._invoke(call))
            text = json.dumps(value)
            if len(text) <= INLINE_CHARACTERS:
                reply["v"] = value
            elif len(text) <= REPLY_LIMIT:
                reply["vf"] = f"{connected.incoming}/reply-{self._lane}-{call.id}"
                connected.upload({reply["vf"]: text.encode()})
            else:
                reply |= {"ok": False, "error": f"the result has {len(text)} characters, {REPLY_LIMIT} are allowed"}
        except Exception as error:  # noqa: BLE001  # whatever a tool raises is told to the code that called it
            reply |= {"ok": False, "error": clean_text(f"{type(error).__name__}: {error}")[:20_000]}
        except BaseException as error:  # noqa: BLE001  # a stop passes through the cell, whatever the cell catches
            abort.append(error)
            connected.bridge.interrupt(self._lane)
            return
        connected.bridge.send(reply)

    def _invoke(self, call: ToolCall) -> Any:
        tool = self.tools.get(call.name)
        if tool is None:
            raise NameError(f"there is no tool {call.name}")
        value = self.invoke_tool(call.name, [], call.args)
        if inspect.isawaitable(value):
            return _awaited(value)
        return value

    def _outcome(self, done: CellDone) -> Any:
        if done.status == "submit":
            return self._submitted(done)
        text = done.text[:-1] if done.text.endswith("\n") else done.text
        if done.status == "ok":
            return text
        error = done.error
        assert error is not None
        before = f"{text}\n" if text else ""
        if error.is_syntax and not text:
            raise SyntaxError(f"{error.trace}")
        told = f"{error.kind}: {error.message}" if error.message else error.kind
        trace = f"\n{error.trace.rstrip()}" if error.trace and not error.is_syntax else ""
        lost = (
            "\nThe namespace is lost: a new interpreter was started, define again what you need." if done.lost else ""
        )
        raise CodeExecutionError(f"{before}{told}{trace}{lost}")

    def _submitted(self, done: CellDone) -> FinalOutput:
        if self._before_submit is not None and done.scan is not None:
            try:
                self._before_submit(done.scan)
            except ValueError as error:
                raise CodeExecutionError(f"SUBMIT was refused: {error}") from error
            except SandboxLost as error:
                raise CodeInterpreterError(error.detail) from error
        return FinalOutput(done.submit)

    def _ready(self) -> Connected:
        if self._connected is None:
            try:
                self._connected = self._connect()
            except SandboxLost as error:
                raise CodeInterpreterError(error.detail) from error
        return self._connected

    @contextlib.contextmanager
    def _stop_on_cancel(self, bridge: Bridge) -> Any:
        if self._scope is None:
            yield
            return
        with self._scope.on_stop(lambda: bridge.interrupt(self._lane)):
            yield

    def _is_stopped(self) -> bool:
        return self._scope is not None and self._scope.reason is not None

    def _check(self) -> None:
        if self._scope is not None:
            self._scope.check()


def _awaited(awaitable: Any) -> Any:
    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())
