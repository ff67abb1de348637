"""The Workspace manifest: which files a Session has at a revision, kept as ranges of revisions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, insert, or_, select, update

from fleet_shared.domain.files import FileEntry, FileKind, media_type_of
from fleet_shared.store.engine import Transaction
from fleet_shared.store.tables import workspace_file


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An entry of the manifest with the blob that holds its content, None for a directory."""

    entry: FileEntry
    blob_id: str | None


def manifest(tx: Transaction, session_id: str, revision: int) -> list[StoredFile]:
    """Every entry of the Workspace at `revision`, by path."""
    query = (
        select(workspace_file)
        .where(
            workspace_file.c.session_id == session_id,
            workspace_file.c.from_revision <= revision,
            or_(workspace_file.c.to_revision.is_(None), workspace_file.c.to_revision > revision),
        )
        .order_by(workspace_file.c.path)
    )
    return [StoredFile(_entry(row), row.blob_id) for row in tx.execute(query)]


def write_changes(
    tx: Transaction, session_id: str, *, revision: int, written: Sequence[StoredFile], removed: Iterable[str]
) -> None:
    """Make `revision` out of the one before it: `written` entries are added or replaced, `removed` paths are gone.

    The caller moves the Session's `workspace_revision` to `revision` in this transaction.
    """
    closed = sorted({*removed, *(stored.entry.path for stored in written)})
    for start in range(0, len(closed), 500):
        tx.execute(
            update(workspace_file)
            .where(
                workspace_file.c.session_id == session_id,
                workspace_file.c.to_revision.is_(None),
                workspace_file.c.path.in_(closed[start : start + 500]),
            )
            .values(to_revision=revision)
        )
    rows = [_values(session_id, revision, stored) for stored in written]
    if rows:
        tx.execute(insert(workspace_file), rows)


def _values(session_id: str, revision: int, stored: StoredFile) -> dict[str, Any]:
    entry = stored.entry
    return {
        "session_id": session_id,
        "path": entry.path,
        "from_revision": revision,
        "kind": entry.kind.value,
        "blob_id": stored.blob_id,
        "bytes": entry.bytes,
        "sha256": entry.sha256,
        "executable": entry.executable,
        "changed_by_turn_id": entry.changed_by_turn_id,
        "modified_at": entry.modified_at,
    }


def _entry(row: Row[Any]) -> FileEntry:
    kind = FileKind(row.kind)
    return FileEntry(
        path=row.path,
        kind=kind,
        bytes=row.bytes,
        sha256=row.sha256,
        media_type=media_type_of(row.path) if kind is FileKind.FILE else None,
        executable=row.executable,
        changed_by_turn_id=row.changed_by_turn_id,
        modified_at=row.modified_at,
    )
