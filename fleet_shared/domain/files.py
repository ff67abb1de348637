"""Files: Attachments the user gave, Artifacts a Turn published, entries of a Workspace, and what a path may be."""

import mimetypes
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from fleet_shared.domain.errors import InvalidInput

PATH_BYTES: Final = 1024
SEGMENT_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file an owner gave. `bytes` is its size, `sha256` the hex digest of its content."""

    id: str
    owner_id: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file a Turn published. `path` is where the Turn wrote it in its Workspace."""

    id: str
    owner_id: str
    session_id: str
    turn_id: str
    path: str
    title: str
    name: str
    media_type: str
    bytes: int
    sha256: str
    created_at: datetime


class FileKind(StrEnum):
    """What a Workspace keeps."""

    FILE = "file"
    DIRECTORY = "directory"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One path of a Workspace at a revision. Directories have zero bytes and no digest."""

    path: str
    kind: FileKind
    bytes: int
    sha256: str | None
    media_type: str | None
    executable: bool
    changed_by_turn_id: str | None
    modified_at: datetime


class Change(StrEnum):
    """What a Turn did to a path."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class FileChange:
    """One changed path of a committed Turn; `bytes` is the new size, 0 when deleted."""

    path: str
    change: Change
    bytes: int


def parse_path(text: str) -> str:
    """The canonical (NFC) form of a Workspace path.

    Raises InvalidInput for an absolute path, an empty, `.` or `..` segment, NUL, backslash, or one that is too long
    (a segment above 255 bytes, the whole above 1,024).
    """
    path = unicodedata.normalize("NFC", text)
    problem = _path_problem(path)
    if problem:
        raise InvalidInput(f"The path {problem}.", errors={"path": [f"The path {problem}."]})
    return path


def _path_problem(path: str) -> str | None:
    if not path or path.startswith("/"):
        return "must be relative and not empty"
    if "\0" in path or "\\" in path:
        return "must not contain NUL or a backslash"
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        return "must be valid Unicode"
    if len(encoded) > PATH_BYTES:
        return f"must not be longer than {PATH_BYTES} bytes"
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            return "must not have an empty, '.' or '..' segment"
        if len(segment.encode("utf-8")) > SEGMENT_BYTES:
            return f"must not have a segment longer than {SEGMENT_BYTES} bytes"
    return None


def media_type_of(name: str) -> str:
    """The media type that a file name suggests."""
    known = {".md": "text/markdown", ".jsonl": "application/jsonl", ".py": "text/x-python", ".toml": "application/toml"}
    suffix = name[name.rfind(".") :].lower() if "." in name else ""
    return known.get(suffix) or mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream"


def unique_names(names: list[str]) -> list[str]:
    """`names` made distinct in order: a later same name becomes `name (2)`, with the suffix kept at the end."""
    taken: set[str] = set()
    distinct: list[str] = []
    for name in names:
        candidate, number = name, 1
        stem, dot, suffix = name.rpartition(".")
        while candidate in taken:
            number += 1
            candidate = f"{stem} ({number}).{suffix}" if dot and stem else f"{name} ({number})"
        taken.add(candidate)
        distinct.append(candidate)
    return distinct
