"""Files into the sandbox and out of it: Attachments and the Workspace before a Turn, what changed and what was
published after it. Only changed content travels; small content rides on the stream.
"""

import base64
import contextlib
import hashlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fleet_shared.blobs import CHUNK_BYTES, Blob, find_blob, read_blob, write_blob
from fleet_shared.domain.errors import InvalidInput, SandboxLost, StorageFull, TooLarge
from fleet_shared.domain.files import (
    Change,
    FileChange,
    FileEntry,
    FileKind,
    media_type_of,
    parse_path,
    unique_names,
)
from fleet_shared.domain.text import clean_text, shorten
from fleet_shared.settings import FileSettings
from fleet_shared.store import Database
from fleet_shared.store.attachments import StagedAttachment
from fleet_shared.store.workspace import StoredFile
from fleet_worker.agent.seams import FileView, Publication
from fleet_worker.sandbox.bridge import Bridge
from fleet_worker.sandbox.connection import INCOMING
from fleet_worker.sandbox.daytona import Machine

log = logging.getLogger(__name__)

#: Bytes of one file, and of all files of a Turn, that travel inside a frame instead of an upload.
INLINE_FILE: Final = 32 * 1024
INLINE_TOTAL: Final = 128 * 1024
#: Bytes up to which the lines of a text are counted for the manifest; characters of a preview; files described.
LINES_LIMIT: Final = 16 * 1024 * 1024
PREVIEW: Final = 300
DESCRIBED: Final = 200
REQUEST_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that has to be in the sandbox. `path` is relative to its tree."""

    path: str
    blob_id: str
    bytes: int
    sha256: str
    executable: bool = False
    modified_at: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the trees of a Session have to look like before a Turn."""

    attachments: tuple[Wanted, ...]
    workspace: tuple[Wanted, ...]
    directories: tuple[str, ...]
    manifest: Mapping[str, StoredFile] = field(default_factory=dict)

    @property
    def blobs(self) -> dict[str, Wanted]:
        """Every needed content by digest."""
        return {item.sha256: item for item in (*self.attachments, *self.workspace)}


@dataclass(frozen=True, slots=True)
class Harvest:
    """What a Turn did to the Workspace. `problem` tells why nothing of it may be kept."""

    written: tuple[StoredFile, ...] = ()
    removed: tuple[str, ...] = ()
    changes: tuple[FileChange, ...] = ()
    left_out: tuple[str, ...] = ()
    problem: str | None = None


def make_plan(attachments: Sequence[StagedAttachment], manifest: Sequence[StoredFile]) -> Plan:
    """The plan for a Session's Attachments, in order, and its Workspace."""
    names = unique_names([item.attachment.name for item in attachments])
    return Plan(
        attachments=tuple(
            Wanted(name, item.blob_id, item.attachment.bytes, item.attachment.sha256)
            for name, item in zip(names, attachments, strict=True)
        ),
        workspace=tuple(
            Wanted(
                stored.entry.path,
                stored.blob_id,
                stored.entry.bytes,
                stored.entry.sha256 or "",
                stored.entry.executable,
                stored.entry.modified_at.timestamp(),
            )
            for stored in manifest
            if stored.blob_id is not None
        ),
        directories=tuple(stored.entry.path for stored in manifest if stored.entry.kind is FileKind.DIRECTORY),
        manifest={stored.entry.path: stored for stored in manifest},
    )


def describe(database: Database, plan: Plan) -> tuple[FileView, ...]:
    """The files as the model sees them: sizes for all, lines and a preview for the first texts."""
    views: list[FileView] = []
    for source, root, items in (
        ("attachment", "/attachments", plan.attachments),
        ("workspace", "/workspace", plan.workspace),
    ):
        for item in items:
            lines, preview = _look(database, item) if len(views) < DESCRIBED else (None, "")
            views.append(
                FileView(
                    path=f"{root}/{item.path}",
                    name=item.path.rpartition("/")[2],
                    bytes=item.bytes,
                    media_type=media_type_of(item.path),
                    sha256=item.sha256,
                    lines=lines,
                    preview=preview,
                    source=source,
                )
            )
    return tuple(views)


