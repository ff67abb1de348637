"""The processes a supervisor keeps: started in groups of their own, ended with it whatever happens to it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
#: Starts again within a minute before a part counts as broken.
RESTARTS: Final = 3
#: Bytes of a log above which it is begun anew at the next start, with the old one kept beside it.
LOG_BYTES: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a part is started. `stop_s` is how long it may take to end when told to."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    stop_s: float
    port: int | None = None
    output: Path | None = None


@dataclass(slots=True)
class Process:
    """A part that runs. Start it from the main thread: the kernel ties a child's life to the thread that made it."""

    recipe: Recipe
    running: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started: list[float] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self.running.pid if self.running is not None and self.running.poll() is None else None

    def start(self) -> None:
        """Start it."""
        recipe = self.recipe
        self.started = [*self.started[-RESTARTS:], time.monotonic()]
        _rotate(recipe.log)
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(recipe.log.open("ab"))
            output = stack.enter_context(recipe.output.open("wb")) if recipe.output is not None else log
            self.running = subprocess.Popen(
                recipe.command,
                env=dict(recipe.environment),
                cwd=recipe.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def may_restart(self) -> bool:
        """Whether it has not been started too often within the last minute."""
        recent = [at for at in self.started if time.monotonic() - at < 60]
        return len(recent) <= RESTARTS

    def stop(self, wait: Callable[[float], None]) -> None:
        """Tell it to end, and kill it when it does not in time; `wait` is called while waiting."""
        process = self.running
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            deadline = time.monotonic() + self.recipe.stop_s
            while process.poll() is None and time.monotonic() < deadline:
                wait(0.05)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.running = None

    def tail(self, lines: int = 8) -> tuple[str, ...]:
        """The last lines of its log."""
        return tail(self.recipe.log, lines)


def tail(path: Path, lines: int) -> tuple[str, ...]:
    """The last lines of a file."""
    try:
        with path.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - 64 * 1024))
            return tuple(source.read().decode("utf-8", "replace").splitlines()[-lines:])
    except OSError:
        return ()


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
