"""A terminal's side of local mode: finds the supervisor of a data directory or starts one, and stays connected to it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleet_term.local.wire import Progress

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConnection:
    """A terminal's hold on the supervisor: as long as it is open, local mode runs.

    `model` is the model in use, `isolation` how sandboxes are isolated (`bubblewrap` or `none`); `notes` are sentences
    the user should read: the model of this shell differs, sandboxes are not isolated, the demo model is in use.
    """

    url: str
    token: str
    model: str
    isolation: str
    notes: tuple[str, ...]
    data_dir: Path
    pids: dict[str, int]

    def news(self) -> tuple[str, ...]:
        """What the supervisor told since the last call (a part was restarted); never waits. Empty most of the time."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave. When this was the last terminal, no Turn is open and nobody asked to keep it, local mode ends."""
        raise NotImplementedError


def connect(
    data_dir: Path | None = None,
    *,
    keep: bool = False,
    allow_unisolated: bool = False,
    on_progress: OnProgress | None = None,
    timeout_s: float = 90.0,
) -> LocalConnection:
    """Join the supervisor of `data_dir` (None: the default one), starting it when there is none; returns when it is ready.

    `on_progress` is called in this thread for each step as it begins and ends. Raises LocalStartError (exit code 3).
    Ctrl-C while waiting leaves and, when nobody else is connected, stops what was started.
    """
    raise NotImplementedError
