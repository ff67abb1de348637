"""A terminal's side of local mode: finds the supervisor of a data directory or starts one, and stays connected."""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleet_term import config
from fleet_term.local.environment import model_of, settings_digests
from fleet_term.local.errors import LocalStartError
from fleet_term.local.places import DataDir, find_data_dir, read_card
from fleet_term.local.processes import tail
from fleet_term.local.wire import (
    Draining,
    Failed,
    Hello,
    Message,
    Progress,
    Ready,
    Refused,
    Told,
    WireError,
    decode,
    encode,
)

OnProgress = Callable[[Progress], None]
#: A library of each process that local mode starts: they come with the extra `local`.
NEEDED: Final = ("flask", "celery", "dspy", "daytona", "aiohttp")
#: Seconds between two tries to reach a supervisor that starts or ends.
RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConnection:
    """A terminal's hold on the supervisor: as long as it is open, local mode runs.

    `model` is the model in use, `isolation` how sandboxes are isolated (`bubblewrap` or `none`); `notes` are sentences
    the user should read: the model of this shell differs, sandboxes are not isolated, the demo model is in use.
    """

    url: str
    token: str = field(repr=False)
    model: str
    isolation: str
    notes: tuple[str, ...]
    data_dir: Path
    pids: Mapping[str, int]
    line: "Line" = field(repr=False)

    def news(self) -> tuple[str, ...]:
        """What the supervisor told since the last call (a part was restarted); never waits. Empty most of the time."""
        return tuple(message.text for message in self.line.waiting() if isinstance(message, Told))

    def close(self) -> None:
        """Leave. When this was the last terminal, no Turn is open and nobody asked to keep it, local mode ends."""
        self.line.close()


class Line:
    """A connection to a supervisor, message by message."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError."""
        self._sock.sendall(encode(message))

    def receive(self, timeout_s: float | None) -> Message | None:
        """The next message; None at the end. Raises TimeoutError, OSError, WireError."""
        self._sock.settimeout(timeout_s)
        while b"\n" not in self._buffer:
            data = self._sock.recv(65536)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return decode(line)

    def waiting(self) -> list[Message]:
        """The messages that are there already."""
        found: list[Message] = []
        with contextlib.suppress(TimeoutError, BlockingIOError, OSError, WireError):
            while (message := self.receive(0.0)) is not None:
                found.append(message)
        return found

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def connect(
    data_dir: Path | None = None,
    *,
    keep: bool = False,
    allow_unisolated: bool = False,
    on_progress: OnProgress | None = None,
    timeout_s: float = 90.0,
) -> LocalConnection:
    """Join the supervisor of `data_dir` (None: the default one), starting it when there is none, until it is ready.

    `on_progress` is called in this thread for each step as it begins and ends. Raises LocalStartError (exit code 3).
    Ctrl-C while waiting leaves and, when nobody else is connected, stops what was started.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = "Install it into the same environment; in a clone: pip install '.[local]'"
        raise LocalStartError(f"Local mode needs what the terminal alone does not: {', '.join(missing)}.", hint=hint)
    environment = config.environ()
    data = find_data_dir(data_dir, environment)
    data.prepare()
    deadline = time.monotonic() + timeout_s
    hello = Hello(pid=os.getpid(), keep=keep, allow_unisolated=allow_unisolated)
    while time.monotonic() < deadline:
        line = _reach(data, deadline)
        try:
            line.send(hello)
            ready = _wait_ready(line, deadline, on_progress or (lambda _: None))
        except (OSError, WireError):
            ready = None
        except BaseException:
            line.close()
            raise
        if ready is not None:
            return _connection(ready, line, environment)
        line.close()
        time.sleep(RETRY_S)
    raise LocalStartError(f"Local mode was not ready within {timeout_s:g} s.", hint=_logs_hint(data))


def open_line(data: DataDir) -> Line | None:
    """A connection to the running supervisor of a data directory; None when there is none."""
    runtime = read_card(data)
    if runtime is None:
        return None
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    try:
        sock.connect(str(runtime.socket))
    except OSError:
        sock.close()
        return None
    return Line(sock)


def _reach(data: DataDir, deadline: float) -> Line:
    """A connection, with a supervisor started when the data directory is free."""
    started: subprocess.Popen[bytes] | None = None
    while time.monotonic() < deadline:
        line = open_line(data)
        if line is not None:
            return line
        if started is not None and started.poll() not in (None, 0) and not data.is_locked():
            told = tail(data.log("supervisor"), 8)
            raise LocalStartError("Local mode did not start.", hint=_logs_hint(data), log_tail=told)
        if (started is None or started.poll() is not None) and not data.is_locked():
            started = _spawn(data)
        time.sleep(RETRY_S)
    raise LocalStartError("Local mode cannot be reached.", hint=_logs_hint(data))


def _spawn(data: DataDir) -> "subprocess.Popen[bytes]":
    """A detached supervisor."""
    with data.log("supervisor").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fleet_term.local.supervisor", str(data.root)],
            cwd=data.root,
            env=_with_our_path(dict(config.environ())),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _with_our_path(environment: dict[str, str]) -> dict[str, str]:
    """The environment with the folder this package runs from, which need not be installed."""
    root = str(Path(__file__).resolve().parents[2])
    known = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
    if root in sys.path and root not in known and not root.endswith("site-packages"):
        environment["PYTHONPATH"] = ":".join([root, *known])
    return environment


def _wait_ready(line: Line, deadline: float, on_progress: OnProgress) -> Ready | None:
    """The supervisor's word that all runs; None when another one has to be asked. Raises LocalStartError."""
    while True:
        message = line.receive(max(0.1, deadline - time.monotonic()))
        match message:
            case Ready():
                return message
            case Progress():
                on_progress(message)
            case Failed():
                raise LocalStartError(message.message, hint=message.hint, log_tail=message.log_tail)
            case Refused() if not message.retry:
                raise LocalStartError(message.message, hint=message.hint)
            case Refused() | Draining() | None:
                return None
            case _:
                pass


def _connection(ready: Ready, line: Line, environment: Mapping[str, str]) -> LocalConnection:
    notes: list[str] = []
    if environment.get("FLEET_MODEL") and model_of(environment) != ready.model:
        notes.append(
            f"Local mode runs with {ready.model}; this shell names {model_of(environment)}. To change it, end local "
            "mode first: fleet-term local stop"
        )
    elif any(ready.settings.get(name) != value for name, value in settings_digests(environment).items()):
        notes.append(
            "This shell has other settings than local mode was started with: fleet-term local stop applies them."
        )
    if ready.isolation == "none":
        notes.append("Sandboxes are not isolated here: there is no bubblewrap.")
    return LocalConnection(
        url=ready.url,
        token=ready.token,
        model=ready.model,
        isolation=ready.isolation,
        notes=tuple(notes),
        data_dir=Path(ready.data_dir),
        pids=ready.pids,
        line=line,
    )


def _logs_hint(data: DataDir) -> str:
    return f"Its logs are in {data.logs}."
