"""Turns: rows in and out. What may follow what is decided by `domain.turn.advance`, never here."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, func, insert, select, update

from fleet_shared.domain.errors import NotFound
from fleet_shared.domain.files import Artifact, Attachment, Change, FileChange
from fleet_shared.domain.turn import (
    ForcedReason,
    ModelUsage,
    SkillRef,
    Turn,
    TurnError,
    TurnState,
    TurnStatus,
    Usage,
)
from fleet_shared.store.artifacts import artifacts_of_turns
from fleet_shared.store.attachments import attachments_of_turns
from fleet_shared.store.engine import Transaction
from fleet_shared.store.events import NewEvent, insert_events
from fleet_shared.store.tables import run, session, turn, turn_attachment


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A Turn about to be accepted. `effective` is what acceptance copied into it, as plain JSON data."""

    id: str
    owner_id: str
    session_id: str
    sequence: int
    prompt: str
    effective: dict[str, Any]
    idempotency_key: str | None
    request_sha256: str
    attachment_ids: Sequence[str]
    base_revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A Turn as the worker and the ledger need it."""

    id: str
    owner_id: str
    session_id: str
    sequence: int
    prompt: str
    effective: dict[str, Any]
    state: TurnState
    last_seq: int
    sandbox_losses: int
    base_revision: int


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What an ended Turn leaves behind; None where it left nothing."""

    answer: str | None = None
    result: dict[str, Any] | None = None
    forced: ForcedReason | None = None
    error: TurnError | None = None
    usage: Usage | None = None
    revision: int | None = None
    files_changed: Sequence[FileChange] = ()


@dataclass(frozen=True, slots=True)
class Replay:
    """An accepted Turn found by its idempotency key."""

    turn_id: str
    request_sha256: str


def insert_turn(tx: Transaction, new: NewTurn, events: Sequence[NewEvent]) -> None:
    """Store an accepted Turn with its first facts and its Attachments."""
    tx.execute(
        insert(turn).values(
            id=new.id,
            owner_id=new.owner_id,
            session_id=new.session_id,
            sequence=new.sequence,
            status=TurnStatus.QUEUED.value,
            prompt=new.prompt,
            effective=json.dumps(new.effective, ensure_ascii=False),
            idempotency_key=new.idempotency_key,
            request_sha256=new.request_sha256,
            attempt=0,
            losses=0,
            sandbox_losses=0,
            last_seq=len(events),
            nudged_at=new.created_at,
            nudges=0,
            created_at=new.created_at,
            base_revision=new.base_revision,
            events_expired=False,
        )
    )
    links = [
        {"turn_id": new.id, "position": position, "attachment_id": attachment_id}
        for position, attachment_id in enumerate(new.attachment_ids)
    ]
    if links:
        tx.execute(insert(turn_attachment), links)
    insert_events(tx, new.id, 1, events)


def find_by_key(tx: Transaction, session_id: str, key: str) -> Replay | None:
    """The Turn a Session accepted under that idempotency key."""
    query = select(turn.c.id, turn.c.request_sha256).where(
        turn.c.session_id == session_id, turn.c.idempotency_key == key
    )
    row = tx.execute(query).one_or_none()
    return Replay(row.id, row.request_sha256) if row is not None else None


def count_open(tx: Transaction, owner_id: str, status: TurnStatus) -> int:
    """How many Turns of the owner are in that (open) status."""
    query = select(func.count()).where(turn.c.owner_id == owner_id, turn.c.status == status.value)
    return tx.execute(query).scalar_one()


def lock_turn(tx: Transaction, turn_id: str) -> TurnRow | None:
    """The Turn's row, locked until the end of the transaction; None when there is none."""
    row = tx.execute(select(turn).where(turn.c.id == turn_id).with_for_update(key_share=True)).one_or_none()
    return _turn_row(row) if row is not None else None


def find_turn(tx: Transaction, turn_id: str) -> TurnRow | None:
    """The Turn's row without a lock."""
    row = tx.execute(select(turn).where(turn.c.id == turn_id)).one_or_none()
    return _turn_row(row) if row is not None else None


