"""A Turn - one user request and its answer - and the only state machine of the product: `advance`."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, assert_never

from fleet_shared.domain.errors import IllegalTransition
from fleet_shared.domain.files import Artifact, Attachment, FileChange

PROMPT_LIMIT: Final = 100_000
#: Leases that may run out before a Turn is given up (turn.md §3).
LOSSES_LIMIT: Final = 2


class TurnStatus(StrEnum):
    """The last three never change."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the Turn has ended."""
        return self not in (TurnStatus.QUEUED, TurnStatus.RUNNING)


class ForcedReason(StrEnum):
    """Why an answer was extracted instead of submitted."""

    ITERATIONS = "iterations"
    DEADLINE = "deadline"
    BUDGET = "budget"
    MODEL_ERROR = "model_error"
    SANDBOX_LOST = "sandbox_lost"


class RetryReason(StrEnum):
    """Why another Run goes on with a Turn."""

    WORKER_LOST = "worker_lost"
    SANDBOX_LOST = "sandbox_lost"
    HANDOVER = "handover"


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a Turn failed: `code` as http-api.md §3 lists, `message` safe to show."""

    code: str
    message: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What the calls to one model came to."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a Turn used over all its attempts. `cost_usd` None is unknown; `estimated`: a model gave no counts."""

    iterations: int = 0
    lm_calls: int = 0
    sub_lm_calls: int = 0
    replayed_calls: int = 0
    children: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    estimated: bool = False
    duration_ms: int = 0
    queue_ms: int = 0
    sandbox_ms: int = 0
    by_model: dict[str, ModelUsage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """What a caller may choose for one Turn; None means the effective setting."""

    model: str | None = None
    sub_model: str | None = None
    recursion_enabled: bool | None = None
    max_iterations: int | None = None
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A Turn as asked for, validated once."""

    prompt: str
    attachment_ids: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    options: TurnOptions = TurnOptions()


@dataclass(frozen=True, slots=True)
class SkillRef:
    """A Skill version a Turn was given."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A Turn as its owner sees it."""

    id: str
    owner_id: str
    session_id: str
    sequence: int
    status: TurnStatus
    prompt: str
    attachments: tuple[Attachment, ...]
    skills: tuple[SkillRef, ...]
    options: dict[str, Any]
    attempt: int
    losses: int
    answer: str | None
    result: dict[str, Any] | None
    forced: ForcedReason | None
    artifacts: tuple[Artifact, ...]
    files_changed: tuple[FileChange, ...]
    usage: Usage | None
    error: TurnError | None
    last_event_seq: int
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class TurnState:
    """The part of a Turn that `advance` decides on. Times are the database's."""

    status: TurnStatus
    attempt: int
    losses: int
    lease_until: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None = None
    worker_id: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker takes a queued Turn, or a running one whose lease ran out."""

    worker_id: str
    lease_s: float


@dataclass(frozen=True, slots=True)
class Renew:
    """The worker of `attempt` keeps its lease, also after it ran out: only a higher attempt ends it."""

    attempt: int
    lease_s: float


@dataclass(frozen=True, slots=True)
class HandOver:
    """The worker of `attempt` gives the Turn back to the queue; no loss is counted."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RequestCancel:
    """The owner wants the Turn to end; a queued one ends at once."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The worker of `attempt` commits the answer; a requested cancel wins over it."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The worker of `attempt` ends the Turn with an error."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ConfirmCancel:
    """The worker of `attempt` has stopped after a requested cancel."""

    attempt: int


@dataclass(frozen=True, slots=True)
class FenceCancel:
    """Somebody other than the worker ends a cancelled Turn whose worker did not within `patience_s`."""

    patience_s: float


@dataclass(frozen=True, slots=True)
class FenceLost:
    """A running Turn without a lease and with no losses left is given up."""


@dataclass(frozen=True, slots=True)
class FenceOverdue:
    """A running Turn past `timeout_s` since its first claim is given up, whatever its worker says."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class ExpireQueued:
    """A Turn that no worker claimed within `max_queue_s` is given up."""

    max_queue_s: float


Command = (
    Claim
    | Renew
    | HandOver
    | RequestCancel
    | Complete
    | Fail
    | ConfirmCancel
    | FenceCancel
    | FenceLost
    | FenceOverdue
    | ExpireQueued
)


def advance(turn: TurnState, command: Command, now: datetime) -> TurnState:
    """The state after `command` at database time `now`.

    Raises IllegalTransition when the state forbids the command: whoever sent it has lost a race and must stop.
    """
    match command:
        case Claim():
            return _claim(turn, command, now)
        case Renew(attempt=attempt, lease_s=lease_s):
            _require(_held_by(turn, attempt), "the attempt no longer holds the Turn")
            return replace(turn, lease_until=now + timedelta(seconds=lease_s))
        case HandOver(attempt=attempt):
            _require(_held_by(turn, attempt), "the attempt no longer holds the Turn")
            return replace(turn, status=TurnStatus.QUEUED, lease_until=None, worker_id=None)
        case RequestCancel():
            return _request_cancel(turn, now)
        case Complete(attempt=attempt):
            _require(_held_by(turn, attempt), "the attempt no longer holds the Turn")
            _require(turn.cancel_requested_at is None, "a cancel was requested")
            return _end(turn, TurnStatus.COMPLETED, now)
        case Fail(attempt=attempt):
            _require(_held_by(turn, attempt), "the attempt no longer holds the Turn")
            return _end(turn, TurnStatus.FAILED, now)
        case ConfirmCancel(attempt=attempt):
            _require(_held_by(turn, attempt), "the attempt no longer holds the Turn")
            _require(turn.cancel_requested_at is not None, "no cancel was requested")
            return _end(turn, TurnStatus.CANCELLED, now)
        case FenceCancel(patience_s=patience_s):
            asked = turn.cancel_requested_at
            _require(turn.status is TurnStatus.RUNNING and asked is not None, "no cancel is under way")
            _require(asked is not None and now - asked >= timedelta(seconds=patience_s), "the worker still has time")
            return _fence(turn, TurnStatus.CANCELLED, now)
        case FenceLost():
            _require(_lease_is_over(turn, now), "the lease still holds")
            _require(turn.losses >= LOSSES_LIMIT, "another worker may still take the Turn")
            return _fence(turn, TurnStatus.FAILED, now)
        case FenceOverdue(timeout_s=timeout_s):
            _require(turn.status is TurnStatus.RUNNING and turn.started_at is not None, "the Turn is not running")
            _require(_older(turn.started_at, timeout_s, now), "the Turn still has time")
            return _fence(turn, TurnStatus.FAILED, now)
        case ExpireQueued(max_queue_s=max_queue_s):
            _require(turn.status is TurnStatus.QUEUED and turn.started_at is None, "the Turn is not waiting")
            _require(_older(turn.created_at, max_queue_s, now), "the Turn may still wait")
            return _end(turn, TurnStatus.FAILED, now)
        case _:
            assert_never(command)


def _claim(turn: TurnState, command: Claim, now: datetime) -> TurnState:
    _require(turn.cancel_requested_at is None, "a cancel was requested")
    lost = _lease_is_over(turn, now)
    _require(turn.status is TurnStatus.QUEUED or lost, "the Turn is not free")
    _require(not lost or turn.losses < LOSSES_LIMIT, "the Turn was lost too often")
    return replace(
        turn,
        status=TurnStatus.RUNNING,
        attempt=turn.attempt + 1,
        losses=turn.losses + (1 if lost else 0),
        lease_until=now + timedelta(seconds=command.lease_s),
        started_at=turn.started_at or now,
        worker_id=command.worker_id,
    )


def _request_cancel(turn: TurnState, now: datetime) -> TurnState:
    match turn.status:
        case TurnStatus.QUEUED:
            return _end(replace(turn, cancel_requested_at=now), TurnStatus.CANCELLED, now)
        case TurnStatus.RUNNING:
            return replace(turn, cancel_requested_at=turn.cancel_requested_at or now)
        case TurnStatus.COMPLETED | TurnStatus.FAILED | TurnStatus.CANCELLED:
            return turn
        case _:
            assert_never(turn.status)


def _held_by(turn: TurnState, attempt: int) -> bool:
    return turn.status is TurnStatus.RUNNING and turn.attempt == attempt


def _lease_is_over(turn: TurnState, now: datetime) -> bool:
    return turn.status is TurnStatus.RUNNING and (turn.lease_until is None or turn.lease_until < now)


def _older(since: datetime | None, seconds: float, now: datetime) -> bool:
    return since is not None and now - since >= timedelta(seconds=seconds)


def _end(turn: TurnState, status: TurnStatus, now: datetime) -> TurnState:
    return replace(turn, status=status, lease_until=None, finished_at=now)


def _fence(turn: TurnState, status: TurnStatus, now: datetime) -> TurnState:
    return replace(_end(turn, status, now), attempt=turn.attempt + 1)


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise IllegalTransition(reason)
