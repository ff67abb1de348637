"""The messages between terminals and the supervisor: one JSON object per line over a unix socket, as frozen values."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Raised whenever a message changes its meaning; the supervisor refuses another number.
PROTOCOL: Final = 1
#: Longest line that either side reads, in bytes.
MAX_LINE: Final = 256 * 1024


class WireError(Exception):
    """The peer sent something that is not a message of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A terminal joins and stays until its connection ends. The first message of a terminal."""

    protocol: int = PROTOCOL
    pid: int
    keep: bool = False
    allow_unisolated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask for the status; the first and only message of its connection, which does not count as a terminal."""

    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ask the supervisor to drain and end, whoever is connected. Answered by `Draining`, then by the end of file."""

    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A step of the start. `elapsed_ms` counts from the start of the step and is 0 when it begins."""

    step: str
    text: str
    done: bool
    elapsed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A process the supervisor keeps. `restarts` counts since the start, `port` is None where there is none."""

    name: str
    pid: int | None
    port: int | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Everything runs. `settings` maps the names of the settings in force to digests of their values."""

    url: str
    token: str
    model: str
    isolation: str
    data_dir: str
    version: str
    versions: Mapping[str, str]
    pids: Mapping[str, int]
    settings: Mapping[str, str]
    unisolated_allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The start failed; the supervisor ends."""

    message: str
    hint: str
    log_tail: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """This connection is not served; `retry` says that another one will be, once this supervisor has ended."""

    message: str
    hint: str = ""
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Something a terminal should know while it is connected: a part died and was started again."""

    level: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    """The supervisor is on its way out. `open_turns` counts Turns that had not ended, None when that is not known."""

    open_turns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer to `Ask`."""

    state: str
    pid: int
    url: str | None
    model: str
    isolation: str | None
    data_dir: str
    runtime_dir: str
    version: str
    uptime_s: float
    keep: bool
    terminals: tuple[int, ...]
    parts: tuple[Part, ...]
    phases: Mapping[str, int]


Message = Hello | Ask | Stop | Progress | Ready | Failed | Refused | Told | Draining | Report

_KINDS: Final[dict[str, type[Message]]] = {
    kind.__name__.lower(): kind for kind in (Hello, Ask, Stop, Progress, Ready, Failed, Refused, Told, Draining, Report)
}


def encode(message: Message) -> bytes:
    """A message as one line."""
    body = {"type": type(message).__name__.lower(), **dataclasses.asdict(message)}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line. Fields this version does not know are ignored. Raises WireError."""
    try:
        body: dict[str, Any] = json.loads(line)
        kind = _KINDS[body.pop("type")]
        known = {field.name for field in dataclasses.fields(kind)}
        values = {name: value for name, value in body.items() if name in known}
        for name in ("log_tail", "terminals"):
            if name in values:
                values[name] = tuple(values[name])
        if "parts" in values:
            values["parts"] = tuple(Part(**part) for part in values["parts"])
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"not a message of local mode: {line[:80]!r}") from error
