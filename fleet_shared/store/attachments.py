"""Attachments: rows in and out, and which Turns refer to them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, bindparam, delete, exists, insert, or_, select, tuple_

from fleet_shared.domain.errors import NotFound
from fleet_shared.domain.files import Attachment
from fleet_shared.domain.turn import TurnStatus
from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import attachment, turn, turn_attachment


def insert_attachment(tx: Transaction, new: Attachment, *, blob_id: str) -> None:
    """Store an uploaded Attachment."""
    tx.execute(
        insert(attachment).values(
            id=new.id,
            owner_id=new.owner_id,
            blob_id=blob_id,
            name=new.name,
            media_type=new.media_type,
            bytes=new.bytes,
            sha256=new.sha256,
            created_at=new.created_at,
        )
    )


def get_attachment(tx: Transaction, owner_id: str, attachment_id: str) -> Attachment:
    """The owner's Attachment. Raises NotFound."""
    found = find_attachments(tx, owner_id, [attachment_id])
    if not found:
        raise NotFound("attachment")
    return found[0]


def find_attachments(tx: Transaction, owner_id: str, ids: Sequence[str]) -> list[Attachment]:
    """Those of the owner's Attachments that exist, in the order of `ids`."""
    query = select(attachment).where(attachment.c.owner_id == owner_id, attachment.c.id.in_(list(ids)))
    by_id = {row.id: _attachment(row) for row in tx.execute(query)}
    return [by_id[wanted] for wanted in ids if wanted in by_id]


def list_attachments(
    tx: Transaction,
    owner_id: str,
    *,
    limit: int,
    session_id: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> list[Attachment]:
    """The owner's Attachments, newest first; with `session_id` those its Turns refer to."""
    query = select(attachment).where(attachment.c.owner_id == owner_id)
    if session_id is not None:
        used = select(turn_attachment.c.attachment_id).join(turn, turn.c.id == turn_attachment.c.turn_id)
        query = query.where(attachment.c.id.in_(used.where(turn.c.session_id == session_id)))
    if before is not None:
        key = (
            bindparam("before_at", before[0], type_=attachment.c.created_at.type),
            bindparam("before_id", before[1], type_=attachment.c.id.type),
        )
        query = query.where(tuple_(attachment.c.created_at, attachment.c.id) < tuple_(*key))
    query = query.order_by(attachment.c.created_at.desc(), attachment.c.id.desc()).limit(limit)
    return [_attachment(row) for row in tx.execute(query)]


def attachments_of_turns(tx: Transaction, turn_ids: Iterable[str]) -> dict[str, list[Attachment]]:
    """The Attachments of each Turn in the order the request gave."""
    query = (
        select(turn_attachment.c.turn_id, attachment)
        .join(attachment, attachment.c.id == turn_attachment.c.attachment_id)
        .where(turn_attachment.c.turn_id.in_(list(turn_ids)))
        .order_by(turn_attachment.c.turn_id, turn_attachment.c.position)
    )
    found: dict[str, list[Attachment]] = {}
    for row in tx.execute(query):
        found.setdefault(row.turn_id, []).append(_attachment(row))
    return found


def is_used(tx: Transaction, attachment_id: str) -> bool:
    """Whether a Turn refers to the Attachment."""
    query = select(exists().where(turn_attachment.c.attachment_id == attachment_id))
    return bool(tx.execute(query).scalar_one())


def delete_attachment(tx: Transaction, attachment_id: str) -> None:
    """Remove an Attachment; its blob goes with the sweep when nothing else refers to it."""
    tx.execute(delete(attachment).where(attachment.c.id == attachment_id))


def blob_of_attachment(tx: Transaction, attachment_id: str) -> str:
    """The id of the blob that holds an Attachment's content."""
    blob_id: str = tx.execute(select(attachment.c.blob_id).where(attachment.c.id == attachment_id)).scalar_one()
    return blob_id


def _attachment(row: Row[Any]) -> Attachment:
    return Attachment(
        id=row.id,
        owner_id=row.owner_id,
        name=row.name,
        media_type=row.media_type,
        bytes=row.bytes,
        sha256=row.sha256,
        created_at=row.created_at,
    )


@dataclass(frozen=True, slots=True)
class StagedAttachment:
    """An Attachment a Turn can see, and the blob that holds its content."""

    attachment: Attachment
    blob_id: str


def visible_attachments(tx: Transaction, session_id: str, *, sequence: int) -> list[StagedAttachment]:
    """The Attachments of the Session's committed Turns before `sequence` and of that Turn, each once, in order."""
    query = (
        select(attachment)
        .join(turn_attachment, turn_attachment.c.attachment_id == attachment.c.id)
        .join(turn, turn.c.id == turn_attachment.c.turn_id)
        .where(
            turn.c.session_id == session_id,
            or_(
                turn.c.sequence == sequence,
                and_(turn.c.sequence < sequence, turn.c.status == TurnStatus.COMPLETED.value),
            ),
        )
        .order_by(turn.c.sequence, turn_attachment.c.position)
    )
    found: dict[str, StagedAttachment] = {}
    for row in tx.execute(query):
        found.setdefault(row.id, StagedAttachment(_attachment(row), row.blob_id))
    return list(found.values())
