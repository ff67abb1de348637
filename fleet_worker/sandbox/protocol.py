"""What the supervisor may tell the host. Everything from the sandbox is untrusted: checked here, or refused."""

from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from fleet_shared.domain.text import clean_text

CellStatus = Literal["ok", "error", "timeout", "submit", "crashed"]
Stream = Literal["stdout", "stderr"]

_STATUSES: Final = ("ok", "error", "timeout", "submit", "crashed")
_TEXT_LIMIT: Final = 2_000_000
_PIECE_LIMIT: Final = 50_000
_NAME_LIMIT: Final = 200
_HELD_LIMIT: Final = 1000


class BadMessage(Exception):
    """The sandbox sent something that is not part of the protocol."""


@dataclass(frozen=True, slots=True)
class CellOutput:
    """Text a running cell wrote."""

    lane: str
    cell: int
    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A cell calls a host tool."""

    lane: str
    cell: int
    id: str
    name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CellError:
    """Why a cell failed, for the model: kind and message as Python names them, trace with the cell's line numbers."""

    kind: str
    message: str
    trace: str
    is_syntax: bool = False


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A tool call with its reply that this host has not seen, to be applied again.

    `is_cut` when the supervisor had no room to keep arguments and value.
    """

    name: str
    args: dict[str, Any]
    ok: bool
    value: Any
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a tree held when a cell submitted: the value of a scan, or why there is none."""

    ok: bool
    value: Any
    error: str


@dataclass(frozen=True, slots=True)
class CellDone:
    """A cell ended. `text` is its output, bounded; `chars` the true size; `full_path` where the whole of it is."""

    lane: str
    cell: int
    status: CellStatus
    text: str
    chars: int
    truncated: bool
    full_path: str | None
    duration_ms: int
    busy_ms: int
    error: CellError | None
    submit: dict[str, Any] | None
    lost: bool
    replayed: bool
    calls: tuple[AnsweredCall, ...]
    scan: Scanned | None = None


@dataclass(frozen=True, slots=True)
class VariablesNeeded:
    """The cell was not run: the sandbox no longer holds these variables, by digest."""

    lane: str
    cell: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a request about files."""

    id: str
    ok: bool
    value: Any
    error: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The supervisor obeys this host from now on."""

    connection: str
    received: int
    python: str
    resumed: bool
    running: dict[str, int]
    held: frozenset[str] = frozenset()


FromSandbox = CellOutput | ToolCall | CellDone | VariablesNeeded | Answer


def parse(message: dict[str, Any]) -> FromSandbox | None:
    """A message of the supervisor; None for kinds this version does not know. Raises BadMessage."""
    try:
        match message["t"]:
            case "out":
                stream: Stream = "stderr" if message["s"] == "e" else "stdout"
                return CellOutput(
                    _name(message["lane"]), _count(message["cell"]), stream, _text(message["d"], _PIECE_LIMIT)
                )
            case "call":
                args = message["args"]
                if not isinstance(args, dict):
                    raise BadMessage("a call without arguments")
                lane, cell = _name(message["lane"]), _count(message["cell"])
                return ToolCall(lane, cell, _name(message["id"]), _name(message["fn"]), _clean(args))
            case "done":
                return _done(message)
            case "need":
                digests = tuple(_name(item) for item in _list(message["d"], _HELD_LIMIT))
                return VariablesNeeded(_name(message["lane"]), _count(message["cell"]), digests)
            case "res":
                value = message.get("v")
                return Answer(_name(message["id"]), message["ok"] is True, value, _text(message.get("error") or ""))
            case _:
                return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadMessage(f"a malformed {str(message.get('t'))[:20]} message") from error


def parse_welcome(message: dict[str, Any]) -> Welcome:
    """The answer to a hello. Raises BadMessage."""
    try:
        running = {_name(lane): _count(cell) for lane, cell in message["running"].items()}
        return Welcome(
            connection=_name(message["c"]),
            received=_count(message["recv"]),
            python=_name(message["python"]),
            resumed=message["resumed"] is True,
            running=running,
            held=frozenset(_name(item) for item in _list(message["held"], _HELD_LIMIT)),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadMessage("a malformed welcome") from error


def _done(message: dict[str, Any]) -> CellDone:
    if message["status"] not in _STATUSES:
        raise BadMessage("an unknown status")
    submit = message.get("submit")
    if message["status"] == "submit" and not isinstance(submit, dict):
        raise BadMessage("a submit without values")
    error = message.get("error")
    if message["status"] not in ("ok", "submit") and not isinstance(error, dict):
        raise BadMessage("a failure without an error")
    scan = message.get("scan")
    return CellDone(
        lane=_name(message["lane"]),
        cell=_count(message["cell"]),
        status=cast(CellStatus, message["status"]),
        text=_text(message["text"]),
        chars=_count(message["chars"]),
        truncated=message["truncated"] is True,
        full_path=_name(message["full"]) if message.get("full") else None,
        duration_ms=_count(message["ms"]),
        busy_ms=_count(message["busy_ms"]),
        error=_error(error) if isinstance(error, dict) else None,
        submit=_clean(submit) if isinstance(submit, dict) else None,
        lost=message["lost"] is True,
        replayed=message.get("replayed") is True,
        calls=tuple(_answered(call) for call in _list(message["calls"], 100_000)),
        scan=Scanned(scan["ok"] is True, scan.get("v"), _text(scan.get("error") or "")) if scan is not None else None,
    )


def _answered(call: dict[str, Any]) -> AnsweredCall:
    return AnsweredCall(
        name=_name(call["fn"]),
        args=_clean(dict(call["args"])),
        ok=call["ok"] is True,
        value=_clean(call["v"]),
        is_cut=call.get("cut") is True,
    )


def _error(error: dict[str, Any]) -> CellError:
    return CellError(
        kind=_text(error["kind"])[:_NAME_LIMIT],
        message=_text(error["message"])[:20_000],
        trace=_text(error.get("trace") or "")[:8000],
        is_syntax=error.get("syntax") is True,
    )


def _name(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _NAME_LIMIT:
        raise BadMessage("a name that is none")
    return clean_text(value)


def _text(value: Any, limit: int = _TEXT_LIMIT) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise BadMessage("a text that is none, or too long")
    return clean_text(value)


def _list(value: Any, limit: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > limit:
        raise BadMessage("a list that is none, or too long")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise BadMessage("a count that is none")
    return value


def _clean(value: Any) -> Any:
    """JSON data whose texts can be stored and shown."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
