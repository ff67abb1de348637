"""Splits the text of an answer that is still arriving into its fields, whatever way it is cut into pieces.

What it shows is provisional: the parsed answer is what counts.
"""

import re
from typing import Final

_HEAD: Final = re.compile(r"^\[\[ ## (\w+) ## \]\][ \t]*")
_HEAD_START: Final = "[[ ## "
_FENCE: Final = re.compile(r"^```[ \t]*\w*[ \t]*\n?$")
_FIELDS: Final = ("reasoning", "code", "completed")


class FieldSplitter:
    """Feed it pieces of text, get (field, piece) pairs. A field's marker counts at the start of a line, once each.

    After `code` has begun only `completed` ends it, because a program may contain marker lines. The fence around the
    code is left out.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._field: str | None = None
        self._at_line_start = True
        self._seen: set[str] = set()

    def feed(self, text: str) -> list[tuple[str, str]]:
        """The pieces that are certain now; what could still become a marker or a fence is held back."""
        self._buffer += text
        pieces: list[tuple[str, str]] = []
        while self._buffer:
            if self._at_line_start and self._could_be_special():
                if "\n" not in self._buffer:
                    break
                line, _, rest = self._buffer.partition("\n")
                if self._open(line):
                    self._buffer = rest
                    continue
                if self._field == "code" and _FENCE.match(line):
                    self._buffer = rest
                    continue
            line, newline, rest = self._buffer.partition("\n")
            self._emit(pieces, line + newline)
            self._buffer = rest
            self._at_line_start = bool(newline)
        return pieces

    def close(self) -> list[tuple[str, str]]:
        """What is left."""
        pieces: list[tuple[str, str]] = []
        rest, self._buffer = self._buffer, ""
        if rest and not self._open(rest) and not _FENCE.match(rest):
            self._emit(pieces, rest)
        return pieces

    def _could_be_special(self) -> bool:
        line = self._buffer.partition("\n")[0]
        if line.startswith((_HEAD_START[: len(line)], _HEAD_START)):
            return len(line) < 80
        return self._field == "code" and (line.startswith("```") or "```".startswith(line))

    def _open(self, line: str) -> bool:
        match = _HEAD.match(line)
        if match is None:
            return False
        name = match.group(1)
        if name not in _FIELDS or name in self._seen or (self._field == "code" and name != "completed"):
            return False
        self._field = name
        self._seen.add(name)
        return True

    def _emit(self, pieces: list[tuple[str, str]], text: str) -> None:
        if self._field in ("reasoning", "code") and text:
            pieces.append((self._field, text))