@contextlib.contextmanager
def uploads_for(database: Database, items: Sequence[Wanted]) -> Iterator[dict[str, bytes | str]]:
    """The files to upload for `items`: sandbox path -> bytes, or the path of a temporary file for large ones."""
    with tempfile.TemporaryDirectory(prefix="fleet-stage-") as folder:
        uploads: dict[str, bytes | str] = {}
        for item in {item.sha256: item for item in items}.values():
            destination = f"{INCOMING}/{item.sha256}"
            if item.bytes <= CHUNK_BYTES:
                uploads[destination] = b"".join(read_blob(database, item.blob_id))
                continue
            path = Path(folder) / item.sha256
            with path.open("wb") as out:
                for piece in read_blob(database, item.blob_id):
                    out.write(piece)
            uploads[destination] = str(path)
        yield uploads


class Stage:
    """The trees of one sandbox during one Turn."""

    def __init__(self, database: Database, bridge: Bridge, machine: Machine, limits: FileSettings) -> None:
        self._database = database
        self._bridge = bridge
        self._machine = machine
        self._limits = limits

    def put(self, plan: Plan, *, uploaded: frozenset[str]) -> None:
        """Make the trees what `plan` says; `uploaded` digests lie in the incoming folder. Raises SandboxLost."""
        present = {tree: self._scan(tree) for tree in ("attachments", "workspace")}
        missing = {
            "attachments": _missing(plan.attachments, present["attachments"]),
            "workspace": _missing(plan.workspace, present["workspace"]),
        }
        wanted = [item for items in missing.values() for item in items]
        inline = _inline({item.sha256: item for item in wanted if item.sha256 not in uploaded})
        rest = [item for item in wanted if item.sha256 not in uploaded and item.sha256 not in inline]
        with uploads_for(self._database, rest) as uploads:
            if uploads:
                self._machine.upload(uploads)
            self._place("attachments", plan.attachments, missing["attachments"], present["attachments"], inline, ())
            self._place(
                "workspace", plan.workspace, missing["workspace"], present["workspace"], inline, plan.directories
            )

    def harvest(self, plan: Plan, *, turn_id: str, owner_id: str) -> Harvest:
        """What changed since `plan`, with the new content stored. Raises SandboxLost, StorageFull."""
        try:
            answer = self._bridge.request(
                "scan", {"tree": "workspace", "limit": self._limits.max_workspace_files}, timeout_s=REQUEST_S
            )
        except ValueError as error:
            return Harvest(problem=str(error))
        entries, left_out = _parsed(answer)
        problem = self._problem(entries)
        if problem is not None:
            return Harvest(problem=problem, left_out=left_out)
        changed = [entry for entry in entries.values() if _differs(entry, plan.manifest.get(entry.path))]
        removed = tuple(path for path in plan.manifest if path not in entries)
        contents = self._store(
            {entry.sha256: f"/workspace/{entry.path}" for entry in changed if entry.sha256}, owner_id
        )
        written = tuple(
            StoredFile(
                FileEntry(
                    path=entry.path,
                    kind=entry.kind,
                    bytes=entry.bytes,
                    sha256=entry.sha256,
                    media_type=entry.media_type,
                    executable=entry.executable,
                    changed_by_turn_id=turn_id,
                    modified_at=entry.modified_at,
                ),
                contents[entry.sha256].id if entry.sha256 else None,
            )
            for entry in changed
        )
        return Harvest(written, removed, _changes(changed, removed, plan), left_out)

    def check_limits(self) -> None:
        """Raise ValueError, for the model to mend, when the Workspace is larger than allowed."""
        answer = self._bridge.request(
            "scan", {"tree": "workspace", "limit": self._limits.max_workspace_files}, timeout_s=REQUEST_S
        )
        problem = self._problem(_parsed(answer)[0])
        if problem is not None:
            raise ValueError(f"{problem}; delete or shrink files in /workspace, then SUBMIT again")

    def publish(self, path: str, title: str) -> Publication:
        """A snapshot of a Workspace file. Raises ValueError with what the model can mend, SandboxLost."""
        asked = path.removeprefix("/workspace/")
        answer = self._bridge.request(
            "publish", {"path": asked, "limit": self._limits.max_file_bytes}, timeout_s=REQUEST_S
        )
        try:
            found = parse_path(str(answer["path"]))
            return Publication(
                path=found,
                title=clean_text(title.strip() or found.rpartition("/")[2])[:255],
                snapshot=str(answer["snapshot"]),
                bytes=int(answer["bytes"]),
                sha256=str(answer["sha256"]),
            )
        except (KeyError, TypeError, InvalidInput) as error:
            raise ValueError(f"{path} cannot be published") from error

    def store_publications(self, publications: Sequence[Publication], owner_id: str) -> dict[str, Blob]:
        """The stored content of publications by digest. Raises SandboxLost, StorageFull."""
        return self._store({item.sha256: item.snapshot for item in publications}, owner_id)

    def _scan(self, tree: str) -> dict[str, FileEntry]:
        try:
            answer = self._bridge.request("scan", {"tree": tree, "limit": 1_000_000}, timeout_s=REQUEST_S)
        except ValueError as error:
            raise SandboxLost(f"The sandbox's {tree} cannot be read: {error}.") from error
        return _parsed(answer)[0]

    def _place(
        self,
        tree: str,
        wanted: Sequence[Wanted],
        missing: Sequence[Wanted],
        present: Mapping[str, FileEntry],
        inline: frozenset[str],
        directories: Sequence[str],
    ) -> None:
        paths = {item.path for item in wanted}
        needed = paths | set(directories) | {parent for path in paths for parent in _parents(path)}
        removed = [path for path in present if path not in needed]
        modes = [item for item in wanted if item not in missing and _mode_differs(item, present.get(item.path))]
        new_folders = [path for path in directories if path not in present]
        if not missing and not removed and not new_folders and not modes:
            return
        seen: dict[str, int] = {}
        for item in missing:
            seen[item.sha256] = seen.get(item.sha256, 0) + 1
        files: list[dict[str, Any]] = []
        for item in missing:
            seen[item.sha256] -= 1
            files.append(self._file(item, inline, keep=seen[item.sha256] > 0))
        files += [self._file(item, frozenset({item.sha256}), keep=True) for item in modes]
        args = {
            "tree": tree,
            "files": files,
            "directories": list(directories),
            "removed": removed,
            "limit": 1_000_000,
            "read_only": tree == "attachments",
        }
        try:
            self._bridge.request("stage", args, timeout_s=REQUEST_S)
        except ValueError as error:
            raise SandboxLost(f"The sandbox could not take the files: {error}.") from error

    def _file(self, item: Wanted, inline: frozenset[str], *, keep: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"path": item.path, "mode": 0o755 if item.executable else 0o644}
        if item.modified_at is not None:
            message["mtime"] = item.modified_at
        if item.sha256 in inline:
            content = b"".join(read_blob(self._database, item.blob_id))
            return {**message, "data": base64.b64encode(content).decode("ascii")}
        return {**message, "from": f"{INCOMING}/{item.sha256}", "keep": keep}

    def _problem(self, entries: Mapping[str, FileEntry]) -> str | None:
        limits = self._limits
        total = sum(entry.bytes for entry in entries.values())
        if total > limits.max_workspace_bytes:
            return f"/workspace holds {total} bytes, {limits.max_workspace_bytes} are allowed"
        large = next((entry for entry in entries.values() if entry.bytes > limits.max_file_bytes), None)
        if large is not None:
            return f"/workspace/{large.path} has {large.bytes} bytes, {limits.max_file_bytes} are allowed"
        return None

    def _store(self, sources: Mapping[str, str], owner_id: str) -> dict[str, Blob]:
        """Blobs by digest for sandbox files by digest: known content is not fetched, small content rides the stream."""
        blobs: dict[str, Blob] = {}
        for digest in sources:
            known = self._database.run(lambda tx, digest=digest: find_blob(tx, owner_id, digest))  # type: ignore[misc]
            if known is not None:
                blobs[digest] = known
        paths = {path: digest for digest, path in sources.items() if digest not in blobs}
        if not paths:
            return blobs
        contents = self._contents(list(paths))
        for path, digest in paths.items():
            data = contents[path]
            if hashlib.sha256(data).hexdigest() != digest:
                raise SandboxLost(f"{path} changed while it was read.")
            try:
                blobs[digest] = write_blob(self._database, owner_id, [data], limit=self._limits.max_file_bytes)
            except TooLarge as error:
                raise StorageFull(error.detail) from error
        return blobs

    def _contents(self, paths: Sequence[str]) -> dict[str, bytes]:
        try:
            answer = self._bridge.request("read", {"paths": list(paths)}, timeout_s=REQUEST_S)
            inline = {path: base64.b64decode(text) for path, text in dict(answer).items() if text is not None}
        except (ValueError, TypeError) as error:
            raise SandboxLost(f"The sandbox's files cannot be read: {error}.") from error
        large = [path for path in paths if path not in inline]
        return {**inline, **(self._machine.download(large) if large else {})}


