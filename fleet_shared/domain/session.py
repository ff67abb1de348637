"""A Session: a durable conversation of one owner."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

TITLE_LIMIT: Final = 255
DEFAULT_TITLE: Final = "New session"


class SessionStatus(StrEnum):
    """An archived Session takes no new Turns and has no sandbox."""

    ACTIVE = "active"
    ARCHIVED = "archived"


@dataclass(frozen=True, slots=True)
class Session:
    """A Session as its owner sees it. `turn_count` counts all Turns ever accepted, `open_turn_id` the one not ended."""

    id: str
    owner_id: str
    title: str
    status: SessionStatus
    turn_count: int
    workspace_revision: int
    created_at: datetime
    updated_at: datetime
    open_turn_id: str | None
