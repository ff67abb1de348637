"""The journal of model answers that were paid for: written fenced, read by later attempts, gone when the Turn ends."""

from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select

from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import journal, turn


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A model's answer to the request with that digest, asked in a scope and iteration."""

    scope: str
    iteration: int
    digest: str
    response: str


def record_answer(tx: Transaction, turn_id: str, attempt: int, entry: JournalEntry) -> bool:
    """Keep an answer when `attempt` still holds the Turn; False when it does not."""
    held = select(turn.c.id).where(turn.c.id == turn_id, turn.c.attempt == attempt, turn.c.status == "running")
    if tx.execute(held.with_for_update(key_share=True)).one_or_none() is None:
        return False
    position = select(func.coalesce(func.max(journal.c.position), 0) + 1).where(
        journal.c.turn_id == turn_id, journal.c.attempt == attempt
    )
    tx.execute(
        insert(journal).values(
            turn_id=turn_id,
            attempt=attempt,
            position=position.scalar_subquery(),
            scope=entry.scope,
            iteration=entry.iteration,
            digest=entry.digest,
            response=entry.response,
        )
    )
    return True


def earlier_answers(tx: Transaction, turn_id: str, *, before_attempt: int) -> list[JournalEntry]:
    """The answers of earlier attempts in the order of writing."""
    query = (
        select(journal)
        .where(journal.c.turn_id == turn_id, journal.c.attempt < before_attempt)
        .order_by(journal.c.attempt, journal.c.position)
    )
    return [JournalEntry(row.scope, row.iteration, row.digest, row.response) for row in tx.execute(query)]


def clear_journal(tx: Transaction, turn_id: str) -> None:
    """Forget a Turn's answers; part of the transaction that ends it."""
    tx.execute(delete(journal).where(journal.c.turn_id == turn_id))