def _parsed(answer: Any) -> tuple[dict[str, FileEntry], tuple[str, ...]]:
    """The entries of a scan by path, and what was left out. Raises SandboxLost when the answer is malformed."""
    entries: dict[str, FileEntry] = {}
    left_out = [clean_text(str(path)) for path in answer["left_out"]]
    try:
        for path, kind, size, digest, executable, mtime in answer["entries"]:
            try:
                canonical = parse_path(path)
            except InvalidInput:
                left_out.append(clean_text(path))
                continue
            is_file = kind == "file"
            entries[canonical] = FileEntry(
                path=canonical,
                kind=FileKind.FILE if is_file else FileKind.DIRECTORY,
                bytes=int(size),
                sha256=str(digest) if is_file else None,
                media_type=media_type_of(canonical) if is_file else None,
                executable=executable is True,
                changed_by_turn_id=None,
                modified_at=datetime.fromtimestamp(float(mtime), UTC),
            )
    except (ValueError, TypeError, KeyError, OverflowError, OSError) as error:
        raise SandboxLost("The sandbox described its files in a way that cannot be read.") from error
    return entries, tuple(left_out)


def _missing(wanted: Sequence[Wanted], present: Mapping[str, FileEntry]) -> list[Wanted]:
    return [item for item in wanted if (found := present.get(item.path)) is None or found.sha256 != item.sha256]