def save_state(
    tx: Transaction, row: TurnRow, state: TurnState, events: Sequence[NewEvent], result: TurnResult | None = None
) -> int:
    """Write a Turn's next state, what it leaves behind, and the facts that tell it; the number of the first fact.

    The caller holds the row's lock in this transaction (`lock_turn`).
    """
    values: dict[str, Any] = {
        "status": state.status.value,
        "attempt": state.attempt,
        "losses": state.losses,
        "lease_until": state.lease_until,
        "worker_id": state.worker_id,
        "cancel_requested_at": state.cancel_requested_at,
        "started_at": state.started_at,
        "finished_at": state.finished_at,
        "last_seq": row.last_seq + len(events),
    }
    if result is not None:
        values |= _result_values(result)
    tx.execute(update(turn).where(turn.c.id == row.id).values(values))
    insert_events(tx, row.id, row.last_seq + 1, events)
    return row.last_seq + 1


def count_sandbox_loss(tx: Transaction, turn_id: str, attempt: int) -> int | None:
    """Count a sandbox lost in mid-Turn; how many there are now, None when `attempt` no longer holds the Turn."""
    losses: int | None = tx.execute(
        update(turn)
        .where(turn.c.id == turn_id, turn.c.attempt == attempt, turn.c.status == "running")
        .values(sandbox_losses=turn.c.sandbox_losses + 1)
        .returning(turn.c.sandbox_losses)
    ).scalar_one_or_none()
    return losses


def insert_run(tx: Transaction, *, run_id: str, turn_id: str, attempt: int, worker_id: str, now: datetime) -> None:
    """Record that a worker began an attempt."""
    tx.execute(insert(run).values(id=run_id, turn_id=turn_id, attempt=attempt, worker_id=worker_id, started_at=now))


def end_runs(tx: Transaction, turn_id: str, *, outcome: str, now: datetime) -> None:
    """Close the Turn's open Runs with an outcome: completed, failed, cancelled, handed_over or lost."""
    tx.execute(
        update(run).where(run.c.turn_id == turn_id, run.c.ended_at.is_(None)).values(ended_at=now, outcome=outcome)
    )


def mark_nudged(tx: Transaction, turn_ids: Iterable[str], *, now: datetime) -> None:
    """Record that queue messages were sent for these Turns."""
    tx.execute(update(turn).where(turn.c.id.in_(list(turn_ids))).values(nudged_at=now, nudges=turn.c.nudges + 1))


def get_turn(tx: Transaction, owner_id: str, turn_id: str) -> Turn:
    """The owner's Turn. Raises NotFound."""
    row = tx.execute(select(turn).where(turn.c.id == turn_id, turn.c.owner_id == owner_id)).one_or_none()
    if row is None:
        raise NotFound("turn")
    return _turns(tx, [row])[0]


def list_turns(
    tx: Transaction,
    session_id: str,
    *,
    limit: int,
    after: int | None = None,
    before: int | None = None,
    descending: bool = False,
) -> list[Turn]:
    """A Session's Turns by sequence; the caller has checked the owner."""
    query = select(turn).where(turn.c.session_id == session_id)
    if after is not None:
        query = query.where(turn.c.sequence > after)
    if before is not None:
        query = query.where(turn.c.sequence < before)
    query = query.order_by(turn.c.sequence.desc() if descending else turn.c.sequence).limit(limit)
    return _turns(tx, tx.execute(query).all())


def committed_exchanges(tx: Transaction, session_id: str, *, before_sequence: int) -> list[tuple[str, int, str, str]]:
    """(turn id, sequence, prompt, answer) of a Session's completed Turns before a sequence, in order."""
    query = (
        select(turn.c.id, turn.c.sequence, turn.c.prompt, turn.c.answer)
        .where(
            turn.c.session_id == session_id,
            turn.c.status == TurnStatus.COMPLETED.value,
            turn.c.sequence < before_sequence,
        )
        .order_by(turn.c.sequence)
    )
    return [(row.id, row.sequence, row.prompt, row.answer or "") for row in tx.execute(query)]


def set_feedback(tx: Transaction, turn_id: str, feedback: dict[str, Any]) -> None:
    """Keep the owner's last feedback on a Turn."""
    tx.execute(update(turn).where(turn.c.id == turn_id).values(feedback=json.dumps(feedback, ensure_ascii=False)))


def workspace_revision(tx: Transaction, session_id: str) -> int:
    """The Session's committed Workspace revision."""
    revision: int = tx.execute(select(session.c.workspace_revision).where(session.c.id == session_id)).scalar_one()
    return revision


_OPTION_NAMES: Final = ("model", "sub_model", "recursion_enabled", "max_iterations", "timeout_s")


