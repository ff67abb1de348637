"""Ids: random UUIDs as lower-case strings."""

import uuid


def new_id() -> str:
    """A fresh random id."""
    return str(uuid.uuid4())


def is_id(text: str) -> bool:
    """Whether `text` is a UUID in its canonical form."""
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False
