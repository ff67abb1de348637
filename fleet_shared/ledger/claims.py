"""A claim: what a worker gets when it takes a Turn."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet_shared.domain.events import RunRetried, TurnStarted
from fleet_shared.domain.turn import RetryReason, TurnState
from fleet_shared.store.turns import TurnRow


@dataclass(frozen=True, slots=True)
class Claimed:
    """A Turn held by this worker under `attempt`. `lease_until` and `started_at` are the database's time."""

    turn_id: str
    owner_id: str
    session_id: str
    sequence: int
    run_id: str
    attempt: int
    losses: int
    prompt: str
    effective: dict[str, Any]
    base_revision: int
    created_at: datetime
    started_at: datetime
    claimed_at: datetime


#: Tells a claim: the facts of `turn.started` depend on the models and limits that the worker resolves from the row.
DescribeStart = Callable[[TurnRow], TurnStarted]


def retry_fact(before: TurnState, after: TurnState, reason: RetryReason | None = None) -> RunRetried | None:
    """`run.retried` for an attempt after the first, None for the first; `reason` when the caller knows it."""
    if after.attempt == 1:
        return None
    lost = after.losses > before.losses
    known = reason or (RetryReason.WORKER_LOST if lost else RetryReason.HANDOVER)
    return RunRetried(reason=known.value, losses=after.losses)
