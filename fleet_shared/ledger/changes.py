"""The ledger of a process: each method is one status change in one transaction, published after its commit."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from fleet_shared.contract.frames import encode, split
from fleet_shared.domain.errors import IllegalTransition, NotFound, RunFailure
from fleet_shared.domain.events import Envelope, Fact, TurnCancelled, TurnCompleted, TurnFailed
from fleet_shared.domain.ids import new_id
from fleet_shared.domain.turn import (
    Claim,
    Command,
    Complete,
    ConfirmCancel,
    Fail,
    HandOver,
    Renew,
    RequestCancel,
    RetryReason,
    TurnError,
    TurnState,
    TurnStatus,
    Usage,
    advance,
)
from fleet_shared.ledger.claims import Claimed, DescribeStart, retry_fact
from fleet_shared.ledger.commit import Commit, NotHeld, commit_facts, usage_fact
from fleet_shared.messaging.live import LivePublisher
from fleet_shared.messaging.queue import Nudge
from fleet_shared.store import Database, Transaction, database_now, sandboxes
from fleet_shared.store.artifacts import insert_artifact
from fleet_shared.store.events import NewEvent, StoredEvent
from fleet_shared.store.journal import clear_journal
from fleet_shared.store.preferences import lock_owner
from fleet_shared.store.sessions import lock_session, update_session
from fleet_shared.store.turns import (
    TurnResult,
    TurnRow,
    count_open,
    end_runs,
    find_turn,
    insert_run,
    lock_turn,
    next_waiting,
    save_state,
)
from fleet_shared.store.workspace import write_changes

_OUTCOMES: Final = {
    TurnStatus.COMPLETED: "completed",
    TurnStatus.FAILED: "failed",
    TurnStatus.CANCELLED: "cancelled",
}


class Ledger:
    """Changes the status of Turns for one process. Safe to share between threads."""

    def __init__(self, database: Database, publisher: LivePublisher, nudge: Nudge) -> None:
        """`nudge` sends a queue message for a Turn; what it cannot send the sweep sends again."""
        self._database = database
        self._publisher = publisher
        self._nudge = nudge

    def claim(
        self,
        turn_id: str,
        *,
        worker_id: str,
        lease_s: float,
        max_running: int,
        describe: DescribeStart,
        reason: RetryReason | None = None,
    ) -> Claimed | None:
        """Take a Turn; None when it is not free, or its owner has `max_running` Turns running already."""

        def work(tx: Transaction) -> tuple[Claimed, list[StoredEvent]] | None:
            known = find_turn(tx, turn_id)
            if known is None:
                return None
            lock_owner(tx, known.owner_id)
            row = lock_turn(tx, turn_id)
            if row is None or (
                row.state.status is TurnStatus.QUEUED
                and count_open(tx, row.owner_id, TurnStatus.RUNNING) >= max_running
            ):
                return None
            now = database_now(tx)
            try:
                state = advance(row.state, Claim(worker_id, lease_s), now)
            except IllegalTransition:
                return None
            end_runs(tx, turn_id, outcome="lost", now=now)
            run_id = new_id()
            insert_run(tx, run_id=run_id, turn_id=turn_id, attempt=state.attempt, worker_id=worker_id, now=now)
            retried = retry_fact(row.state, state, reason)
            facts: list[Fact] = [*([retried] if retried else []), describe(row)]
            events = _events(facts, _envelope(turn_id, run_id, state.attempt))
            first = save_state(tx, row, state, events)
            return _claimed(row, state, run_id, now), _stored(first, events)

        found = self._database.run(work)
        if found is None:
            return None
        self._publisher.facts(turn_id, found[1])
        return found[0]

    def renew(self, turn_id: str, *, attempt: int, lease_s: float) -> bool:
        """Keep the lease; whether a cancel was requested. Raises NotHeld."""

        def work(tx: Transaction) -> bool:
            row = _locked(tx, turn_id)
            state = _advance(row, Renew(attempt, lease_s), database_now(tx))
            save_state(tx, row, state, [])
            return state.cancel_requested_at is not None

        return self._database.run(work)

    def hand_over(self, turn_id: str, *, attempt: int, nudge: bool = True) -> None:
        """Give a Turn back to the queue and, with `nudge`, wake another worker. Raises NotHeld."""

        def work(tx: Transaction) -> None:
            row = _locked(tx, turn_id)
            now = database_now(tx)
            state = _advance(row, HandOver(attempt), now)
            end_runs(tx, turn_id, outcome="handed_over", now=now)
            save_state(tx, row, state, [])

        self._database.run(work)
        if nudge:
            self._nudge(turn_id)

    def request_cancel(self, turn_id: str) -> TurnState:
        """Ask for the Turn's end: a queued one ends now, an ended one stays as it is. The state afterwards."""

        def work(tx: Transaction) -> tuple[TurnRow, TurnState, list[StoredEvent]]:
            row = lock_turn(tx, turn_id)
            if row is None:
                raise NotFound("turn")
            state = advance(row.state, RequestCancel(), database_now(tx))
            if state == row.state:
                return row, state, []
            ended = state.status is TurnStatus.CANCELLED
            return row, state, _end(tx, row, state, [TurnCancelled("user")] if ended else [])

        row, state, events = self._database.run(work)
        self._after(row, state, events)
        return state

    def complete(self, turn_id: str, *, run_id: str, attempt: int, commit: Commit) -> None:
        """Commit an answer with all that belongs to it. Raises NotHeld when the attempt lost or a cancel won."""

        def work(tx: Transaction) -> tuple[TurnRow, TurnState, list[StoredEvent]]:
            known = find_turn(tx, turn_id)
            if known is None:
                raise NotHeld
            session = lock_session(tx, known.owner_id, known.session_id)
            row = _locked(tx, turn_id)
            now = database_now(tx)
            state = _advance(row, Complete(attempt), now)
            revision = session.workspace_revision
            if commit.changes_workspace:
                revision += 1
                write_changes(tx, row.session_id, revision=revision, written=commit.written, removed=commit.removed)
            for item in commit.artifacts:
                insert_artifact(tx, item.artifact, blob_id=item.blob_id)
            update_session(tx, row.session_id, updated_at=now, workspace_revision=revision)
            clear_journal(tx, turn_id)
            end_runs(tx, turn_id, outcome="completed", now=now)
            result_text = json.dumps(commit.result, ensure_ascii=False) if commit.result is not None else ""
            forced = {"reason": commit.forced.value} if commit.forced is not None else None
            facts = commit_facts(commit, forced_detail=forced, result_bytes=len(result_text.encode("utf-8")))
            facts.append(TurnCompleted(commit.usage.duration_ms))
            events = _events(facts, _envelope(turn_id, run_id, attempt))
            result = TurnResult(
                answer=commit.answer,
                result=commit.result,
                forced=commit.forced,
                usage=commit.usage,
                revision=revision,
                files_changed=commit.files_changed,
            )
            first = save_state(tx, row, state, events, result)
            return row, state, _stored(first, events)

        row, state, events = self._database.run(work)
        self._after(row, state, events)

    def fail(self, turn_id: str, *, attempt: int, failure: RunFailure, usage: Usage | None = None) -> None:
        """End a Turn with an error. Raises NotHeld."""
        error = TurnError(failure.code, failure.detail, failure.retryable)
        self.end(turn_id, Fail(attempt), [failed_fact(error)], TurnResult(error=error, usage=usage), usage)

    def confirm_cancel(self, turn_id: str, *, attempt: int, usage: Usage | None = None) -> None:
        """End a Turn whose cancel was requested. Raises NotHeld."""
        self.end(turn_id, ConfirmCancel(attempt), [TurnCancelled("user")], TurnResult(usage=usage), usage)

    def end(
        self, turn_id: str, command: Command, facts: Sequence[Fact], result: TurnResult, usage: Usage | None = None
    ) -> None:
        """End a Turn without an answer: its sandbox becomes unclean, its journal is forgotten. Raises NotHeld."""
        told: list[Fact] = [*([usage_fact(usage)] if usage is not None else []), *facts]

        def work(tx: Transaction) -> tuple[TurnRow, TurnState, list[StoredEvent]]:
            row = _locked(tx, turn_id)
            state = _advance(row, command, database_now(tx))
            return row, state, _end(tx, row, state, told, result)

        row, state, events = self._database.run(work)
        self._after(row, state, events)

    def _after(self, row: TurnRow, state: TurnState, events: list[StoredEvent]) -> None:
        self._publisher.facts(row.id, events)
        if state.status.is_terminal and not row.state.status.is_terminal:
            self._publisher.snapshot(row.id, None)
            waiting = self._database.run(lambda tx: next_waiting(tx, row.owner_id))
            if waiting is not None:
                self._nudge(waiting)


