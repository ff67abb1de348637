"""Blocks and the live area as lines: pure, and the one place where text from outside is made safe to show.

Prose is wrapped; code, output and paths are not, so that copying and the terminal's own reflow keep them whole.
"""

import re
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fleet_term.state import Block, Kind, TurnState

#: Escape sequences (CSI, OSC, DCS and the like, also unfinished ones) and what is left of control characters.
_SEQUENCES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x9b[0-?]*[ -/]*[@-~]?|\x1b[@-Z\\-~]?"
)
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BIDI: Final = re.compile(r"[‪-‮⁦-⁩‎‏]")
PROSE_WIDTH: Final = 100
TAB: Final = 4


@dataclass(frozen=True, slots=True)
class Style:
    """How kinds of text are coloured: each function wraps text in sequences, or leaves it as it is."""

    dim: Callable[[str], str] = str
    bold: Callable[[str], str] = str
    code: Callable[[str], str] = str
    tool: Callable[[str], str] = str
    good: Callable[[str], str] = str
    bad: Callable[[str], str] = str


PLAIN: Final = Style()


def safe(text: str) -> str:
    """Text from a model, a file or a server, with nothing left that could steer a terminal."""
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n"))
    lines = []
    for line in text.split("\n"):
        shown = line.rpartition("\r")[2] if "\r" in line else line
        lines.append(_CONTROLS.sub("", shown.expandtabs(TAB)))
    return _BIDI.sub(lambda match: f"<U+{ord(match.group()):04X}>", "\n".join(lines))


def lines_of(block: Block, width: int, style: Style = PLAIN) -> list[str]:
    """A block as lines to print."""
    text, pad = safe(block.text), "  " * block.indent
    match block.kind:
        case Kind.USER:
            return ["", *(style.bold(f"> {line}") for line in text.split("\n")), ""]
        case Kind.STATUS:
            return [style.dim(f"{pad}· {text}")]
        case Kind.REASONING:
            return ["", *(style.dim(line) for line in prose(text, width, f"{pad}◦ ", f"{pad}  "))]
        case Kind.CODE:
            code = [style.code(f"{pad}  {line}") for line in text.split("\n")]
            return [style.bold(f"{pad}▸ {block.title}"), *code]
        case Kind.OUTPUT:
            return [f"{pad}  │ {line}" for line in text.split("\n")]
        case Kind.ERROR_OUTPUT:
            mark = f"✗ {block.title}: " if block.title else "│ "
            first, *rest = text.split("\n")
            return [style.bad(f"{pad}  {mark}{first}"), *(style.bad(f"{pad}  │ {line}") for line in rest)]
        case Kind.TOOL:
            return [style.tool(f"{pad}  ⚙ {cut(text.replace(chr(10), ' '), width - 6)}")]
        case Kind.NOTICE:
            paint = style.bad if block.title == "error" else style.tool if block.title == "warning" else style.dim
            return [paint(line) for line in prose(text, width, "! " if block.title != "info" else "i ", "  ")]
        case Kind.USAGE:
            return [style.dim(f"· {text}")]
        case Kind.ARTIFACT:
            return [style.good(f"◆ {text}"), style.dim(f"  get it: /get {block.title}")]
        case Kind.FILE:
            return [style.dim(f"  {text}")]
        case Kind.ANSWER:
            return ["", style.bold(f"■ {block.title}"), *markdown(text, width, style), ""]
        case Kind.FAILURE:
            return ["", style.bad(f"✗ {text}"), ""]


def live_lines(state: TurnState, width: int, elapsed_s: float, link: str, style: Style = PLAIN) -> list[str]:
    """What is being written, and the status line, for a running Turn."""
    lines: list[str] = []
    width -= 1
    if state.partial:
        lines.append(cut(f"  │ {safe(state.partial)}", width))
    draft = state.draft.code or state.draft.reasoning
    if draft.strip():
        tail = safe(draft).rstrip().split("\n")[-3:]
        paint = style.code if state.draft.code else style.dim
        lines += [paint(cut(f"  {line}", width)) for line in tail]
    parts = [
        state.doing or state.phase.value,
        f"{elapsed_s:.0f} s",
        f"iteration {state.n}/{state.max}" if state.n else "",
        f"{state.tokens} tokens" if state.tokens else "",
        f"{state.tools} tools" if state.tools else "",
        link,
        "Esc cancels",
    ]
    while len(parts) > 2 and len(" · ".join(part for part in parts if part)) > width - 2:
        parts.pop()
    return [*lines, style.dim("⋯ " + cut(" · ".join(part for part in parts if part), width - 2))]


def markdown(text: str, width: int, style: Style = PLAIN) -> list[str]:
    """Markdown as lines: headings and emphasis marked, fences and tables left as they are, prose wrapped."""
    lines: list[str] = []
    fenced = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if fenced:
            lines.append(style.code(f"  {line}"))
        elif line.startswith("#"):
            lines.append(style.bold(line.lstrip("#").strip()))
        elif line.lstrip().startswith("|"):
            lines.append(line)
        elif line.strip():
            marker = re.match(r"\s*(?:[-*+]|\d+[.)])\s+", line)
            hang = " " * len(marker.group()) if marker else ""
            lines += [_emphasised(item, style) for item in prose(line, width, "", hang)]
        else:
            lines.append("")
    return lines


def prose(text: str, width: int, first: str, rest: str) -> list[str]:
    """Text wrapped at words, at most PROSE_WIDTH wide."""
    room = max(20, min(width - 1, PROSE_WIDTH))
    lines: list[str] = []
    for paragraph in text.split("\n"):
        indent = first if not lines else rest
        wrapped = textwrap.wrap(
            paragraph,
            room,
            initial_indent=indent,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )
        lines += wrapped or [indent.rstrip()]
    return lines


def cut(text: str, width: int) -> str:
    """Text cut to a number of columns."""
    if columns(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += columns(character)
        if used > max(0, width - 1):
            break
        kept.append(character)
    return "".join(kept) + "…"


def columns(text: str) -> int:
    """How many columns a text takes, without sequences."""
    return sum(
        0
        if unicodedata.combining(character) or character in "\u200d\ufe0f"
        else 2
        if unicodedata.east_asian_width(character) in "WF"
        else 1
        for character in text
    )


def plain_lines(blocks: Sequence[Block], width: int = 10_000) -> list[str]:
    """Blocks as lines without colour."""
    return [line for block in blocks for line in lines_of(block, width)]


def _emphasised(line: str, style: Style) -> str:
    return re.sub(r"\*\*(.+?)\*\*", lambda match: style.bold(match.group(1)), line)
