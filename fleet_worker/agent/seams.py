"""What the agent is given and gives back: plain values, and the few functions it calls on the outside."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleet_shared.domain.events import Draft, Fact
from fleet_shared.domain.events import Scope as EventScope
from fleet_shared.domain.turn import ForcedReason, Usage
from fleet_shared.settings import ModelChoice, Settings

#: Tells a fact or a draft in the scope of a child, `()` for the root. Never blocks for long; may raise LogFenced.
Emit = Callable[[Fact | Draft, EventScope], None]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A committed question and its answer."""

    turn: int
    question: str
    answer: str
    artifacts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileView:
    """A file in the sandbox as the model sees it. `source` is attachment or workspace, `lines` None when not text."""

    path: str
    name: str
    bytes: int
    media_type: str
    sha256: str
    lines: int | None
    preview: str
    source: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One Turn to think about."""

    turn_id: str
    session_id: str
    attempt: int
    question: str
    settings: Settings
    root: ModelChoice
    sub: ModelChoice
    history: tuple[Exchange, ...] = ()
    files: tuple[FileView, ...] = ()
    notes: tuple[str, ...] = ()
    network: str = "none"


@dataclass(frozen=True, slots=True)
class Publication:
    """A file the model published: the snapshot's place in the sandbox, its size and digest."""

    path: str
    title: str
    snapshot: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What thinking came to."""

    answer: str
    usage: Usage
    result: dict[str, Any] | None = None
    forced: ForcedReason | None = None
    publications: tuple[Publication, ...] = ()


class Publish(Protocol):
    """Takes a snapshot of a Workspace file. Raises ValueError with what the model can mend."""

    def __call__(self, path: str, title: str) -> Publication: ...


@dataclass(frozen=True, slots=True)
class JournalKey:
    """Names a model request: where it was asked and what it was."""

    scope: str
    iteration: int
    digest: str


class Journal(Protocol):
    """Model answers that were paid for (turn.md §4)."""

    def lookup(self, key: JournalKey) -> str | None:
        """The answer an earlier attempt got, each given out once."""

    def record(self, key: JournalKey, response: str) -> None:
        """Keep an answer before it is used. Raises LogFenced when the attempt lost its Turn."""


@dataclass(slots=True)
class NoJournal:
    """Keeps nothing."""

    kept: list[str] = field(default_factory=list)

    def lookup(self, key: JournalKey) -> str | None:
        """Nothing was kept."""
        return None

    def record(self, key: JournalKey, response: str) -> None:
        """Forget it."""
