"""Small files that only their owner may read: the secret key and the token."""

import contextlib
import os
import secrets
from pathlib import Path


def read_kept(path: Path) -> str | None:
    """The kept text, None when there is none. A file that others could read is closed to them first."""
    try:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        return path.read_text(encoding="utf-8").strip() or None
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def write_kept(path: Path, text: str) -> None:
    """Keep a text, whole or not at all, file mode 0600."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def kept_or_new(path: Path) -> str:
    """The kept secret, made on the first call."""
    kept = read_kept(path)
    if kept is None:
        kept = secrets.token_urlsafe(32)
        write_kept(path, kept)
    return kept
