"""Rows whose time is over: events and Turns after their retention."""

from datetime import datetime

from sqlalchemy import delete, select, update

from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import event, turn

#: Turns handled in one pass, so that no transaction is long.
BATCH = 200


def expire_events(tx: Transaction, *, before: datetime) -> int:
    """Remove the events of Turns that ended before a time; readers then get 410. How many Turns."""
    query = select(turn.c.id).where(turn.c.finished_at < before, turn.c.events_expired.is_(False)).limit(BATCH)
    ids = list(tx.execute(query).scalars())
    if ids:
        tx.execute(delete(event).where(event.c.turn_id.in_(ids)))
        tx.execute(update(turn).where(turn.c.id.in_(ids)).values(events_expired=True))
    return len(ids)


def expire_turns(tx: Transaction, *, before: datetime) -> int:
    """Remove Turns that ended before a time, with all that belongs to them. How many."""
    ids = list(tx.execute(select(turn.c.id).where(turn.c.finished_at < before).limit(BATCH)).scalars())
    if ids:
        tx.execute(delete(turn).where(turn.c.id.in_(ids)))
    return len(ids)
