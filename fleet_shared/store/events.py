"""The event log's rows: fenced appends with gapless numbers, and reads in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select, update

from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import event, turn


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A fact as stored: its number, wire type and body (JSON without `seq`)."""

    seq: int
    type: str
    body: str


@dataclass(frozen=True, slots=True)
class NewEvent:
    """A fact to be stored: wire type and body."""

    type: str
    body: str


def append_fenced(tx: Transaction, turn_id: str, attempt: int, events: Sequence[NewEvent]) -> int | None:
    """Store `events` when `attempt` still holds the Turn; the number of the first one, None when it does not.

    Number, fence and durability are one row lock (turn.md §2).
    """
    last: int | None = tx.execute(
        update(turn)
        .where(turn.c.id == turn_id, turn.c.attempt == attempt, turn.c.status == "running")
        .values(last_seq=turn.c.last_seq + len(events))
        .returning(turn.c.last_seq)
    ).scalar_one_or_none()
    if last is None:
        return None
    first = last - len(events) + 1
    insert_events(tx, turn_id, first, events)
    return first


def insert_events(tx: Transaction, turn_id: str, first: int, events: Iterable[NewEvent]) -> None:
    """Store `events` numbered from `first`; the caller has moved the Turn's `last_seq` in this transaction."""
    rows = [
        {"turn_id": turn_id, "seq": number, "type": item.type, "body": item.body}
        for number, item in enumerate(events, start=first)
    ]
    if rows:
        tx.execute(insert(event), rows)


def lock_turns_for_append(tx: Transaction, turn_ids: Iterable[str]) -> set[str]:
    """Lock Turn rows in order, leaving out those somebody else holds (PostgreSQL); all of them on SQLite."""
    wanted = sorted(set(turn_ids))
    if tx.dialect.name == "sqlite":
        return set(wanted)
    query = select(turn.c.id).where(turn.c.id.in_(wanted)).order_by(turn.c.id)
    return set(tx.execute(query.with_for_update(skip_locked=True, key_share=True)).scalars())


def read_events(tx: Transaction, turn_id: str, *, after: int, limit: int) -> list[StoredEvent]:
    """The facts after number `after`, in order, at most `limit`."""
    query = (
        select(event.c.seq, event.c.type, event.c.body)
        .where(event.c.turn_id == turn_id, event.c.seq > after)
        .order_by(event.c.seq)
        .limit(limit)
    )
    return [StoredEvent(row.seq, row.type, row.body) for row in tx.execute(query)]


def facts_of_types(tx: Transaction, turn_id: str, types: Iterable[str]) -> list[StoredEvent]:
    """The facts of some types, in order."""
    query = (
        select(event.c.seq, event.c.type, event.c.body)
        .where(event.c.turn_id == turn_id, event.c.type.in_(list(types)))
        .order_by(event.c.seq)
    )
    return [StoredEvent(row.seq, row.type, row.body) for row in tx.execute(query)]


def last_numbers(tx: Transaction, turn_ids: Iterable[str]) -> dict[str, int]:
    """The number of the last fact of each Turn."""
    query = select(turn.c.id, turn.c.last_seq).where(turn.c.id.in_(list(turn_ids)))
    return {row.id: row.last_seq for row in tx.execute(query)}
