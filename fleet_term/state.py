"""What a terminal knows of a Turn, as a pure function of its events: the same facts give the same blocks at any time.

A block is something to print, once; nothing printed is ever changed. What is still being written is in `draft`.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

#: Lines of a cell's output that are printed as they come; of the rest only the end is shown.
OUTPUT_LINES: Final = 30
OUTPUT_TAIL: Final = 5


class Kind(StrEnum):
    """What a block is."""

    USER = "user"
    STATUS = "status"
    REASONING = "reasoning"
    CODE = "code"
    OUTPUT = "output"
    ERROR_OUTPUT = "error_output"
    TOOL = "tool"
    NOTICE = "notice"
    USAGE = "usage"
    ARTIFACT = "artifact"
    FILE = "file"
    ANSWER = "answer"
    FAILURE = "failure"


class Phase(StrEnum):
    """Where a Turn is."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """Whether the Turn still goes on."""
        return self in (Phase.QUEUED, Phase.RUNNING, Phase.CANCELLING)


@dataclass(frozen=True, slots=True)
class Block:
    """Something to print. `title` is a short head line, `indent` the depth of a child."""

    kind: Kind
    text: str
    title: str = ""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """What the model is writing in an iteration."""

    n: int = 0
    reasoning: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class TurnState:
    """A Turn as seen so far."""

    phase: Phase = Phase.IDLE
    seq: int = 0
    attempt: int = 0
    doing: str = ""
    model: str = ""
    n: int = 0
    max: int = 0
    coded: int = 0
    tokens: int = 0
    tools: int = 0
    draft: Draft = Draft()
    partial: str = ""
    partial_kind: Kind = Kind.OUTPUT
    lines: int = 0
    hidden: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    error_code: str = ""
    answer: str = ""
    forced: str = ""
    artifacts: tuple[dict[str, Any], ...] = field(default=())


def reduce(state: TurnState, type_: str, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    """The state after an event, and what to print. Facts that were seen already change nothing."""
    seq = fields.get("seq")
    if seq is None:
        return _draft(state, type_, fields), []
    if seq <= state.seq:
        return state, []
    state = replace(state, seq=seq)
    handler = _FACTS.get(type_)
    return handler(state, fields) if handler is not None else (state, [])


def _draft(state: TurnState, type_: str, fields: dict[str, Any]) -> TurnState:
    if fields.get("attempt", 0) < state.attempt or fields.get("scope"):
        return state
    n, draft = int(fields.get("n", 0)), state.draft
    if n < state.n or n <= state.coded:
        return state
    if draft.n != n:
        draft = Draft(n)
    match type_:
        case "reasoning.delta":
            draft = replace(draft, reasoning=draft.reasoning + str(fields.get("text", "")))
        case "code.delta":
            draft = replace(draft, code=draft.code + str(fields.get("text", "")))
        case "draft":
            draft = Draft(n, str(fields.get("reasoning", "")), str(fields.get("code", "")))
    return replace(state, draft=draft)


def _queued(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return replace(state, phase=Phase.QUEUED, doing="queued"), [Block(Kind.STATUS, "queued")]


def _started(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    model = str(fields.get("model", ""))
    attempt = int(fields.get("attempt", 1))
    text = f"started · {model}" + (f" · attempt {attempt}" if attempt > 1 else "")
    state = replace(
        state, phase=Phase.RUNNING, doing="starting", model=model, attempt=attempt, n=0, coded=0, draft=Draft()
    )
    return state, [Block(Kind.STATUS, text)]


def _retried(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    reasons = {
        "worker_lost": "its worker was lost",
        "sandbox_lost": "its sandbox was lost",
        "handover": "its worker was replaced",
    }
    reason = reasons.get(str(fields.get("reason")), str(fields.get("reason")))
    return state, [Block(Kind.STATUS, f"the Turn goes on elsewhere: {reason}")]


def _phase(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    name, detail = str(fields.get("name", "")), str(fields.get("detail", ""))
    doing = {"sandbox": "getting a sandbox", "staging": "sending files", "thinking": "thinking"}.get(name, name)
    shown = [Block(Kind.STATUS, f"{doing} · {detail}")] if name == "staging" and detail else []
    return replace(state, doing=doing), shown


def _iteration(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    if fields.get("scope"):
        return state, []
    n, maximum = int(fields.get("n", 0)), int(fields.get("max", 0))
    return replace(state, n=n, max=maximum, doing="thinking", draft=replace(state.draft, n=n)), []


def _reasoning(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    state, whole = _whole(state, fields, "text")
    if whole is None:
        return state, []
    title = f"thinking #{fields.get('n')}"
    return replace(state, draft=Draft(state.draft.n)), [Block(Kind.REASONING, whole.strip(), title, _depth(fields))]


def _code(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    state, whole = _whole(state, fields, "code")
    if whole is None:
        return state, []
    if not fields.get("scope"):
        state = replace(state, doing="running Python", draft=Draft(state.n), coded=state.n)
    return state, [Block(Kind.CODE, whole.rstrip(), f"python #{fields.get('n')}", _depth(fields))]


def _output(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    kind = Kind.ERROR_OUTPUT if fields.get("stream") == "stderr" else Kind.OUTPUT
    blocks: list[Block] = []
    text = str(fields.get("text", ""))
    if state.partial and kind is not state.partial_kind:
        state, flushed = _line(state, state.partial, state.partial_kind)
        blocks += flushed
        state = replace(state, partial="")
    *lines, partial = (state.partial + text).split("\n")
    for line in lines:
        state, flushed = _line(state, line, kind)
        blocks += flushed
    return replace(state, partial=partial, partial_kind=kind), blocks


def _line(state: TurnState, line: str, kind: Kind) -> tuple[TurnState, list[Block]]:
    if state.lines < OUTPUT_LINES:
        return replace(state, lines=state.lines + 1), [Block(kind, line)]
    return replace(state, lines=state.lines + 1, hidden=(*state.hidden, line)[-OUTPUT_TAIL:]), []


def _cell(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    blocks: list[Block] = []
    if state.partial:
        state, flushed = _line(state, state.partial, state.partial_kind)
        blocks += flushed
    more = state.lines - OUTPUT_LINES - len(state.hidden)
    if more > 0:
        blocks.append(Block(Kind.STATUS, f"… {more} more lines …"))
    blocks += [Block(Kind.OUTPUT, line) for line in state.hidden]
    status, error = str(fields.get("status")), fields.get("error")
    if error:
        blocks.append(Block(Kind.ERROR_OUTPUT, str(error).strip(), f"{status}", _depth(fields)))
    state = replace(state, partial="", lines=0, hidden=(), doing="thinking")
    return state, blocks


def _lm(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    if fields.get("replayed"):
        return state, []
    return replace(state, tokens=state.tokens + fields.get("input_tokens", 0) + fields.get("output_tokens", 0)), []


def _tool(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return replace(state, tools=state.tools + 1, doing=f"calling {fields.get('name')}"), [
        Block(Kind.TOOL, f"{fields.get('name')} {fields.get('args', '')}", "", _depth(fields))
    ]


def _tool_done(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    text = str(fields.get("result") if fields.get("ok") else fields.get("error"))
    mark = "→" if fields.get("ok") else "✗"
    state = replace(state, doing="running Python")
    return state, [Block(Kind.TOOL, f"{mark} {text} ({fields.get('duration_ms')} ms)", "", _depth(fields))]


def _child(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return state, [Block(Kind.TOOL, f"child: {fields.get('task', '')}", "", _depth(fields) + 1)]


def _child_done(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return state, [
        Block(Kind.TOOL, f"child {fields.get('status')}: {fields.get('answer', '')}", "", _depth(fields) + 1)
    ]


def _skill(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return state, [Block(Kind.STATUS, f"skill {fields.get('name')} {fields.get('version')} loaded")]


def _notice(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return state, [Block(Kind.NOTICE, str(fields.get("message", "")), str(fields.get("level", "info")))]


def _artifact(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    state = replace(state, artifacts=(*state.artifacts, fields))
    text = f"{fields.get('title')} · {fields.get('path')} · {size_text(fields.get('bytes', 0))}"
    return state, [Block(Kind.ARTIFACT, text, str(fields.get("id", "")))]


def _file(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    mark = {"added": "+", "modified": "~", "deleted": "-"}.get(str(fields.get("change")), "?")
    size = f" · {size_text(fields.get('bytes', 0))}" if mark != "-" else ""
    return state, [Block(Kind.FILE, f"{mark} {fields.get('path')}{size}")]


def _usage(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    cost = fields.get("cost_usd")
    parts = [
        f"{fields.get('iterations')} iterations",
        f"{fields.get('lm_calls')} model calls",
        f"{fields.get('input_tokens', 0)}+{fields.get('output_tokens', 0)} tokens",
        f"${cost:.4f}" if cost is not None else "",
        f"{fields.get('duration_ms', 0) / 1000:.1f} s",
    ]
    return state, [Block(Kind.USAGE, " · ".join(part for part in parts if part))]


def _answer(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    forced = fields.get("forced")
    if isinstance(forced, dict):
        state = replace(state, forced=str(forced.get("reason")))
    state, whole = _whole(state, fields, "text")
    if whole is None:
        return state, []
    title = f"answer (not submitted: {state.forced})" if state.forced else "answer"
    return replace(state, answer=whole), [Block(Kind.ANSWER, whole, title)]


def _completed(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return replace(state, phase=Phase.COMPLETED, doing="", draft=Draft()), []


def _failed(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    code = str(fields.get("code", ""))
    hint = " You may try again: /retry." if fields.get("retryable") else ""
    state = replace(state, phase=Phase.FAILED, doing="", draft=Draft(), error_code=code)
    return state, [Block(Kind.FAILURE, f"{fields.get('message', '')} ({code}){hint}")]


def _cancelled(state: TurnState, fields: dict[str, Any]) -> tuple[TurnState, list[Block]]:
    return replace(state, phase=Phase.CANCELLED, doing="", draft=Draft()), [Block(Kind.FAILURE, "cancelled")]


def _whole(state: TurnState, fields: dict[str, Any], name: str) -> tuple[TurnState, str | None]:
    """The text of a fact once its last part has come."""
    text = str(fields.get(name, ""))
    part, parts = fields.get("part"), fields.get("parts")
    if not part or not parts:
        return state, text
    collected = (*(state.parts if part > 1 else ()), text)
    if part < parts:
        return replace(state, parts=collected), None
    return replace(state, parts=()), "".join(collected)


def _depth(fields: dict[str, Any]) -> int:
    return len(fields.get("scope") or ())


def size_text(count: int) -> str:
    """A size for people: 35 kB."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


_FACTS: Final = {
    "turn.queued": _queued,
    "turn.started": _started,
    "run.retried": _retried,
    "phase": _phase,
    "iteration.started": _iteration,
    "reasoning": _reasoning,
    "code": _code,
    "output": _output,
    "cell.finished": _cell,
    "lm.finished": _lm,
    "tool.started": _tool,
    "tool.finished": _tool_done,
    "child.started": _child,
    "child.finished": _child_done,
    "skill.loaded": _skill,
    "notice": _notice,
    "artifact": _artifact,
    "file.changed": _file,
    "usage": _usage,
    "answer": _answer,
    "turn.completed": _completed,
    "turn.failed": _failed,
    "turn.cancelled": _cancelled,
}
