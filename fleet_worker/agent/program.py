"""One Turn's reasoning: an unmodified `dspy.RLM`, made fresh, run within a scope, and saved when it cannot go on."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import dspy
from dspy.primitives.code_interpreter import CodeInterpreterError
from dspy.primitives.repl_types import REPLHistory
from dspy.utils.exceptions import AdapterParseError

from fleet_shared.domain.errors import NoAnswer, RunFailure, SandboxLost
from fleet_shared.domain.events import Notice, Phase
from fleet_shared.domain.text import clean_text, shorten
from fleet_shared.domain.turn import ForcedReason, Usage
from fleet_worker.agent.adapter import AskingPredict, TolerantAdapter
from fleet_worker.agent.budget import Budget
from fleet_worker.agent.engine import Place
from fleet_worker.agent.failures import failure_of
from fleet_worker.agent.instructions import REPEATED, countdown, environment_instructions, task_instructions
from fleet_worker.agent.models import DEMO, TurnModels
from fleet_worker.agent.observer import Observer
from fleet_worker.agent.seams import Assignment, Emit, Journal, Outcome, Publication, Publish
from fleet_worker.agent.tools import Tools
from fleet_worker.sandbox.interpreter import PARALLEL_TOOLS, CellListener
from fleet_worker.scope import RunStopped, Scope, StopReason

log = logging.getLogger(__name__)

#: Characters of the conversation's end that stand in `recent`.
RECENT_CHARACTERS = 1900
#: Makes an interpreter for a loop: (listener, scope of the loop) -> CodeInterpreter.
MakeInterpreter = Callable[[CellListener, Scope], Any]


class Thinking:
    """One attempt at one Turn. `run` is called once; `usage` tells what was used, also after a failure."""

    def __init__(
        self,
        assignment: Assignment,
        *,
        scope: Scope,
        emit: Emit,
        journal: Journal,
        make_interpreter: MakeInterpreter,
        publish: Publish,
        used: Usage | None = None,
    ) -> None:
        self._assignment = assignment
        self._scope = scope
        self._emit = emit
        self._budget = Budget(assignment.settings.rlm, used)
        self._models = TurnModels(emit=emit, budget=self._budget, journal=journal)
        self._observer = Observer(emit, self._budget)
        self._tools = Tools(self._budget, publish)
        self._make_interpreter = make_interpreter
        self._failed_code: str | None = None
        self._spent = False

    @property
    def usage(self) -> Usage:
        """What was used so far."""
        return self._budget.usage

    def run(self) -> Outcome:
        """The answer. Raises RunFailure, or RunStopped when the Run (not only its loop) has to stop."""
        if self._assignment.root.endpoint.model == DEMO:
            message = "This answer comes from the demo model, which follows rules; FLEET_MODEL names a real one."
            self._emit(Notice("info", "demo_model", message), ())
        self._emit(Phase("thinking", ""), ())
        try:
            with self._loop_scope() as loop_scope:
                return self._think(loop_scope)
        finally:
            self._models.close()

    def _think(self, loop_scope: Scope) -> Outcome:
        rlm = self._program(loop_scope)
        lm = self._model("root", loop_scope)
        with self._context(lm):
            try:
                prediction = rlm(**self._inputs())
            except RunStopped as stopped:
                self._scope.check()
                if stopped.reason is not StopReason.DEADLINE and not self._spent:
                    raise
                forced = ForcedReason.BUDGET if self._spent else ForcedReason.DEADLINE
                return self._extract(rlm, forced, None)
            except CodeInterpreterError as error:
                self._scope.check()
                raise SandboxLost(shorten(str(error), 300)) from error
            except (dspy.LMError, AdapterParseError) as error:
                self._scope.check()
                return self._extract(rlm, ForcedReason.MODEL_ERROR, failure_of(error))
        answer = clean_text(str(prediction.answer))
        return self._outcome(answer, None if self._was_submitted(prediction) else ForcedReason.ITERATIONS)

    def _was_submitted(self, prediction: Any) -> bool:
        trajectory = getattr(prediction, "trajectory", None) or []
        last = trajectory[-1] if trajectory else {}
        return str(last.get("output", "") if isinstance(last, dict) else "").startswith("FINAL:")

    def _extract(self, rlm: Any, reason: ForcedReason, failure: RunFailure | None) -> Outcome:
        """One last answer from what the loop has found; `failure` is raised when that does not work either."""
        if not self._observer.steps:
            raise failure or NoAnswer("The Turn ended before the model had done anything.")
        history = REPLHistory()
        for step in self._observer.steps:
            history = history.append(reasoning=step.reasoning, code=step.code, output=step.output)
        try:
            with self._context(self._model("root", self._scope)):
                found = rlm.extract(variables_info=self._observer.variables_info, repl_history=history)
        except (dspy.LMError, AdapterParseError) as error:
            self._scope.check()
            raise failure or failure_of(error) from error
        answer = clean_text(str(found.answer or ""))
        if not answer.strip():
            raise failure or NoAnswer
        return self._outcome(answer, reason)

    def _outcome(self, answer: str, forced: ForcedReason | None) -> Outcome:
        publications: tuple[Publication, ...] = self._tools.publications
        return Outcome(answer=answer, usage=self._budget.usage, forced=forced, publications=publications)

    def _program(self, loop_scope: Scope) -> Any:
        assignment, limits = self._assignment, self._assignment.settings.rlm

        def make() -> Any:
            return self._make_interpreter(self._observer, loop_scope)

        make.execution_instructions = environment_instructions(  # type: ignore[attr-defined]  # DSPy reads it there
            assignment.settings, network=assignment.network, parallel=PARALLEL_TOOLS
        )
        rlm = dspy.RLM(
            _signature(task_instructions(assignment.settings)),
            max_iters=limits.max_iterations,
            max_llm_calls=limits.max_sub_lm_calls,
            max_output_chars=max(limits.max_output_chars, 1) + 1000,
            tools=self._tools.functions(),
            sub_lm=self._models.make(assignment.sub, role="sub", place=self._place(), scope=loop_scope),
            interpreter_factory=make,
        )
        rlm.generate_action = AskingPredict(
            rlm.generate_action.signature, note=self._note, unreadable=self._note_unreadable
        )
        self._observer.watch(rlm.generate_action, limits.max_iterations)
        return rlm

    def _note(self, iteration: str) -> str:
        """What to add to the `iteration` field; ends the loop when the budget is spent."""
        if self._budget.is_spent:
            self._spent = True
            raise RunStopped(StopReason.BUDGET)
        number, _, total = iteration.partition("/")
        remark = countdown(int(total) - int(number))
        steps = self._observer.steps
        if len(steps) >= 2 and steps[-1].code == steps[-2].code and steps[-1].output.startswith("[Error]"):
            remark += REPEATED
        return remark

    def _note_unreadable(self) -> None:
        message = "The model's answer could not be read; it is asked again."
        self._emit(Notice("warning", "unreadable_answer", message), ())

    def _model(self, role: str, scope: Scope) -> Any:
        return self._models.make(self._assignment.root, role=role, place=self._place(), scope=scope)

    def _place(self) -> Place:
        return Place((), self._observer.iteration)

    @contextlib.contextmanager
    def _context(self, lm: Any) -> Iterator[None]:
        with dspy.context(
            lm=lm,
            adapter=TolerantAdapter(),
            callbacks=[self._observer],
            trace=None,
            disable_history=True,
            max_history_size=0,
        ):
            yield

    @contextlib.contextmanager
    def _loop_scope(self) -> Iterator[Scope]:
        """A scope that ends with the Run's, and before it at the soft deadline, so that an answer can be extracted."""
        soft = self._scope.soft_remaining()
        loop_scope = Scope.lasting(soft)
        timer = threading.Timer(soft, loop_scope.stop, (StopReason.DEADLINE,))
        timer.daemon = True

        def pass_on() -> None:
            loop_scope.stop(self._scope.reason or StopReason.CANCELLED)

        with self._scope.on_stop(pass_on):
            timer.start()
            try:
                yield loop_scope
            finally:
                timer.cancel()

    def _inputs(self) -> dict[str, Any]:
        assignment = self._assignment
        return {
            "question": clean_text(assignment.question),
            "recent": _recent(assignment),
            "files": [
                {
                    "path": file.path,
                    "name": file.name,
                    "bytes": file.bytes,
                    "media_type": file.media_type,
                    "lines": file.lines,
                    "sha256": file.sha256,
                    "source": file.source,
                    "preview": clean_text(file.preview),
                }
                for file in assignment.files
            ],
            "history": [
                {
                    "turn": item.turn,
                    "question": clean_text(item.question),
                    "answer": clean_text(item.answer),
                    "artifacts": list(item.artifacts),
                }
                for item in assignment.history
            ],
            "notes": [clean_text(note) for note in assignment.notes],
        }


def _signature(instructions: str) -> Any:
    fields = {
        "question": (str, dspy.InputField(desc="what the person asks")),
        "recent": (str, dspy.InputField(desc="the end of the conversation so far")),
        "files": (list[dict[str, Any]], dspy.InputField(desc="attached files and Workspace files, by path")),
        "history": (list[dict[str, Any]], dspy.InputField(desc="every earlier question and answer")),
        "notes": (list[str], dspy.InputField(desc="things to keep in mind")),
        "answer": (str, dspy.OutputField(desc="the answer in Markdown")),
    }
    return dspy.Signature(fields, instructions)


def _recent(assignment: Assignment) -> str:
    """The last exchanges, as many as fit."""
    if not assignment.history:
        return "(this is the first question)"
    texts: list[str] = []
    left = RECENT_CHARACTERS
    for item in reversed(assignment.history):
        text = f"Q: {shorten(item.question, 500)}\nA: {shorten(item.answer, 700)}"
        if texts and len(text) > left:
            break
        texts.append(text)
        left -= len(text)
    return clean_text("\n\n".join(reversed(texts)))
