"""Sessions: rows in and out. Every query is scoped to an owner."""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, bindparam, delete, insert, select, tuple_, update

from fleet_shared.domain.errors import NotFound
from fleet_shared.domain.session import Session, SessionStatus
from fleet_shared.domain.turn import TurnStatus
from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import session, turn


def insert_session(tx: Transaction, created: Session) -> None:
    """Store a new Session."""
    tx.execute(
        insert(session).values(
            id=created.id,
            owner_id=created.owner_id,
            title=created.title,
            status=created.status.value,
            turn_count=created.turn_count,
            workspace_revision=created.workspace_revision,
            created_at=created.created_at,
            updated_at=created.updated_at,
        )
    )


def get_session(tx: Transaction, owner_id: str, session_id: str) -> Session:
    """The owner's Session. Raises NotFound."""
    row = tx.execute(_select().where(session.c.id == session_id, session.c.owner_id == owner_id)).one_or_none()
    if row is None:
        raise NotFound("session")
    return _session(row)


def lock_session(tx: Transaction, owner_id: str, session_id: str) -> Session:
    """The owner's Session, locked until the end of the transaction. Raises NotFound."""
    locked = select(session.c.id).where(session.c.id == session_id, session.c.owner_id == owner_id).with_for_update()
    if tx.execute(locked).one_or_none() is None:
        raise NotFound("session")
    return get_session(tx, owner_id, session_id)


def list_sessions(
    tx: Transaction,
    owner_id: str,
    *,
    limit: int,
    status: SessionStatus | None = None,
    search: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> list[Session]:
    """The owner's Sessions, newest change first; `before` is (updated_at, id) of the last one already seen."""
    query = _select().where(session.c.owner_id == owner_id)
    if status is not None:
        query = query.where(session.c.status == status.value)
    if search:
        query = query.where(session.c.title.icontains(search, autoescape=True))
    if before is not None:
        query = query.where(tuple_(session.c.updated_at, session.c.id) < tuple_(*_bound(before)))
    query = query.order_by(session.c.updated_at.desc(), session.c.id.desc()).limit(limit)
    return [_session(row) for row in tx.execute(query)]


def update_session(tx: Transaction, session_id: str, *, updated_at: datetime, **values: Any) -> None:
    """Change columns (title, status, turn_count, workspace_revision) of a Session."""
    tx.execute(update(session).where(session.c.id == session_id).values(updated_at=updated_at, **values))


def delete_session(tx: Transaction, session_id: str) -> None:
    """Remove a Session with its Turns, events, Artifacts and Workspace; blobs without reference go with the sweep."""
    tx.execute(delete(session).where(session.c.id == session_id))


def _bound(before: tuple[datetime, str]) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    return (
        bindparam("before_at", before[0], type_=session.c.updated_at.type),
        bindparam("before_id", before[1], type_=session.c.id.type),
    )


def _select() -> Select[Any]:
    is_open = turn.c.status.in_([TurnStatus.QUEUED.value, TurnStatus.RUNNING.value])
    open_turn = select(turn.c.id).where(turn.c.session_id == session.c.id, is_open).scalar_subquery()
    return select(session, open_turn.label("open_turn_id"))


def _session(row: Row[Any]) -> Session:
    return Session(
        id=row.id,
        owner_id=row.owner_id,
        title=row.title,
        status=SessionStatus(row.status),
        turn_count=row.turn_count,
        workspace_revision=row.workspace_revision,
        created_at=row.created_at,
        updated_at=row.updated_at,
        open_turn_id=row.open_turn_id,
    )
