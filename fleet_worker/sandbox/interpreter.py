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
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Final, Protocol

from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput
from dspy.utils.callback import with_callbacks

from fleet_shared.domain.errors import SandboxLost
from fleet_shared.domain.text import clean_text
from fleet_worker.sandbox.bridge import Bridge, Lost, Superseded
from fleet_worker.sandbox.protocol import AnsweredCall, CellDone, CellOutput, ToolCall
from fleet_worker.scope import Scope, StopReason

log = logging.getLogger(__name__)

#: Tool calls of one cell that run at once.
PARALLEL_TOOLS: Final = 8
#: Characters of a variable's JSON that travel in a line; longer ones are uploaded.
INLINE_CHARACTERS: Final = 200_000
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
    """Bounds of one cell: seconds without waiting for tools, characters for the model, bytes shown live."""

    timeout_s: float = 120.0
    output_chars: int = 20_000
    live_bytes: int = 1024 * 1024


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
        before_submit: Callable[[], None] | None = None,
        keep: bool = False,
    ) -> None:
        """`connect` gives the bridge and may wait; `before_submit` may refuse a SUBMIT with a ValueError.

        With `keep` shutdown leaves the process for a later attempt.
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
        self._before_submit = before_submit
        self._keep = keep
        self._connected: Connected | None = None
        self._messages: queue.SimpleQueue[Any] | None = None
        self._cell = 0
        self._shut = False
        self._executing = threading.Lock()
        self._sent: set[str] = set()
        self._digests: dict[str, tuple[Any, str]] = {}
        self._signatures: dict[str, inspect.Signature] = {}

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
        digest = hashlib.sha256(code.encode()).hexdigest()
        bound, uploads = self._bind(variables, connected.incoming)
        message: dict[str, Any] = {
            "t": "run",
            "lane": self._lane,
            "cwd": self._cwd,
            "cell": self._cell,
            "digest": digest,
            "vars": bound,
            "tools": [[name, list(self._parameters(name))] for name in self.tools],
            "fields": self.output_fields or [],
            "timeout": self._limits.timeout_s,
            "keep": self._limits.output_chars,
            "live": self._limits.live_bytes,
        }
        if len(code) > INLINE_CHARACTERS:
            path = f"{connected.incoming}/code-{digest}"
            uploads[path] = json.dumps(code).encode()
            message["codef"] = path
        else:
            message["code"] = code
        if uploads:
            connected.upload(uploads)
        with self._stop_on_cancel(bridge):
            bridge.send(message)
            done = self._follow(bridge, messages)
        self._listener.finished(done)
        for call in done.calls:
            self._listener.answered_before(call)
        self._check()
        return self._outcome(done)

    def _follow(self, bridge: Bridge, messages: "queue.SimpleQueue[Any]") -> CellDone:
        """Show output and run tools until the cell has ended."""
        with ThreadPoolExecutor(PARALLEL_TOOLS, thread_name_prefix="tool") as pool:
            abort: list[BaseException] = []
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
                        context = contextvars.copy_context()
                        pool.submit(context.run, self._answer, bridge, told, abort)
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
                self._scope.stop(StopReason.LOST)
                self._scope.check()
            raise CodeInterpreterError("Another attempt uses the sandbox.") from lost.error
        raise CodeInterpreterError(lost.error.detail) from lost.error

    def _answer(self, bridge: Bridge, call: ToolCall, abort: list[BaseException]) -> None:
        reply: dict[str, Any] = {"t": "ret", "lane": self._lane, "id": call.id, "ok": True}
        try:
            reply["v"] = plain(self._invoke(call))
        except Exception as error:  # noqa: BLE001  # whatever a tool raises is told to the code that called it
            reply |= {"ok": False, "error": clean_text(f"{type(error).__name__}: {error}")[:20_000]}
        except BaseException as error:  # noqa: BLE001  # a stop passes through the cell, whatever the cell catches
            abort.append(error)
            bridge.interrupt(self._lane)
            return
        bridge.send(reply)

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
        if self._before_submit is not None:
            try:
                self._before_submit()
            except ValueError as error:
                raise CodeExecutionError(f"SUBMIT was refused: {error}") from error
            except SandboxLost as error:
                raise CodeInterpreterError(error.detail) from error
        return FinalOutput(done.submit)

    def _bind(self, variables: dict[str, Any], incoming: str) -> tuple[dict[str, Any], dict[str, bytes | str]]:
        bound: dict[str, Any] = {}
        uploads: dict[str, bytes | str] = {}
        for name, value in variables.items():
            digest, text = self._digest(name, value)
            item: dict[str, Any] = {"d": digest}
            if digest not in self._sent:
                assert text is not None
                if len(text) <= INLINE_CHARACTERS:
                    item["j"] = text
                else:
                    item["f"] = f"{incoming}/var-{digest}"
                    uploads[item["f"]] = text.encode()
                self._sent.add(digest)
            bound[name] = item
        return bound, uploads

    def _digest(self, name: str, value: Any) -> tuple[str, str | None]:
        known = self._digests.get(name)
        if known is not None and known[0] is value and isinstance(value, str | int | float | bool | None):
            return known[1], None
        try:
            text = json.dumps(plain(value, strict=True))
        except (TypeError, ValueError) as error:
            raise CodeInterpreterError(f"The variable {name} cannot be sent to the sandbox: {error}") from error
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._digests[name] = (value, digest)
        return digest, text

    def _parameters(self, name: str) -> list[str]:
        tool = self.tools[name]
        with contextlib.suppress(TypeError, ValueError):
            kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
            return [item.name for item in inspect.signature(tool).parameters.values() if item.kind not in kinds]
        return []

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


def plain(value: Any, *, strict: bool = False) -> Any:
    """`value` as JSON data; what cannot be converted becomes its str, or with `strict` a TypeError."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): plain(item, strict=strict) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, strict=strict) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item, strict=strict) for item in sorted(value, key=repr)]
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(), strict=strict)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value), strict=strict)
    if strict:
        raise TypeError(f"a {type(value).__name__} is not JSON data")
    return clean_text(str(value))


def _awaited(awaitable: Any) -> Any:
    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())
