"""DSPy's callbacks and the interpreter's words, told as facts. The only translation between the two.

Also keeps the steps of the loop, from which a last answer can be extracted when the loop cannot go on.
"""

import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from dspy.utils.callback import BaseCallback

from fleet_shared.domain.events import (
    CellFinished,
    Code,
    IterationStarted,
    Notice,
    Output,
    Reasoning,
    ToolFinished,
    ToolStarted,
)
from fleet_shared.domain.events import Scope as EventScope
from fleet_shared.domain.text import shorten
from fleet_worker.agent.budget import Budget
from fleet_worker.agent.seams import Emit
from fleet_worker.sandbox.protocol import AnsweredCall, CellDone

#: Characters of a tool's arguments or result that are told.
PREVIEW: Final = 1000
#: Tool facts told per second of a cell; the others are counted in one notice.
TOOLS_PER_S: Final = 50
#: Seconds that outputs are gathered before they are told (≤ 25 facts a second).
GATHER_S: Final = 0.04


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration that has ended."""

    reasoning: str
    code: str
    output: str


class Observer(BaseCallback):
    """Watches one loop, the root's or a child's."""

    def __init__(self, emit: Emit, budget: Budget, *, path: EventScope = ()) -> None:
        self._emit = emit
        self._budget = budget
        self._path = path
        self._lock = threading.Lock()
        self._action: Any = None
        self._rlm_inputs: str = ""
        self._reasoning = ""
        self._code = ""
        self._tools: dict[str, tuple[str, float, bool]] = {}
        self._tool_window = (0.0, 0)
        self._tools_untold = 0
        self._gathered: list[tuple[str, str]] = []
        self._gathered_at = 0.0
        self.n = 0
        self.max = 0
        self.steps: list[Step] = []
        self.variables_info: str = ""

    def watch(self, action: Any, max_iterations: int) -> None:
        """`action` is the loop's action predictor."""
        self._action = action
        self.max = max_iterations

    def iteration(self) -> int:
        """The number of the present iteration."""
        return self.n

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """The action predictor is called: an iteration begins."""
        if instance is not self._action:
            return
        given = inputs.get("kwargs", inputs)
        self.variables_info = given.get("variables_info", "")
        self.n += 1
        self._budget.iteration()
        self._tell(IterationStarted(self.n, self.max))

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """The action predictor has answered: reasoning and code are known."""
        code = getattr(outputs, "code", None) if exception is None else None
        if code is None or not hasattr(outputs, "reasoning"):
            return
        self._reasoning, self._code = str(outputs.reasoning or ""), str(code)
        self._tell(Reasoning(self.n, self._reasoning))
        self._tell(Code(self.n, self._code))

    def on_interpreter_execute_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """A cell has ended: keep the step."""
        shown = str(outputs) if exception is None else f"[Error] {exception}"
        self.steps.append(Step(self._reasoning, self._code, shown))

    def on_interpreter_tool_call_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """A tool is called."""
        name = str(inputs.get("tool_name", ""))
        told = self._may_tell_tool()
        with self._lock:
            self._tools[call_id] = (name, time.monotonic(), told)
        if told:
            self._flush()
            self._tell(ToolStarted(call_id, name, _preview(inputs.get("kwargs") or {})))

    def on_interpreter_tool_call_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """A tool has answered."""
        with self._lock:
            name, began, told = self._tools.pop(call_id, ("", time.monotonic(), False))
        if not told or not name:
            return
        error = shorten(f"{type(exception).__name__}: {exception}", PREVIEW) if exception is not None else None
        result = "" if exception is not None else _preview(outputs)
        self._tell(ToolFinished(call_id, exception is None, result, int((time.monotonic() - began) * 1000), error))

    def output(self, stream: str, text: str) -> None:
        """A running cell wrote text; told in order, gathered for a moment."""
        with self._lock:
            if self._gathered and self._gathered[-1][0] == stream:
                self._gathered[-1] = (stream, self._gathered[-1][1] + text)
            else:
                self._gathered.append((stream, text))
            due = time.monotonic() - self._gathered_at >= GATHER_S or sum(len(t) for _, t in self._gathered) > 16_000
        if due:
            self._flush()

    def finished(self, done: CellDone) -> None:
        """A cell has ended."""
        self._flush()
        if self._tools_untold:
            self._notice("info", "tools_untold", f"{self._tools_untold} more tool calls are not listed.")
            self._tools_untold = 0
        if done.lost:
            self._notice("warning", "namespace_lost", "The interpreter was lost; the model starts with a new one.")
        if done.truncated:
            self._notice("info", "output_truncated", f"The cell wrote {done.chars} characters; some are left out.")
        error = f"{done.error.kind}: {done.error.message}" if done.error is not None else None
        self._tell(
            CellFinished(
                n=self.n,
                status=done.status,
                duration_ms=done.duration_ms,
                chars=done.chars,
                truncated=done.truncated,
                replayed=done.replayed,
                error=shorten(error, PREVIEW) if error is not None else None,
            )
        )

    def answered_before(self, call: AnsweredCall) -> None:
        """A kept cell's tool call; the tools themselves apply it again."""

    def _may_tell_tool(self) -> bool:
        with self._lock:
            second, count = self._tool_window
            now = time.monotonic()
            if now - second >= 1.0:
                second, count = now, 0
            self._tool_window = (second, count + 1)
            if count >= TOOLS_PER_S:
                self._tools_untold += 1
                return False
            return True

    def _flush(self) -> None:
        with self._lock:
            gathered, self._gathered = self._gathered, []
            self._gathered_at = time.monotonic()
            for stream, text in gathered:
                self._tell(Output(self.n, stream, text))

    def _notice(self, level: str, code: str, message: str) -> None:
        self._tell(Notice(level, code, message))

    def _tell(self, fact: Any) -> None:
        self._emit(fact, self._path)


def _preview(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = str(value)
    return shorten(text, PREVIEW)
