"""Where local mode keeps things: the data directory, which lasts, and the runtime directory, which ends with it.

The runtime directory has a short random name, because the path of a unix socket may have only 107 bytes; the card in
the data directory tells where it is.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet_term import config
from fleet_term.local.errors import LocalStartError

RUNTIME_PREFIX: Final = "fleet-"
#: Linux allows 107 bytes for the path of a unix socket, macOS 103.
MAX_SOCKET_PATH: Final = 103


@dataclass(frozen=True, slots=True)
class DataDir:
    """The layout of a data directory."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as anything of it lives."""
        return self.root / "lock"

    @property
    def card(self) -> Path:
        """Where the running supervisor is reached."""
        return self.root / "supervisor.json"

    @property
    def database(self) -> Path:
        """The SQLite database."""
        return self.root / "fleet.db"

    @property
    def secret_key(self) -> Path:
        """The kept FLEET_SECRET_KEY."""
        return self.root / "secret_key"

    @property
    def token(self) -> Path:
        """The kept API token of the owner."""
        return self.root / "token"

    @property
    def sandboxes(self) -> Path:
        """The folder of the loopback Daytona server."""
        return self.root / "daytona"

    @property
    def logs(self) -> Path:
        """The folder of the parts' logs."""
        return self.root / "logs"

    def log(self, name: str) -> Path:
        """The log of a part."""
        return self.logs / f"{name}.log"

    def prepare(self) -> None:
        """Create the directory for its owner alone. Raises LocalStartError when that is not possible."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Somebody's full folder that was named by mistake keeps its mode.
            if self.lock.exists() or not any(self.root.iterdir()):
                self.root.chmod(0o700)
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise LocalStartError(
                f"The data directory {self.root} cannot be used: {error.strerror}.",
                hint="Name another one with --data-dir DIR.",
            ) from error

    def is_locked(self) -> bool:
        """Whether a supervisor, or what is left of one, holds the directory."""
        try:
            with self.lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


@dataclass(frozen=True, slots=True)
class RuntimeDir:
    """The layout of a runtime directory."""

    root: Path

    @property
    def socket(self) -> Path:
        """Where terminals connect."""
        return self.root / "fleet.sock"

    @property
    def redis_socket(self) -> Path:
        """Where Redis listens."""
        return self.root / "redis.sock"

    @property
    def groups(self) -> Path:
        """The process groups of the parts, a number a line."""
        return self.root / "groups"

    def output(self, name: str) -> Path:
        """What a command wrote to its stdout."""
        return self.root / f"{name}.out"

    def remove(self) -> None:
        """Delete the directory with everything in it."""
        shutil.rmtree(self.root, ignore_errors=True)


def find_data_dir(given: Path | None, environment: Mapping[str, str]) -> DataDir:
    """The data directory that was named, else the default one. Raises LocalStartError for a path no URL can hold."""
    root = Path(os.path.realpath((given or config.local_data_dir(environment)).expanduser()))
    if "?" in str(root) or "#" in str(root):
        raise LocalStartError(f"The data directory {root} has a ? or # in its path.", hint="Name another one.")
    return DataDir(root)


def make_runtime_dir(environment: Mapping[str, str]) -> RuntimeDir:
    """A fresh private directory in the first place that is writable and has a short path. Raises LocalStartError."""
    places = (environment.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")
    for place in dict.fromkeys(places):
        if not Path(place).is_absolute():
            continue
        with contextlib.suppress(OSError):
            made = RuntimeDir(Path(tempfile.mkdtemp(prefix=RUNTIME_PREFIX, dir=place)))
            if len(os.fsencode(made.redis_socket)) <= MAX_SOCKET_PATH:
                return made
            made.remove()
    raise LocalStartError(
        f"There is no place for local mode's sockets: {', '.join(dict.fromkeys(filter(None, places)))} cannot be used.",
        hint="Set XDG_RUNTIME_DIR or TMPDIR to a writable folder with a short path.",
    )


def write_card(data: DataDir, runtime: RuntimeDir, *, protocol: int) -> None:
    """Tell terminals where the supervisor of this process is reached."""
    body = {"pid": os.getpid(), "protocol": protocol, "runtime_dir": str(runtime.root)}
    fresh = data.card.with_suffix(".new")
    fresh.write_text(json.dumps(body) + "\n", encoding="utf-8")
    fresh.replace(data.card)


def read_card(data: DataDir) -> RuntimeDir | None:
    """The runtime directory that the card names, None without a card."""
    try:
        body: dict[str, Any] = json.loads(data.card.read_text(encoding="utf-8"))
        return RuntimeDir(Path(body["runtime_dir"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def clear_stale(data: DataDir) -> None:
    """Remove what a supervisor that was killed left behind. Only for whoever holds the lock."""
    stale = read_card(data)
    if stale is not None and _is_ours(stale.root):
        stale.remove()
    data.card.unlink(missing_ok=True)


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and folder.name.startswith(RUNTIME_PREFIX)
