"""One Run from claim to commit: claim, prepare, think, commit - and what happens when one of them cannot."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from fleet_shared.blobs import Blob
from fleet_shared.domain.errors import (
    FleetError,
    InternalFailure,
    ModelInvalidRequest,
    RunFailure,
    RunTimedOut,
    SandboxLost,
    Unavailable,
)
from fleet_shared.domain.events import Draft, Fact, Notice, Phase, TurnStarted
from fleet_shared.domain.events import Scope as EventScope
from fleet_shared.domain.files import Artifact, media_type_of
from fleet_shared.domain.ids import new_id
from fleet_shared.domain.turn import RetryReason, TurnStatus, Usage
from fleet_shared.ledger import Claimed, Commit, CommitArtifact, Ledger, NotHeld
from fleet_shared.messaging.event_log import EventWriter, LogFenced, TurnLog
from fleet_shared.settings import ModelChoice, Models, Settings
from fleet_shared.store import Database, Transaction
from fleet_shared.store.artifacts import artifacts_of_turns
from fleet_shared.store.attachments import visible_attachments
from fleet_shared.store.turns import TurnRow, committed_exchanges, count_sandbox_loss, find_turn
from fleet_shared.store.workspace import manifest
from fleet_worker.agent.program import Thinking
from fleet_worker.agent.seams import Assignment, Exchange, Outcome, Publication
from fleet_worker.journal import TurnJournal
from fleet_worker.preparation import Preparation
from fleet_worker.running import RunningTurns
from fleet_worker.sandbox.interpreter import CellLimits, CellListener, SandboxInterpreter
from fleet_worker.sandbox.lifecycle import Sandboxes
from fleet_worker.scope import RunStopped, Scope, StopReason
from fleet_worker.staging import Harvest, Plan, describe, make_plan

log = logging.getLogger(__name__)

#: Sandboxes a Turn may lose and still be started again (turn.md §3).
SANDBOX_LOSSES: Final = 2
#: Share of the time after which the loop hands in what it has, and the seconds kept for that at the end.
SOFT_SHARE: Final = 0.8
SOFT_FLOOR: Final = 0.5
EXTRACTION_S: Final = 45.0
FLUSH_S: Final = 30.0
#: Seconds between tries to commit while the database is away.
COMMIT_RETRY_S: Final = 1.0
LIMITS_TOLD: Final = (
    "run.timeout_s",
    "rlm.max_iterations",
    "rlm.cell_timeout_s",
    "rlm.max_sub_lm_calls",
    "rlm.max_tool_calls",
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What every Run of a process shares."""

    database: Database
    ledger: Ledger
    writer: EventWriter
    running: RunningTurns
    sandboxes: Sandboxes
    models: Models
    worker_id: str
    worker_name: str
    lease_s: float
    max_running: int


class Pipeline:
    """Runs Turns, one call each. Safe to use from any number of threads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def run(self, turn_id: str) -> None:
        """Run a Turn if it is free. Everything that goes wrong ends in the Turn's own state, never here."""
        claimed = self._claim(turn_id, None)
        while claimed is not None:
            again = _Run(self._parts, claimed).execute()
            claimed = self._claim(turn_id, RetryReason.SANDBOX_LOST) if again else None

    def _claim(self, turn_id: str, reason: RetryReason | None) -> Claimed | None:
        parts = self._parts
        return parts.ledger.claim(
            turn_id,
            worker_id=parts.worker_id,
            lease_s=parts.lease_s,
            max_running=parts.max_running,
            describe=self._describe,
            reason=reason,
        )

    def _describe(self, row: TurnRow) -> TurnStarted:
        names, values = row.effective["models"], row.effective["settings"]
        return TurnStarted(
            worker=self._parts.worker_name,
            model=names["root"],
            sub_model=names["sub"],
            limits={key: values[key] for key in LIMITS_TOLD},
        )


