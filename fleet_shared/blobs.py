"""Bytes by (owner, sha256), in chunks of the SQL store, streamed in and out in short transactions.

An object store can stand behind the same functions later. A blob without reference is collected by the sweep once
its `seen_at` is old; every upload that finds its content already there touches `seen_at`.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy import delete, exists, insert, select, update

from fleet_shared.domain.errors import TooLarge
from fleet_shared.domain.ids import new_id
from fleet_shared.store.engine import Database, Transaction, database_now
from fleet_shared.store.tables import artifact, attachment, blob, blob_chunk, workspace_file

#: Bytes per chunk: what one transaction writes and one read brings.
CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Blob:
    """Stored content."""

    id: str
    bytes: int
    sha256: str


def write_blob(database: Database, owner_id: str, source: Iterable[bytes], *, limit: int) -> Blob:
    """Store the bytes of `source` for the owner, once per content. Raises TooLarge above `limit` bytes.

    Memory stays at one chunk; no transaction is open while `source` is read. What fails midway is removed.
    """
    blob_id = new_id()
    database.run(lambda tx: _open(tx, blob_id, owner_id))
    digest, size, number = hashlib.sha256(), 0, 0
    try:
        for piece in _chunks(source):
            size += len(piece)
            if size > limit:
                raise TooLarge(f"The content is larger than {limit} bytes.")
            digest.update(piece)
            database.run(partial(_write_chunk, blob_id=blob_id, number=number, data=piece))
            number += 1
        return database.run(lambda tx: _close(tx, blob_id, owner_id, size, digest.hexdigest()))
    except BaseException:
        # Also when the client hangs up in the middle; if the database is away too, the sweep removes the rest.
        with contextlib.suppress(Exception):
            database.run(lambda tx: _remove(tx, blob_id))
        raise


def find_blob(tx: Transaction, owner_id: str, sha256: str) -> Blob | None:
    """The owner's blob with that content, kept from collection for as long as an upload may take."""
    seen = update(blob).where(blob.c.owner_id == owner_id, blob.c.sha256 == sha256).values(seen_at=database_now(tx))
    row = tx.execute(seen.returning(blob.c.id, blob.c.bytes, blob.c.sha256)).one_or_none()
    return Blob(row.id, row.bytes, row.sha256) if row is not None and row.sha256 is not None else None


def read_blob(database: Database, blob_id: str, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
    """The bytes from `start`, at most `length`, chunk by chunk, each read in a transaction of its own."""
    remaining = length
    number, skip = divmod(start, CHUNK_BYTES)
    while remaining is None or remaining > 0:
        with database.read() as tx:
            query = select(blob_chunk.c.data).where(blob_chunk.c.blob_id == blob_id, blob_chunk.c.number == number)
            data: bytes | None = tx.execute(query).scalar_one_or_none()
        if data is None:
            return
        piece = data[skip:] if remaining is None else data[skip : skip + remaining]
        if remaining is not None:
            remaining -= len(piece)
        number, skip = number + 1, 0
        yield piece


def collect_unused(database: Database, *, older_than_s: float, limit: int = 100) -> int:
    """Remove blobs nothing refers to and nobody has seen for that long, and unfinished uploads; how many."""

    def collect(tx: Transaction) -> int:
        since = database_now(tx) - timedelta(seconds=older_than_s)
        referred = [exists().where(table.c.blob_id == blob.c.id) for table in (attachment, artifact, workspace_file)]
        query = select(blob.c.id).where(blob.c.seen_at < since, *(~reference for reference in referred))
        ids = list(tx.execute(query.order_by(blob.c.id).limit(limit).with_for_update(skip_locked=True)).scalars())
        for blob_id in ids:
            _remove(tx, blob_id)
        return len(ids)

    return database.run(collect)


def _chunks(source: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for piece in source:
        buffer += piece
        while len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer[:CHUNK_BYTES])
            del buffer[:CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)


def _open(tx: Transaction, blob_id: str, owner_id: str) -> None:
    tx.execute(insert(blob).values(id=blob_id, owner_id=owner_id, bytes=0, seen_at=database_now(tx)))


def _write_chunk(tx: Transaction, *, blob_id: str, number: int, data: bytes) -> None:
    tx.execute(update(blob).where(blob.c.id == blob_id).values(seen_at=database_now(tx)))
    tx.execute(insert(blob_chunk).values(blob_id=blob_id, number=number, data=data))


def _close(tx: Transaction, blob_id: str, owner_id: str, size: int, sha256: str) -> Blob:
    known = find_blob(tx, owner_id, sha256)
    if known is not None:
        _remove(tx, blob_id)
        return known
    tx.execute(update(blob).where(blob.c.id == blob_id).values(bytes=size, sha256=sha256, seen_at=database_now(tx)))
    return Blob(blob_id, size, sha256)


def _remove(tx: Transaction, blob_id: str) -> None:
    tx.execute(delete(blob_chunk).where(blob_chunk.c.blob_id == blob_id))
    tx.execute(delete(blob).where(blob.c.id == blob_id))
