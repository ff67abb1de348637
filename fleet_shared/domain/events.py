"""What is told about a Turn: one frozen dataclass per fact and per draft, registered by its wire type.

A fact is numbered and stored before anyone sees it; a draft is neither, and never needed to understand a Turn.
Field names are those of the wire (http-api.md §4); a field whose default is None is left out of the wire when None.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, TypeVar

#: Version of the facts' format, on the wire as `v`.
FORMAT: Final = 1

Scope = tuple[str, ...]


class Fact:
    """A numbered, immutable statement about a Turn."""

    __slots__ = ()
    type: ClassVar[str]


class Draft:
    """A provisional view of what the model is writing; not stored."""

    __slots__ = ()
    type: ClassVar[str]


FACTS: Final[dict[str, type[Fact]]] = {}
DRAFTS: Final[dict[str, type[Draft]]] = {}


F = TypeVar("F", bound=Fact)
D = TypeVar("D", bound=Draft)


def _fact(type_: str) -> Callable[[type[F]], type[F]]:
    def register(cls: type[F]) -> type[F]:
        cls.type = type_
        FACTS[type_] = cls
        return cls

    return register


def _draft(type_: str) -> Callable[[type[D]], type[D]]:
    def register(cls: type[D]) -> type[D]:
        cls.type = type_
        DRAFTS[type_] = cls
        return cls

    return register


@dataclass(frozen=True, slots=True)
class Envelope:
    """Where and when something was told. `seq` is None until a fact is stored, and for ever in a draft."""

    turn_id: str
    at: datetime
    seq: int | None = None
    run_id: str | None = None
    attempt: int | None = None
    scope: Scope = ()


@_fact("turn.queued")
@dataclass(frozen=True, slots=True)
class TurnQueued(Fact):
    """The Turn was accepted."""

    session_id: str


@_fact("turn.started")
@dataclass(frozen=True, slots=True)
class TurnStarted(Fact):
    """A worker claimed the Turn; told at each attempt."""

    worker: str
    model: str
    sub_model: str
    limits: dict[str, Any]


@_fact("run.retried")
@dataclass(frozen=True, slots=True)
class RunRetried(Fact):
    """Another attempt goes on; `reason` is worker_lost, sandbox_lost or handover."""

    reason: str
    losses: int


@_fact("phase")
@dataclass(frozen=True, slots=True)
class Phase(Fact):
    """A slow part began: sandbox, staging, thinking or committing."""

    name: str
    detail: str


@_fact("iteration.started")
@dataclass(frozen=True, slots=True)
class IterationStarted(Fact):
    """Iteration `n` of at most `max` began."""

    n: int
    max: int
    replayed: bool = False


@_draft("reasoning.delta")
@dataclass(frozen=True, slots=True)
class ReasoningDelta(Draft):
    """The model wrote more reasoning."""

    n: int
    text: str


@_draft("code.delta")
@dataclass(frozen=True, slots=True)
class CodeDelta(Draft):
    """The model wrote more code."""

    n: int
    text: str


@_draft("draft")
@dataclass(frozen=True, slots=True)
class DraftSnapshot(Draft):
    """All that was written in iteration `n` so far; empty texts mean: throw away what was shown."""

    n: int
    reasoning: str
    code: str


@_fact("reasoning")
@dataclass(frozen=True, slots=True)
class Reasoning(Fact):
    """The model's reasoning of iteration `n`."""

    n: int
    text: str
    part: int | None = None
    parts: int | None = None


@_fact("code")
@dataclass(frozen=True, slots=True)
class Code(Fact):
    """The Python of iteration `n`."""

    n: int
    code: str
    part: int | None = None
    parts: int | None = None


@_fact("output")
@dataclass(frozen=True, slots=True)
class Output(Fact):
    """Text the cell of iteration `n` wrote; `stream` is stdout or stderr."""

    n: int
    stream: str
    text: str


@_fact("cell.finished")
@dataclass(frozen=True, slots=True)
class CellFinished(Fact):
    """The cell ended: `status` is ok, error, timeout, submit or crashed; `chars` is the true size of its output."""

    n: int
    status: str
    duration_ms: int
    chars: int
    truncated: bool
    replayed: bool = False
    error: str | None = None


@_fact("lm.finished")
@dataclass(frozen=True, slots=True)
class LmFinished(Fact):
    """A model call ended; `role` is root, sub or child, `cost_usd` None when unknown."""

    role: str
    model: str
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_ms: int
    replayed: bool = False
    error: str | None = None


@_fact("tool.started")
@dataclass(frozen=True, slots=True)
class ToolStarted(Fact):
    """A host tool was called; `args` is a bounded preview."""

    call_id: str
    name: str
    args: str


@_fact("tool.finished")
@dataclass(frozen=True, slots=True)
class ToolFinished(Fact):
    """A host tool answered; `result` is a bounded preview."""

    call_id: str
    ok: bool
    result: str
    duration_ms: int
    error: str | None = None


@_fact("child.started")
@dataclass(frozen=True, slots=True)
class ChildStarted(Fact):
    """A child RLM began; its inner facts carry its id in their scope."""

    child_id: str
    task: str


@_fact("child.finished")
@dataclass(frozen=True, slots=True)
class ChildFinished(Fact):
    """A child RLM ended; `answer` is bounded."""

    child_id: str
    status: str
    answer: str
    usage: dict[str, Any]
    duration_ms: int


@_fact("skill.loaded")
@dataclass(frozen=True, slots=True)
class SkillLoaded(Fact):
    """The agent loaded a Skill's instructions."""

    name: str
    version: str


@_fact("notice")
@dataclass(frozen=True, slots=True)
class Notice(Fact):
    """Something the reader should know; `level` is info, warning or error."""

    level: str
    code: str
    message: str


@_fact("artifact")
@dataclass(frozen=True, slots=True)
class ArtifactPublished(Fact):
    """The Turn published a file."""

    id: str
    session_id: str
    path: str
    title: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    created_at: str


@_fact("file.changed")
@dataclass(frozen=True, slots=True)
class FileChanged(Fact):
    """The Turn added, modified or deleted a Workspace file."""

    path: str
    change: str
    bytes: int


@_fact("usage")
@dataclass(frozen=True, slots=True)
class UsageReported(Fact):
    """What the Turn used, over all its attempts."""

    iterations: int
    lm_calls: int
    sub_lm_calls: int
    replayed_calls: int
    children: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    estimated: bool
    duration_ms: int
    queue_ms: int
    sandbox_ms: int
    by_model: dict[str, Any]


@_fact("answer")
@dataclass(frozen=True, slots=True)
class Answer(Fact):
    """The committed answer in Markdown; a large `result` is left out with `result_in_turn`."""

    text: str
    result: dict[str, Any] | None = None
    result_in_turn: bool | None = None
    forced: dict[str, str] | None = None
    part: int | None = None
    parts: int | None = None


@_fact("turn.completed")
@dataclass(frozen=True, slots=True)
class TurnCompleted(Fact):
    """The Turn was answered."""

    duration_ms: int


@_fact("turn.failed")
@dataclass(frozen=True, slots=True)
class TurnFailed(Fact):
    """The Turn ended without an answer."""

    code: str
    message: str
    retryable: bool


@_fact("turn.cancelled")
@dataclass(frozen=True, slots=True)
class TurnCancelled(Fact):
    """The Turn was ended on request."""

    reason: str


TERMINAL_TYPES: Final = frozenset({TurnCompleted.type, TurnFailed.type, TurnCancelled.type})