class _Run:
    """One attempt."""

    def __init__(self, parts: Parts, claimed: Claimed) -> None:
        self._parts = parts
        self._claimed = claimed
        self._settings = Settings().with_values(claimed.effective["settings"])
        self._scope = _scope_of(claimed, self._settings)
        self._log: TurnLog = parts.writer.open(
            turn_id=claimed.turn_id,
            run_id=claimed.run_id,
            attempt=claimed.attempt,
            on_fenced=lambda: self._scope.stop(StopReason.LOST),
        )
        self._preparation: Preparation | None = None
        self._thinking: Thinking | None = None

    def execute(self) -> bool:
        """Do it; True when the Turn was given back because its sandbox was lost and should be taken again."""
        claimed = self._claimed
        extra = {"turn_id": claimed.turn_id, "run_id": claimed.run_id, "attempt": claimed.attempt}
        log.info("run.started", extra=extra)
        try:
            with self._parts.running.hold(claimed, self._scope):
                return self._guarded()
        finally:
            if self._preparation is not None:
                self._preparation.close()
            self._log.close()
            log.info("run.ended", extra=extra)

    def _guarded(self) -> bool:
        try:
            try:
                outcome = self._think()
                self._commit(outcome)
            except SandboxLost as lost:
                return self._sandbox_lost(lost)
            except RunStopped as stopped:
                self._stopped(stopped.reason)
            except RunFailure as failure:
                self._fail(failure)
            except (NotHeld, LogFenced):
                log.info("run.lost", extra={"turn_id": self._claimed.turn_id})
            except Exception:  # the outermost handler of a Run: whatever it was, the Turn ends
                log.exception("run.broken", extra={"turn_id": self._claimed.turn_id})
                self._fail(InternalFailure())
        except (NotHeld, LogFenced):
            log.info("run.lost", extra={"turn_id": self._claimed.turn_id})
        except FleetError as error:
            # The database is away: the lease runs out and the sweep decides.
            log.warning("run.not_ended", extra={"turn_id": self._claimed.turn_id, "reason": error.code})
        return False

    def _think(self) -> Outcome:
        claimed, parts = self._claimed, self._parts
        root, sub = self._model("root"), self._model("sub")
        plan, history = self._read()
        self._plan = plan
        preparation = self._preparation = Preparation(
            claimed,
            plan,
            sandboxes=parts.sandboxes,
            database=parts.database,
            limits=self._settings.files,
            scope=self._scope,
            emit=self._emit,
        )
        preparation.start()
        assignment = Assignment(
            turn_id=claimed.turn_id,
            session_id=claimed.session_id,
            attempt=claimed.attempt,
            question=claimed.prompt,
            settings=self._settings,
            root=root,
            sub=sub,
            history=history,
            files=describe(parts.database, plan),
            notes=tuple(claimed.effective.get("notes", ())),
            network=self._settings.sandbox.network,
        )
        thinking = self._thinking = Thinking(
            assignment,
            scope=self._scope,
            emit=self._emit,
            journal=TurnJournal(parts.database, claimed.turn_id, claimed.attempt),
            make_interpreter=self._interpreter,
            publish=lambda path, title: preparation.stage.publish(path, title),
        )
        return thinking.run()

    def _interpreter(self, listener: CellListener, scope: Scope) -> SandboxInterpreter:
        preparation, settings = self._preparation, self._settings
        assert preparation is not None
        return SandboxInterpreter(
            preparation.connected,
            limits=CellLimits(
                timeout_s=settings.rlm.cell_timeout_s,
                output_chars=settings.rlm.max_output_chars,
                live_bytes=settings.run.max_cell_event_bytes,
            ),
            listener=listener,
            scope=scope,
            before_submit=lambda: preparation.stage.check_limits(),
            keep=True,
        )

    def _read(self) -> tuple[Plan, tuple[Exchange, ...]]:
        claimed = self._claimed

        def work(tx: Transaction) -> tuple[Plan, tuple[Exchange, ...]]:
            attachments = visible_attachments(tx, claimed.session_id, sequence=claimed.sequence)
            plan = make_plan(attachments, manifest(tx, claimed.session_id, claimed.base_revision))
            exchanges = committed_exchanges(tx, claimed.session_id, before_sequence=claimed.sequence)
            artifacts = artifacts_of_turns(tx, [turn_id for turn_id, *_ in exchanges])
            return plan, tuple(
                Exchange(sequence, prompt, answer, tuple(item.path for item in artifacts.get(turn_id, ())))
                for turn_id, sequence, prompt, answer in exchanges
            )

        return self._parts.database.run(work)

    def _commit(self, outcome: Outcome) -> None:
        """Store bytes, then commit everything at once; asks again when it is unknown what became of the commit."""
        self._emit(Phase("committing", ""), ())
        harvest, blobs = self._harvest(outcome)
        usage = self._final(outcome.usage)
        commit = Commit(
            answer=outcome.answer,
            usage=usage,
            result=outcome.result,
            forced=outcome.forced,
            artifacts=self._artifacts(outcome.publications, blobs),
            written=harvest.written,
            removed=harvest.removed,
            files_changed=harvest.changes,
        )
        if not self._log.flush(FLUSH_S):
            raise Unavailable
        claimed = self._claimed
        while True:
            self._scope.check()
            try:
                self._parts.ledger.complete(
                    claimed.turn_id, run_id=claimed.run_id, attempt=claimed.attempt, commit=commit
                )
                return
            except Unavailable:
                log.warning("commit.unknown", extra={"turn_id": claimed.turn_id})
                self._scope.wait(COMMIT_RETRY_S)
            except NotHeld:
                if self._is_committed():
                    return
                if self._is_cancelled():
                    self._scope.stop(StopReason.CANCELLED)
                    self._scope.check()
                raise

    def _harvest(self, outcome: Outcome) -> tuple[Harvest, dict[str, Blob]]:
        preparation = self._preparation
        if preparation is None or not preparation.is_ready:
            return Harvest(), {}
        stage, claimed = preparation.stage, self._claimed
        try:
            blobs = stage.store_publications(outcome.publications, claimed.owner_id)
            harvest = stage.harvest(self._plan, turn_id=claimed.turn_id, owner_id=claimed.owner_id)
        except SandboxLost as lost:
            if outcome.publications or outcome.forced is None:
                raise
            return Harvest(problem=lost.detail), {}
        if harvest.problem is not None:
            self._emit(Notice("warning", "workspace_not_saved", f"File changes are not kept: {harvest.problem}."), ())
        if harvest.left_out:
            names = ", ".join(harvest.left_out[:5])
            message = f"{len(harvest.left_out)} entries of /workspace are not kept (links, devices, odd names): {names}"
            self._emit(Notice("info", "files_left_out", message), ())
        return harvest, blobs

    def _artifacts(self, publications: Sequence[Publication], blobs: dict[str, Blob]) -> list[CommitArtifact]:
        claimed = self._claimed
        now = datetime.now(UTC)
        return [
            CommitArtifact(
                Artifact(
                    id=new_id(),
                    owner_id=claimed.owner_id,
                    session_id=claimed.session_id,
                    turn_id=claimed.turn_id,
                    path=item.path,
                    title=item.title,
                    name=item.path.rpartition("/")[2],
                    media_type=media_type_of(item.path),
                    bytes=item.bytes,
                    sha256=item.sha256,
                    created_at=now,
                ),
                blobs[item.sha256].id,
            )
            for item in publications
        ]

    def _stopped(self, reason: StopReason) -> None:
        claimed = self._claimed
        match reason:
            case StopReason.CANCELLED:
                self._end_interrupted()
                self._log.flush(FLUSH_S)
                self._parts.ledger.confirm_cancel(
                    claimed.turn_id, attempt=claimed.attempt, usage=self._final(self._usage())
                )
            case StopReason.HANDOVER:
                self._log.flush(FLUSH_S)
                self._parts.ledger.hand_over(claimed.turn_id, attempt=claimed.attempt)
            case StopReason.LOST:
                log.info("run.lost", extra={"turn_id": claimed.turn_id})
            case StopReason.DEADLINE | StopReason.BUDGET:
                self._end_interrupted()
                self._fail(RunTimedOut())

    def _sandbox_lost(self, lost: SandboxLost) -> bool:
        """Count the loss; True when the Turn goes on in a fresh sandbox under a new attempt."""
        claimed, parts = self._claimed, self._parts
        if self._preparation is not None:
            self._preparation.give_up_sandbox()
        losses = parts.database.run(lambda tx: count_sandbox_loss(tx, claimed.turn_id, claimed.attempt))
        if losses is None:
            raise NotHeld
        if losses > SANDBOX_LOSSES:
            self._fail(lost)
            return False
        self._log.flush(FLUSH_S)
        parts.ledger.hand_over(claimed.turn_id, attempt=claimed.attempt, nudge=False)
        return True

    def _fail(self, failure: RunFailure) -> None:
        self._log.flush(FLUSH_S)
        self._parts.ledger.fail(
            self._claimed.turn_id,
            attempt=self._claimed.attempt,
            failure=failure,
            usage=self._final(self._usage()),
        )

    def _end_interrupted(self) -> None:
        """Nothing more of this Turn may happen in the sandbox."""
        if self._preparation is not None and self._preparation.is_ready:
            self._preparation.stop_cells()

    def _usage(self) -> Usage:
        return self._thinking.usage if self._thinking is not None else Usage()

    def _final(self, usage: Usage) -> Usage:
        claimed = self._claimed
        now = datetime.now(UTC)
        return replace(
            usage,
            duration_ms=max(0, _milliseconds(claimed.started_at, now)),
            queue_ms=max(0, _milliseconds(claimed.created_at, claimed.started_at)),
            sandbox_ms=self._preparation.duration_ms if self._preparation is not None else 0,
        )

    def _is_committed(self) -> bool:
        row = self._parts.database.run(lambda tx: find_turn(tx, self._claimed.turn_id))
        return (
            row is not None and row.state.status is TurnStatus.COMPLETED and row.state.attempt == self._claimed.attempt
        )

    def _is_cancelled(self) -> bool:
        row = self._parts.database.run(lambda tx: find_turn(tx, self._claimed.turn_id))
        return row is not None and row.state.cancel_requested_at is not None and not row.state.status.is_terminal

    def _model(self, role: str) -> ModelChoice:
        name = self._claimed.effective["models"][role]
        choice = self._parts.models.named(name)
        if choice is None:
            raise ModelInvalidRequest(f"The model {name} is not configured on this worker.")
        return choice

    def _emit(self, told: Fact | Draft, scope: EventScope) -> None:
        self._log.append(told, scope)


def _scope_of(claimed: Claimed, settings: Settings) -> Scope:
    """Deadlines count from the first claim over all attempts; the soft one leaves time for an extraction."""
    timeout = float(settings.run.timeout_s)
    spent = (claimed.claimed_at - claimed.started_at).total_seconds()
    soft = max(SOFT_FLOOR * timeout, min(SOFT_SHARE * timeout, timeout - EXTRACTION_S))
    now = time.monotonic()
    return Scope(soft_deadline=now + soft - spent, hard_deadline=now + timeout - spent)


def _milliseconds(since: datetime, until: datetime) -> int:
    return int((until - since).total_seconds() * 1000)
