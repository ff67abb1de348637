"""Artifacts: rows in and out."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, insert, select, tuple_

from fleet_shared.domain.errors import NotFound
from fleet_shared.domain.files import Artifact
from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import artifact


def insert_artifact(tx: Transaction, new: Artifact, *, blob_id: str) -> None:
    """Store a committed Turn's Artifact."""
    tx.execute(
        insert(artifact).values(
            id=new.id,
            owner_id=new.owner_id,
            session_id=new.session_id,
            turn_id=new.turn_id,
            blob_id=blob_id,
            path=new.path,
            title=new.title,
            name=new.name,
            media_type=new.media_type,
            bytes=new.bytes,
            sha256=new.sha256,
            created_at=new.created_at,
        )
    )


def get_artifact(tx: Transaction, owner_id: str, artifact_id: str) -> Artifact:
    """The owner's Artifact. Raises NotFound."""
    query = select(artifact).where(artifact.c.id == artifact_id, artifact.c.owner_id == owner_id)
    row = tx.execute(query).one_or_none()
    if row is None:
        raise NotFound("artifact")
    return _artifact(row)


def blob_of_artifact(tx: Transaction, artifact_id: str) -> str:
    """The id of the blob that holds an Artifact's content."""
    blob_id: str = tx.execute(select(artifact.c.blob_id).where(artifact.c.id == artifact_id)).scalar_one()
    return blob_id


def list_artifacts(
    tx: Transaction, session_id: str, *, limit: int, before: tuple[datetime, str] | None = None
) -> list[Artifact]:
    """A Session's Artifacts, newest first; the caller has checked the owner."""
    query = select(artifact).where(artifact.c.session_id == session_id)
    if before is not None:
        key = (
            bindparam("before_at", before[0], type_=artifact.c.created_at.type),
            bindparam("before_id", before[1], type_=artifact.c.id.type),
        )
        query = query.where(tuple_(artifact.c.created_at, artifact.c.id) < tuple_(*key))
    query = query.order_by(artifact.c.created_at.desc(), artifact.c.id.desc()).limit(limit)
    return [_artifact(row) for row in tx.execute(query)]


def artifacts_of_turns(tx: Transaction, turn_ids: Iterable[str]) -> dict[str, list[Artifact]]:
    """The Artifacts of each Turn in the order they were committed."""
    query = (
        select(artifact).where(artifact.c.turn_id.in_(list(turn_ids))).order_by(artifact.c.created_at, artifact.c.path)
    )
    found: dict[str, list[Artifact]] = {}
    for row in tx.execute(query):
        found.setdefault(row.turn_id, []).append(_artifact(row))
    return found


def _artifact(row: Row[Any]) -> Artifact:
    return Artifact(
        id=row.id,
        owner_id=row.owner_id,
        session_id=row.session_id,
        turn_id=row.turn_id,
        path=row.path,
        title=row.title,
        name=row.name,
        media_type=row.media_type,
        bytes=row.bytes,
        sha256=row.sha256,
        created_at=row.created_at,
    )