def _mode_differs(item: Wanted, found: FileEntry | None) -> bool:
    return item.modified_at is not None and found is not None and found.executable != item.executable


def _inline(items: Mapping[str, Wanted]) -> frozenset[str]:
    left, chosen = INLINE_TOTAL, set()
    for digest, item in sorted(items.items(), key=lambda pair: pair[1].bytes):
        if item.bytes <= min(INLINE_FILE, left):
            left -= item.bytes
            chosen.add(digest)
    return frozenset(chosen)


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def _differs(entry: FileEntry, stored: StoredFile | None) -> bool:
    if stored is None:
        return True
    old = stored.entry
    return (old.kind, old.sha256, old.executable) != (entry.kind, entry.sha256, entry.executable)


def _changes(changed: Sequence[FileEntry], removed: Sequence[str], plan: Plan) -> tuple[FileChange, ...]:
    told = [
        FileChange(entry.path, Change.MODIFIED if entry.path in plan.manifest else Change.ADDED, entry.bytes)
        for entry in changed
        if entry.kind is FileKind.FILE
    ]
    gone = [path for path in removed if plan.manifest[path].entry.kind is FileKind.FILE]
    return (*told, *(FileChange(path, Change.DELETED, 0) for path in gone))


def _look(database: Database, item: Wanted) -> tuple[int | None, str]:
    """(lines, preview) of a text; (None, "") of anything else."""
    head = b"".join(read_blob(database, item.blob_id, length=4096))
    if b"\0" in head:
        return None, ""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return None, ""
        text = head[: error.start].decode("utf-8")
    if item.bytes > LINES_LIMIT:
        return None, shorten(text, PREVIEW)
    lines, last = 0, b""
    for piece in read_blob(database, item.blob_id):
        lines += piece.count(b"\n")
        last = piece[-1:]
    return lines + (1 if last and last != b"\n" else 0), shorten(text, PREVIEW)