def _turn_row(row: Row[Any]) -> TurnRow:
    return TurnRow(
        id=row.id,
        owner_id=row.owner_id,
        session_id=row.session_id,
        sequence=row.sequence,
        prompt=row.prompt,
        effective=json.loads(row.effective),
        state=TurnState(
            status=TurnStatus(row.status),
            attempt=row.attempt,
            losses=row.losses,
            lease_until=row.lease_until,
            cancel_requested_at=row.cancel_requested_at,
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            worker_id=row.worker_id,
        ),
        last_seq=row.last_seq,
        sandbox_losses=row.sandbox_losses,
        base_revision=row.base_revision or 0,
    )


def _result_values(result: TurnResult) -> dict[str, Any]:
    return {
        "answer": result.answer,
        "result": json.dumps(result.result, ensure_ascii=False) if result.result is not None else None,
        "forced": result.forced.value if result.forced is not None else None,
        "error": json.dumps(asdict(result.error)) if result.error is not None else None,
        "usage": json.dumps(asdict(result.usage)) if result.usage is not None else None,
        "revision": result.revision,
        "files_changed": json.dumps([asdict(change) for change in result.files_changed], ensure_ascii=False),
    }


def _turns(tx: Transaction, rows: Sequence[Row[Any]]) -> list[Turn]:
    ids = [row.id for row in rows]
    attachments = attachments_of_turns(tx, ids)
    artifacts = artifacts_of_turns(tx, ids)
    return [_turn(row, attachments.get(row.id, ()), artifacts.get(row.id, ())) for row in rows]


def _turn(row: Row[Any], attachments: Sequence[Attachment], artifacts: Sequence[Artifact]) -> Turn:
    effective = json.loads(row.effective)
    return Turn(
        id=row.id,
        owner_id=row.owner_id,
        session_id=row.session_id,
        sequence=row.sequence,
        status=TurnStatus(row.status),
        prompt=row.prompt,
        attachments=tuple(attachments),
        skills=tuple(SkillRef(item["name"], item["version"]) for item in effective.get("skills", [])),
        options={name: effective.get("options", {}).get(name) for name in _OPTION_NAMES},
        attempt=row.attempt,
        losses=row.losses,
        answer=row.answer,
        result=json.loads(row.result) if row.result else None,
        forced=ForcedReason(row.forced) if row.forced else None,
        artifacts=tuple(artifacts),
        files_changed=tuple(
            FileChange(item["path"], Change(item["change"]), item["bytes"])
            for item in json.loads(row.files_changed or "[]")
        ),
        usage=_usage(json.loads(row.usage)) if row.usage else None,
        error=TurnError(**json.loads(row.error)) if row.error else None,
        last_event_seq=row.last_seq,
        cancel_requested_at=row.cancel_requested_at,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _usage(stored: dict[str, Any]) -> Usage:
    by_model = {name: ModelUsage(**counts) for name, counts in stored.pop("by_model", {}).items()}
    return Usage(**stored, by_model=by_model)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An open Turn as the sweep sees it."""

    id: str
    is_queued: bool
    losses: int
    lease_until: datetime | None
    cancel_requested_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    nudged_at: datetime
    nudges: int
    timeout_s: float
    max_queue_s: float


def open_turns(tx: Transaction, *, limit: int = 5000) -> list[OpenTurn]:
    """Every open Turn, oldest first."""
    is_open = turn.c.status.in_([TurnStatus.QUEUED.value, TurnStatus.RUNNING.value])
    found = []
    for row in tx.execute(select(turn).where(is_open).order_by(turn.c.created_at).limit(limit)):
        limits = json.loads(row.effective)["settings"]
        found.append(
            OpenTurn(
                id=row.id,
                is_queued=row.status == TurnStatus.QUEUED.value,
                losses=row.losses,
                lease_until=row.lease_until,
                cancel_requested_at=row.cancel_requested_at,
                created_at=row.created_at,
                started_at=row.started_at,
                nudged_at=row.nudged_at or row.created_at,
                nudges=row.nudges,
                timeout_s=limits["run.timeout_s"],
                max_queue_s=limits["run.max_queue_s"],
            )
        )
    return found


def next_waiting(tx: Transaction, owner_id: str) -> str | None:
    """The owner's oldest queued Turn."""
    query = select(turn.c.id).where(turn.c.owner_id == owner_id, turn.c.status == TurnStatus.QUEUED.value)
    found: str | None = tx.execute(query.order_by(turn.c.created_at).limit(1)).scalar_one_or_none()
    return found


def events_are_expired(tx: Transaction, turn_id: str) -> bool:
    """Whether the Turn's events are past their retention."""
    return bool(tx.execute(select(turn.c.events_expired).where(turn.c.id == turn_id)).scalar_one())
