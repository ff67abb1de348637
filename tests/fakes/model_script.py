"""What a scripted model answers, as plain values: the request as a script sees it, answers, faults.

A script decides by the request alone, so that requests at the same time do not disturb each other. Sockets and HTTP are
left to `model_server`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_ITERATION = re.compile(r"^\[\[ ## iteration ## \]\]\s*(\d+)/(\d+)", re.MULTILINE)
_FIELD = re.compile(r"\[\[ ## (\w+) ## \]\]")
_FENCE = re.compile(r"```.*```", re.DOTALL)

Role = Literal["root", "extract", "sub"]
Kind = Literal["status", "reset", "cut", "hang", "trickle", "empty", "prose", "fence", "json", "length"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its last message, who asks, and for an action the loop's place `iteration` of `iterations`."""

    text: str
    model: str
    role: Role
    iteration: int | None
    iterations: int | None
    wanted: tuple[str, ...]
    streamed: bool
    wants_usage: bool
    prompt_tokens: int
    authorization: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with the reason it ended."""

    text: str
    finish: Literal["stop", "length"] = "stop"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with the next `times` requests (of one role only when it is given).

    status: an HTTP error. reset: the connection is reset. cut: the answer breaks off in the middle. hang: not even
    headers, for `seconds`. trickle: `seconds` between two pieces. The others spoil the text: empty; prose without any
    marker; the code fence alone; a JSON object; the first half with finish_reason length.
    """

    kind: Kind
    times: int = 1
    role: Role | None = None
    status: int = 500
    code: str = "server_error"
    message: str = "scripted failure"
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 60.0


Script = Callable[[Asked], str | Reply]


def refused(status: Literal[401, 403] = 401, *, times: int = 1) -> Fault:
    """The key is not accepted."""
    code = "invalid_api_key" if status == 401 else "permission_denied"
    return Fault("status", times, status=status, code=code, message="Incorrect API key provided.")


def rate_limited(retry_after: str | None = "0", *, times: int = 1) -> Fault:
    """Too many requests; `retry_after` is the header's text."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Fault("status", times, status=429, code="rate_limit_exceeded", message="Rate limit reached", headers=headers)


def too_long(*, times: int = 1) -> Fault:
    """The prompt does not fit the model's context."""
    message = "This model's maximum context length is 8192 tokens."
    return Fault("status", times, status=400, code="context_length_exceeded", message=message)


def action(code: str, reasoning: str = "Next step.") -> str:
    """An answer of the root: what it thinks and the code of the next cell."""
    return fields({"reasoning": reasoning, "code": f"```python\n{code}\n```"})


def fields(values: Mapping[str, str]) -> str:
    """An answer in the loop's format."""
    return "\n\n".join([*(f"[[ ## {name} ## ]]\n{text}" for name, text in values.items()), "[[ ## completed ## ]]"])


def steps(
    *codes: str, sub: Callable[[str], str] = lambda prompt: f"sub: {prompt[:40]}", extract: str = "extracted"
) -> Script:
    """A script of one code per iteration, the last one repeated; `extract` fills every field of an extraction."""

    def script(asked: Asked) -> str:
        match asked.role:
            case "root":
                assert asked.iteration is not None
                return action(codes[min(asked.iteration, len(codes)) - 1])
            case "extract":
                return fields(dict.fromkeys(asked.wanted or ("answer",), extract))
            case "sub":
                return sub(asked.text)

    return script


def asked_in(body: Mapping[str, Any], authorization: str) -> Asked:
    """The request of a chat completion's body."""
    texts = [_text(message.get("content")) for message in body["messages"]]
    last = texts[-1]
    place = _ITERATION.search(last)
    # The closing reminder names the fields the answer must have.
    reminder = last[last.rfind("Respond with") :] if "Respond with" in last else ""
    role: Role = "root" if place else "extract" if "[[ ## repl_history ## ]]" in last else "sub"
    return Asked(
        text=last,
        model=str(body["model"]),
        role=role,
        iteration=int(place.group(1)) if place else None,
        iterations=int(place.group(2)) if place else None,
        wanted=tuple(name for name in _FIELD.findall(reminder) if name != "completed"),
        streamed=bool(body.get("stream")),
        wants_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        prompt_tokens=sum(tokens(text) for text in texts),
        authorization=authorization,
    )


def spoiled(reply: Reply, kind: Kind) -> Reply:
    """The reply as a fault of this kind leaves it."""
    match kind:
        case "empty":
            return Reply("")
        case "prose":
            return Reply(_FENCE.sub("", _FIELD.sub("", reply.text)).strip() or "I would look at the data first.")
        case "fence":
            found = _FENCE.search(reply.text)
            return Reply(found.group() if found else reply.text)
        case "json":
            parts = _FIELD.split(reply.text)
            pairs = zip(parts[1::2], parts[2::2], strict=True)
            return Reply(json.dumps({name: text.strip() for name, text in pairs if name != "completed"}))
        case "length":
            return Reply(reply.text[: len(reply.text) // 2], "length")
        case _:
            return reply


def tokens(text: str) -> int:
    """A count anyone can compute: four characters a token, at least one."""
    return max(1, (len(text) + 3) // 4)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [])
