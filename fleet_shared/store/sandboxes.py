"""Sandboxes this deployment wants, has, or is about to delete. The row is written before the provider is asked."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, exists, func, insert, select, update

from fleet_shared.domain.ids import new_id
from fleet_shared.store.engine import Transaction, database_now
from fleet_shared.store.tables import sandbox, turn


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """A sandbox's record; `daytona_id` is None until the provider answered."""

    id: str
    owner_id: str
    session_id: str | None
    generation: int
    name: str
    daytona_id: str | None
    unclean: bool
    created_at: datetime
    used_at: datetime
    retiring_at: datetime | None


def live_sandbox(tx: Transaction, session_id: str) -> SandboxRow | None:
    """The Session's sandbox that is not being retired."""
    query = select(sandbox).where(sandbox.c.session_id == session_id, sandbox.c.retiring_at.is_(None))
    row = tx.execute(query).one_or_none()
    return _sandbox(row) if row is not None else None


def intend_sandbox(tx: Transaction, *, owner_id: str, session_id: str, deployment_id: str) -> SandboxRow:
    """Record a new sandbox for a Session that has none; its name is the key that makes creation idempotent."""
    now = database_now(tx)
    last = select(func.coalesce(func.max(sandbox.c.generation), 0)).where(sandbox.c.session_id == session_id)
    generation: int = tx.execute(last).scalar_one() + 1
    row_id = new_id()
    name = f"fleet-{deployment_id[:8]}-{session_id}-{generation}-{row_id[:4]}"
    tx.execute(
        insert(sandbox).values(
            id=row_id,
            owner_id=owner_id,
            session_id=session_id,
            generation=generation,
            name=name,
            unclean=False,
            created_at=now,
            used_at=now,
        )
    )
    return SandboxRow(row_id, owner_id, session_id, generation, name, None, False, now, now, None)


def record_created(tx: Transaction, sandbox_id: str, daytona_id: str) -> None:
    """The provider made the sandbox."""
    tx.execute(update(sandbox).where(sandbox.c.id == sandbox_id).values(daytona_id=daytona_id))


def mark_used(tx: Transaction, sandbox_id: str) -> None:
    """A Turn uses, or has just used, the sandbox."""
    tx.execute(update(sandbox).where(sandbox.c.id == sandbox_id).values(used_at=database_now(tx)))


def mark_unclean(tx: Transaction, session_id: str, *, unclean: bool = True) -> None:
    """The Session's sandbox holds what a Turn without commit left behind, or no longer does."""
    tx.execute(
        update(sandbox)
        .where(sandbox.c.session_id == session_id, sandbox.c.retiring_at.is_(None))
        .values(unclean=unclean)
    )


def retire(tx: Transaction, sandbox_id: str) -> None:
    """The sandbox must not be used again and is to be deleted."""
    values = {"retiring_at": database_now(tx)}
    tx.execute(update(sandbox).where(sandbox.c.id == sandbox_id, sandbox.c.retiring_at.is_(None)).values(values))


def retire_of_session(tx: Transaction, session_id: str) -> None:
    """Retire the Session's sandbox, as archive and delete do; a worker deletes it."""
    values = {"retiring_at": database_now(tx)}
    condition = (sandbox.c.session_id == session_id, sandbox.c.retiring_at.is_(None))
    tx.execute(update(sandbox).where(*condition).values(values))


def forget(tx: Transaction, sandbox_id: str) -> None:
    """The sandbox is gone at the provider."""
    tx.execute(delete(sandbox).where(sandbox.c.id == sandbox_id))


def retiring_sandboxes(tx: Transaction, *, limit: int = 100) -> list[SandboxRow]:
    """Sandboxes to be deleted, oldest first."""
    query = select(sandbox).where(sandbox.c.retiring_at.is_not(None)).order_by(sandbox.c.retiring_at).limit(limit)
    return [_sandbox(row) for row in tx.execute(query)]


def idle_sandboxes(tx: Transaction, *, limit: int = 1000) -> list[SandboxRow]:
    """Live sandboxes whose Session has no open Turn, least recently used first."""
    busy = exists().where(turn.c.session_id == sandbox.c.session_id, turn.c.status.in_(["queued", "running"]))
    query = select(sandbox).where(sandbox.c.retiring_at.is_(None), ~busy).order_by(sandbox.c.used_at).limit(limit)
    return [_sandbox(row) for row in tx.execute(query)]


def known_names(tx: Transaction) -> set[str]:
    """The names of all recorded sandboxes."""
    return set(tx.execute(select(sandbox.c.name)).scalars())


def _sandbox(row: Row[Any]) -> SandboxRow:
    return SandboxRow(
        id=row.id,
        owner_id=row.owner_id,
        session_id=row.session_id,
        generation=row.generation,
        name=row.name,
        daytona_id=row.daytona_id,
        unclean=row.unclean,
        created_at=row.created_at,
        used_at=row.used_at,
        retiring_at=row.retiring_at,
    )
