"""Reads: lists with opaque cursors, files of a Workspace, what the service can do. Scoped to the owner, no HTTP."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from itsdangerous import BadSignature, URLSafeSerializer

from fleet_shared.domain.errors import InvalidInput, NotFound
from fleet_shared.domain.files import FileEntry, FileKind, parse_path
from fleet_shared.settings import options
from fleet_shared.store import Transaction, sessions
from fleet_shared.store.preferences import get_preferences
from fleet_shared.store.workspace import StoredFile, manifest
from fleet_web.parts import Parts

T = TypeVar("T")
Key = tuple[datetime, str]
DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100


@dataclass(frozen=True, slots=True)
class Page:
    """Where a list begins and how long it is."""

    limit: int
    before: Key | None


def parse_limit(text: str | None, *, default: int = DEFAULT_LIMIT, maximum: int = MAX_LIMIT) -> int:
    """A `limit` parameter. Raises InvalidInput."""
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:10]) <= maximum:
        message = f"Must be a whole number from 1 to {maximum}."
        raise InvalidInput(f"limit: {message}", errors={"limit": [message]})
    return int(text)


def parse_page(parts: Parts, limit: str | None, cursor: str | None) -> Page:
    """The page that `limit` and `cursor` ask for. Raises InvalidInput."""
    before: Key | None = None
    if cursor is not None:
        try:
            at, item_id = _serializer(parts).loads(cursor)
            before = (datetime.fromisoformat(at), str(item_id))
        except (BadSignature, ValueError, TypeError):
            message = "Give the next_cursor of an earlier answer."
            raise InvalidInput(f"cursor: {message}", errors={"cursor": [message]}) from None
    return Page(parse_limit(limit), before)


def listed(
    parts: Parts, page: Page, read: Callable[[Transaction, int], Sequence[T]], key: Callable[[T], Key]
) -> tuple[Sequence[T], str | None]:
    """The items of a page and the cursor of the next one; `read` gets how many to read."""
    with parts.database.read() as tx:
        items = read(tx, page.limit + 1)
    if len(items) <= page.limit:
        return items, None
    shown = items[: page.limit]
    at, item_id = key(shown[-1])
    return shown, str(_serializer(parts).dumps([at.isoformat(), item_id]))


def workspace(parts: Parts, owner_id: str, session_id: str) -> list[StoredFile]:
    """The committed Workspace of a Session. Raises NotFound."""
    with parts.database.read() as tx:
        session = sessions.get_session(tx, owner_id, session_id)
        return manifest(tx, session_id, session.workspace_revision)


def list_files(parts: Parts, owner_id: str, session_id: str, *, path: str | None, recursive: bool) -> list[FileEntry]:
    """The entries below a path of the Workspace; directories that only have files are shown too. Raises NotFound."""
    entries = {item.entry.path: item.entry for item in workspace(parts, owner_id, session_id)}
    for entry in list(entries.values()):
        folder = entry.path.rpartition("/")[0]
        while folder and folder not in entries:
            entries[folder] = FileEntry(
                folder, FileKind.DIRECTORY, 0, None, None, False, entry.changed_by_turn_id, entry.modified_at
            )
            folder = folder.rpartition("/")[0]
    prefix = ""
    if path:
        base = parse_path(path.rstrip("/") or path)
        if base not in entries:
            raise NotFound("file")
        if entries[base].kind is FileKind.FILE:
            return [entries[base]]
        prefix = f"{base}/"
    below = [entry for name, entry in entries.items() if name.startswith(prefix)]
    if not recursive:
        below = [entry for entry in below if "/" not in entry.path[len(prefix) :]]
    return sorted(below, key=lambda entry: entry.path)


def get_file(parts: Parts, owner_id: str, session_id: str, path: str) -> StoredFile:
    """A file of the Workspace. Raises NotFound, InvalidInput."""
    wanted = parse_path(path)
    for stored in workspace(parts, owner_id, session_id):
        if stored.entry.path == wanted and stored.blob_id is not None:
            return stored
    raise NotFound("file")


def describe_settings(parts: Parts, owner_id: str) -> dict[str, Any]:
    """The body of GET /api/settings."""
    with parts.database.read() as tx:
        preferences = get_preferences(tx, owner_id)
    settings = parts.loaded.for_owner(preferences.changes)
    described = []
    for key, option in options().items():
        from_owner = option.scope == "owner" and key in preferences.changes
        from_environment = key in parts.loaded.from_environment
        cap = parts.loaded.caps.get(key)
        item: dict[str, Any] = {
            "key": key,
            "value": settings.value(key),
            "default": option.default,
            "source": "owner" if from_owner else "environment" if from_environment else "default",
            "scope": option.scope,
            "editable": option.scope == "owner",
            "type": option.type,
            "help": option.help,
        }
        if option.choices:
            item["choices"] = list(option.choices)
        if option.minimum is not None:
            item["minimum"] = option.minimum
        maximum = min((bound for bound in (option.maximum, cap) if bound is not None), default=None)
        if maximum is not None:
            item["maximum"] = maximum
        described.append(item)
    return {"revision": preferences.revision, "settings": described}


def _serializer(parts: Parts) -> URLSafeSerializer:
    return URLSafeSerializer(parts.process.secret_key, salt="cursor", serializer=json)
