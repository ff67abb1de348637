"""Facts and drafts as JSON text and as SSE messages. The only place that knows the format of the stream.

A stored *body* is the one-line JSON of a message without its `seq`, which is known only when the row is written;
`message_json` puts the number in front, so that a reader never has to parse what it passes on.
"""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any, Final

from fleet_shared.domain.events import DRAFTS, FACTS, FORMAT, Draft, Envelope, Fact
from fleet_shared.domain.text import clean_text

#: Upper bound of one message's JSON in bytes (http-api.md §4), with room left for the envelope when texts are split.
MESSAGE_BYTES: Final = 64 * 1024
TEXT_BYTES: Final = 48 * 1024

_SPLIT_FIELD: Final = {"reasoning": "text", "code": "code", "answer": "text", "output": "text"}


@dataclasses.dataclass(frozen=True, slots=True)
class Unknown:
    """A message of a type this version does not know; to be ignored, or shown as a generic line."""

    type: str
    fields: dict[str, Any]


def encode(told: Fact | Draft, envelope: Envelope) -> str:
    """The body of a fact or draft: one line of JSON without `seq`.

    Raises ValueError when it is larger than a message may be: long texts have to go through `split` first.
    """
    message: dict[str, Any] = {"type": told.type, "turn_id": envelope.turn_id, "at": format_time(envelope.at)}
    if isinstance(told, Fact):
        message["v"] = FORMAT
    if envelope.run_id is not None:
        message["run_id"] = envelope.run_id
    if envelope.attempt is not None:
        message["attempt"] = envelope.attempt
        message["scope"] = list(envelope.scope)
    message.update(_payload(told))
    body = json.dumps(_clean(message), ensure_ascii=False, separators=(",", ":"))
    if len(body.encode("utf-8")) > MESSAGE_BYTES:
        raise ValueError(f"a {told.type} message of {len(body)} characters does not fit into one message")
    return body


def split(fact: Fact) -> list[Fact]:
    """`fact`, or its parts when its text does not fit into one message; outputs are cut, other texts are numbered."""
    name = _SPLIT_FIELD.get(fact.type)
    if name is None:
        return [fact]
    pieces = _pieces(clean_text(getattr(fact, name)))
    if len(pieces) == 1:
        return [fact]
    values = {field.name: getattr(fact, field.name) for field in _fields(type(fact))}
    parts: list[Fact] = []
    for number, piece in enumerate(pieces, start=1):
        changes: dict[str, Any] = {name: piece}
        if "part" in values:
            changes |= {"part": number, "parts": len(pieces)}
        if number > 1 and "result" in values:
            changes |= {"result": None, "result_in_turn": None}
        parts.append(type(fact)(**(values | changes)))
    return parts


def message_json(body: str, seq: int) -> str:
    """The JSON of a stored fact as readers see it."""
    return f'{{"seq":{seq},{body[1:]}'


def sse_message(type_: str, data: str, seq: int | None) -> str:
    """One SSE message; `data` is one line of JSON, `seq` the id of a fact and None for a draft."""
    number = f"id: {seq}\n" if seq is not None else ""
    return f"event: {type_}\n{number}data: {data}\n\n"


def decode(data: str) -> tuple[Envelope, Fact | Draft | Unknown]:
    """The envelope and the fact or draft of a message's JSON.

    Unknown types become `Unknown`, unknown fields are dropped.

    Raises ValueError when the text is no message.
    """
    message = json.loads(data)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("not a message")
    try:
        envelope = Envelope(
            turn_id=str(message["turn_id"]),
            at=parse_time(message["at"]),
            seq=message.get("seq"),
            run_id=message.get("run_id"),
            attempt=message.get("attempt"),
            scope=tuple(message.get("scope") or ()),
        )
    except (KeyError, TypeError) as error:
        raise ValueError("a message without turn_id or at") from error
    kind = FACTS.get(message["type"]) or DRAFTS.get(message["type"])
    if kind is None:
        return envelope, Unknown(message["type"], message)
    known = {field.name for field in _fields(kind)}
    try:
        return envelope, kind(**{name: value for name, value in message.items() if name in known})
    except TypeError as error:
        raise ValueError(f"a {message['type']} message lacks a field") from error


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds and `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """The aware UTC time of an RFC 3339 text. Raises ValueError."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _fields(kind: type[Fact] | type[Draft]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]  # every registered class is a dataclass


def _payload(told: Fact | Draft) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for field in _fields(type(told)):
        value = getattr(told, field.name)
        if value is None and field.default is None:
            continue
        payload[field.name] = value
    return payload


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def _pieces(text: str) -> list[str]:
    """`text` in pieces whose JSON takes at most TEXT_BYTES each; at least one piece."""
    if _json_bytes(text) <= TEXT_BYTES:
        return [text]
    pieces: list[str] = []
    start = 0
    while start < len(text):
        size = TEXT_BYTES
        while _json_bytes(text[start : start + size]) > TEXT_BYTES:
            size = size // 2
        pieces.append(text[start : start + size])
        start += size
    return pieces


def _json_bytes(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8"))
