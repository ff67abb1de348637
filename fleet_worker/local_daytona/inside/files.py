"""File operations of the toolbox, done with the sandbox user's eyes and rights. Streams the bytes of no file itself:
`open_file` hands the descriptor to the server."""

from __future__ import annotations

import datetime
import errno
import fnmatch
import grp
import os
import pwd
import shutil
import stat
from typing import Any, Callable

ENTRIES_LIMIT = 50_000
"""Most entries one listing or search returns."""
LINE_LIMIT = 64 * 1024
"""Longest line `find` looks at, as the scanner of the real daemon."""


class Refused(Exception):
    """An operation that cannot be done: a code for the server to translate, and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refusal(error: OSError) -> Refused:
    """The operating system's error as one of our codes."""
    codes = {
        errno.ENOENT: "not_found",
        errno.ENOTDIR: "not_found",
        errno.EACCES: "forbidden",
        errno.EPERM: "forbidden",
        errno.EROFS: "forbidden",
        errno.EEXIST: "exists",
        errno.ENOTEMPTY: "exists",
        errno.ENOSPC: "full",
        errno.EDQUOT: "full",
    }
    return Refused(
        codes.get(error.errno or 0, "invalid"), f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    )


def open_file(path: str, write: bool) -> tuple[dict[str, Any], int]:
    """A descriptor of a regular file, opened to read, or created (with its parents) and emptied to write."""
    if write:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o755, exist_ok=True)
        fd = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, stat.S_ISREG)
    else:
        fd = _open(path, os.O_RDONLY, stat.S_ISREG)
    return {"size": os.fstat(fd).st_size}, fd


def open_append(path: str) -> int:
    """A descriptor that adds to a regular file that exists."""
    return _open(path, os.O_WRONLY | os.O_APPEND, stat.S_ISREG)


def open_fifo(path: str) -> int:
    """A descriptor that writes into a named pipe that has a reader."""
    return _open(path, os.O_WRONLY, stat.S_ISFIFO)


def _open(path: str, flags: int, is_expected: Callable[[int], bool]) -> int:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o644)
    if not is_expected(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused("invalid", f"not a regular file: {path}")
    return fd


def info(path: str) -> dict[str, Any]:
    """What the toolbox tells about one path (symbolic links are followed unless they dangle)."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        found = os.lstat(path)
    changed = datetime.datetime.fromtimestamp(found.st_mtime, datetime.timezone.utc)
    full = os.path.abspath(path)
    return {
        "name": os.path.basename(full),
        "path": full,
        "size": found.st_size,
        "mode": stat.filemode(found.st_mode),
        "permissions": f"{stat.S_IMODE(found.st_mode):04o}",
        "modTime": changed.strftime("%Y-%m-%d %H:%M:%S.%f +0000 UTC"),
        "modifiedAt": changed.isoformat().replace("+00:00", "Z"),
        "isDir": stat.S_ISDIR(found.st_mode),
        "owner": _user(found.st_uid),
        "group": _group(found.st_gid),
    }


def listing(path: str, depth: int) -> list[dict[str, Any]]:
    """The entries of a directory, down to `depth` levels, sorted by path."""
    entries: list[dict[str, Any]] = []
    level = [path]
    for _ in range(max(1, depth)):
        below = []
        for folder in level:
            for name in sorted(os.listdir(folder)):
                entry = os.path.join(folder, name)
                try:
                    entries.append(info(entry))
                except OSError:
                    continue  # gone since it was listed
                if entries[-1]["isDir"] and not os.path.islink(entry):
                    below.append(entry)
                if len(entries) >= ENTRIES_LIMIT:
                    return entries
        level = below
    return sorted(entries, key=lambda entry: str(entry["path"]))


def make_folder(path: str, mode: str) -> None:
    """Create a directory and its parents; it may exist already."""
    permissions = _octal(mode or "755")
    made = not os.path.isdir(path)
    os.makedirs(path, exist_ok=True)
    if made:
        os.chmod(path, permissions)


def remove(path: str, recursive: bool) -> None:
    """Delete a file, or with `recursive` a directory and everything below it."""
    if os.path.isdir(path) and not os.path.islink(path):
        if not recursive:
            raise Refused("invalid", "cannot delete directory without recursive flag")
        shutil.rmtree(path)
    else:
        os.remove(path)


def move(source: str, destination: str) -> None:
    """Rename; refuses to replace what is there."""
    os.lstat(source)
    if os.path.lexists(destination):
        raise Refused("exists", f"destination exists: {destination}")
    os.makedirs(os.path.dirname(os.path.abspath(destination)), exist_ok=True)
    shutil.move(source, destination)


def permissions(path: str, mode: str, owner: str, group: str) -> None:
    """Change mode, owner and group of a path; empty means unchanged."""
    if mode:
        os.chmod(path, _octal(mode))
    if owner or group:
        try:
            shutil.chown(path, owner or None, group or None)  # type: ignore[arg-type]
        except LookupError as error:
            raise Refused("invalid", str(error)) from error


def search(path: str, pattern: str) -> list[str]:
    """Paths below `path` whose name fits a shell pattern."""
    os.listdir(path)
    found: list[str] = []
    for folder, folders, names in os.walk(path):
        for name in sorted(folders) + sorted(names):
            if fnmatch.fnmatchcase(name, pattern):
                found.append(os.path.join(folder, name))
                if len(found) >= ENTRIES_LIMIT:
                    return found
    return found


def find(path: str, pattern: str) -> list[dict[str, Any]]:
    """Lines that contain a text, in one file or every text file below a directory."""
    os.lstat(path)
    found: list[dict[str, Any]] = []
    for file in _regular_files(path):
        try:
            with open(file, "rb") as stream:
                if b"\0" in stream.read(512):
                    continue
                stream.seek(0)
                for number, line in enumerate(iter(lambda: stream.readline(LINE_LIMIT), b""), 1):
                    text = line.decode("utf-8", "replace").rstrip("\r\n")
                    if pattern in text:
                        found.append({"file": file, "line": number, "content": text})
                        if len(found) >= ENTRIES_LIMIT:
                            return found
        except OSError:
            continue
    return found


def replace(files: list[str], pattern: str, text: str) -> list[dict[str, Any]]:
    """Replace a text in each file; a result per file."""
    results: list[dict[str, Any]] = []
    for file in files:
        try:
            with open(file, encoding="utf-8", newline="") as stream:
                content = stream.read()
            with open(file, "w", encoding="utf-8", newline="") as stream:
                stream.write(content.replace(pattern, text))
            results.append({"file": file, "success": True})
        except (OSError, UnicodeDecodeError) as error:
            results.append({"file": file, "success": False, "error": str(error)})
    return results


def _regular_files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [
        file
        for folder, _, names in os.walk(path)
        for file in (os.path.join(folder, name) for name in sorted(names))
        if stat.S_ISREG(os.lstat(file).st_mode)
    ]


def _octal(mode: str) -> int:
    try:
        return int(mode, 8) & 0o7777
    except ValueError as error:
        raise Refused("invalid", f"invalid mode: {mode}") from error


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
