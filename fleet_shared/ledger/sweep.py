"""The cheap half of recovery: statements any number of processes may race over (turn.md §3, §8, §9, §11).

Looks at open Turns only. What a Turn's state allows is asked of `advance`, so a race is lost, never doubled.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from fleet_shared.domain.errors import FleetError, QueueTimedOut, RunFailure, RunTimedOut, WorkerLost
from fleet_shared.domain.events import TurnCancelled
from fleet_shared.domain.turn import Command, ExpireQueued, FenceCancel, FenceLost, FenceOverdue, TurnError
from fleet_shared.ledger.changes import Ledger, failed_fact
from fleet_shared.ledger.commit import NotHeld
from fleet_shared.messaging.queue import Nudge
from fleet_shared.store import Database, Transaction, database_now
from fleet_shared.store.turns import OpenTurn, TurnResult, mark_nudged, open_turns

log = logging.getLogger(__name__)

#: Seconds a worker has to end a cancelled Turn before somebody else does (turn.md §8).
CANCEL_PATIENCE_S: Final = 2.0
#: Seconds past its timeout after which a running Turn is ended from outside: the worker's extraction comes first.
OVERDUE_GRACE_S: Final = 60.0
#: Seconds after which a queued Turn is nudged again; doubled with each nudge up to the cap.
NUDGE_AGAIN_S: Final = 15.0
NUDGE_CAP_S: Final = 300.0


@dataclass(slots=True)
class SweepReport:
    """What one pass did."""

    nudged: int = 0
    cancelled: int = 0
    lost: int = 0
    overdue: int = 0
    expired: int = 0

    def __str__(self) -> str:
        return " ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


class Sweep:
    """One pass over the open Turns. Safe to run anywhere at any time."""

    def __init__(self, database: Database, ledger: Ledger, nudge: Nudge) -> None:
        self._database = database
        self._ledger = ledger
        self._nudge = nudge

    def run(self) -> SweepReport:
        """Do what is due. Raises Unavailable when the database is away."""
        report = SweepReport()
        with self._database.read() as tx:
            now = database_now(tx)
            turns = open_turns(tx)
        again: list[str] = []
        for item in turns:
            if item.is_queued:
                if (now - item.created_at).total_seconds() >= item.max_queue_s and item.started_at is None:
                    report.expired += self._give_up(item, ExpireQueued(item.max_queue_s), QueueTimedOut())
                elif now - item.nudged_at >= self._patience(item):
                    again.append(item.id)
                continue
            lost = item.lease_until is None or item.lease_until < now
            if item.cancel_requested_at is not None:
                report.cancelled += self._cancel(item.id)
            elif item.started_at is not None and now - item.started_at >= timedelta(
                seconds=item.timeout_s + OVERDUE_GRACE_S
            ):
                report.overdue += self._give_up(item, FenceOverdue(item.timeout_s + OVERDUE_GRACE_S), RunTimedOut())
            elif lost and not self._try(item.id, FenceLost(), WorkerLost()):
                again.append(item.id)
            elif lost:
                report.lost += 1
        report.nudged = self._nudge_all(again)
        return report

    def end_cancelled(self, turn_id: str) -> bool:
        """End a Turn whose cancel its worker did not confirm in time; whether this call ended it."""
        return self._cancel(turn_id) == 1

    def _patience(self, item: OpenTurn) -> timedelta:
        return timedelta(seconds=min(NUDGE_CAP_S, NUDGE_AGAIN_S * 2 ** min(item.nudges, 10)))

    def _cancel(self, turn_id: str) -> int:
        command = FenceCancel(CANCEL_PATIENCE_S)
        return self._attempt(lambda: self._ledger.end(turn_id, command, [TurnCancelled("user")], TurnResult()))

    def _give_up(self, item: OpenTurn, command: Command, failure: RunFailure) -> int:
        return 1 if self._try(item.id, command, failure) else 0

    def _try(self, turn_id: str, command: Command, failure: RunFailure) -> bool:
        error = TurnError(failure.code, failure.detail, failure.retryable)
        end = TurnResult(error=error)
        return self._attempt(lambda: self._ledger.end(turn_id, command, [failed_fact(error)], end)) == 1

    def _attempt(self, change: Callable[[], None]) -> int:
        try:
            change()
        except NotHeld:
            return 0
        return 1

    def _nudge_all(self, turn_ids: list[str]) -> int:
        sent = []
        for turn_id in turn_ids:
            if not self._nudge(turn_id):
                break
            sent.append(turn_id)
        if sent:
            self._database.run(lambda tx: _mark(tx, sent))
        return len(sent)


def _mark(tx: Transaction, turn_ids: list[str]) -> None:
    mark_nudged(tx, turn_ids, now=database_now(tx))


def sweep_quietly(sweep: Sweep) -> None:
    """One pass for a background thread: a database that is away is tried again at the next pass."""
    try:
        report = sweep.run()
    except FleetError as error:
        log.warning("sweep.skipped", extra={"reason": error.code})
        return
    if str(report) != str(SweepReport()):
        log.info("sweep.done", extra={"report": str(report)})