def failed_fact(error: TurnError) -> TurnFailed:
    """The terminal fact of a failed Turn."""
    return TurnFailed(code=error.code, message=error.message, retryable=error.retryable)


def _end(
    tx: Transaction, row: TurnRow, state: TurnState, facts: Sequence[Fact], result: TurnResult | None = None
) -> list[StoredEvent]:
    events = _events(facts, _envelope(row.id, None, state.attempt or None))
    first = save_state(tx, row, state, events, result)
    if state.status.is_terminal:
        now = state.finished_at or database_now(tx)
        clear_journal(tx, row.id)
        end_runs(tx, row.id, outcome=_OUTCOMES[state.status], now=now)
        update_session(tx, row.session_id, updated_at=now)
        if row.state.attempt:
            sandboxes.mark_unclean(tx, row.session_id)
    return _stored(first, events)


def _locked(tx: Transaction, turn_id: str) -> TurnRow:
    row = lock_turn(tx, turn_id)
    if row is None:
        raise NotHeld
    return row


def _advance(row: TurnRow, command: Command, now: datetime) -> TurnState:
    try:
        return advance(row.state, command, now)
    except IllegalTransition as error:
        raise NotHeld(error.detail) from error


def _claimed(row: TurnRow, state: TurnState, run_id: str, now: datetime) -> Claimed:
    return Claimed(
        turn_id=row.id,
        owner_id=row.owner_id,
        session_id=row.session_id,
        sequence=row.sequence,
        run_id=run_id,
        attempt=state.attempt,
        losses=state.losses,
        prompt=row.prompt,
        effective=row.effective,
        base_revision=row.base_revision,
        created_at=state.created_at,
        started_at=state.started_at or now,
        claimed_at=now,
    )


def _envelope(turn_id: str, run_id: str | None, attempt: int | None) -> Envelope:
    return Envelope(turn_id=turn_id, at=datetime.now(UTC), run_id=run_id, attempt=attempt)


def _events(facts: Sequence[Fact], envelope: Envelope) -> list[NewEvent]:
    return [NewEvent(part.type, encode(part, envelope)) for fact in facts for part in split(fact)]


def _stored(first: int, events: Sequence[NewEvent]) -> list[StoredEvent]:
    return [StoredEvent(first + offset, item.type, item.body) for offset, item in enumerate(events)]
