"""What the supervisor may tell the host. Everything from the sandbox is untrusted: checked here, or refused."""

from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from fleet_shared.domain.text import clean_text

CellStatus = Literal["ok", "error", "timeout", "submit", "crashed"]
Stream = Literal["stdout", "stderr"]

_STATUSES: Final = ("ok", "error", "timeout", "submit", "crashed")
_TEXT_LIMIT: Final = 2_000_000
_NAME_LIMIT: Final = 200


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
    """A tool call of a kept cell with its reply, for a host that applies it again."""

    name: str
    args: dict[str, Any]
    ok: bool
    value: Any


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


FromSandbox = CellOutput | ToolCall | CellDone | Answer


def parse(message: dict[str, Any]) -> FromSandbox | None:
    """A message of the supervisor; None for kinds this version does not know. Raises BadMessage."""
    try:
        match message["t"]:
            case "out":
                stream: Stream = "stderr" if message["s"] == "e" else "stdout"
                return CellOutput(_name(message["lane"]), _count(message["cell"]), stream, _text(message["d"]))
            case "call":
                args = message["args"]
                if not isinstance(args, dict):
                    raise BadMessage("a call without arguments")
                lane, cell = _name(message["lane"]), _count(message["cell"])
                return ToolCall(lane, cell, _name(message["id"]), _name(message["fn"]), _clean(args))
            case "done":
                return _done(message)
            case "res":
                value = message.get("v")
                return Answer(_name(message["id"]), message["ok"] is True, value, _text(message.get("error") or ""))
            case _:
                return None
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage(f"a malformed {str(message.get('t'))[:20]} message") from error


def parse_welcome(message: dict[str, Any]) -> Welcome:
    """The answer to a hello. Raises BadMessage."""
    try:
        running = {_name(lane): _count(cell) for lane, cell in message["running"].items()}
        return Welcome(
            _name(message["c"]), _count(message["recv"]), _name(message["python"]), message["resumed"] is True, running
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage("a malformed welcome") from error


def _done(message: dict[str, Any]) -> CellDone:
    if message["status"] not in _STATUSES:
        raise BadMessage("an unknown status")
    submit = message.get("submit")
    if message["status"] == "submit" and not isinstance(submit, dict):
        raise BadMessage("a submit without values")
    error = message.get("error")
    calls = message["calls"] if message.get("replayed") is True else []
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
        error=_error(error) if error is not None else None,
        submit=_clean(submit) if isinstance(submit, dict) else None,
        lost=message["lost"] is True,
        replayed=message.get("replayed") is True,
        calls=tuple(
            AnsweredCall(_name(call["fn"]), _clean(dict(call["args"])), call["ok"] is True, _clean(call["v"]))
            for call in calls
        ),
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


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_LIMIT:
        raise BadMessage("a text that is none, or too long")
    return clean_text(value)


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
