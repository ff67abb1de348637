"""Bytes of a keyboard as keys and text: pure. Pastes arrive whole, replies of the terminal are dropped."""

import re
from dataclasses import dataclass
from typing import Final

PASTE_START: Final = b"\x1b[200~"
PASTE_END: Final = b"\x1b[201~"

_NAMES: Final = {
    b"\r": "enter",
    b"\n": "newline",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\t": "tab",
    b"\x01": "home",
    b"\x02": "left",
    b"\x03": "interrupt",
    b"\x04": "eof",
    b"\x05": "end",
    b"\x06": "right",
    b"\x0b": "kill_to_end",
    b"\x0c": "redraw",
    b"\x0e": "down",
    b"\x10": "up",
    b"\x15": "kill_line",
    b"\x17": "kill_word",
    b"\x19": "yank",
    b"\x1a": "suspend",
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1bOC": "right",
    b"\x1bOD": "left",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[3~": "delete",
    b"\x1b\r": "newline",
    b"\x1b\n": "newline",
    b"\x1b[13;2u": "newline",
    b"\x1b[13;3u": "newline",
    b"\x1b[13;5u": "newline",
    b"\x1b[27;2;13~": "newline",
    b"\x1bb": "word_left",
    b"\x1bf": "word_right",
    b"\x1b[1;5D": "word_left",
    b"\x1b[1;5C": "word_right",
    b"\x1b[1;3D": "word_left",
    b"\x1b[1;3C": "word_right",
    b"\x1b\x7f": "kill_word",
}
_SEQUENCE: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|\].*?(?:\x07|\x1b\\)|P.*?\x1b\\|[^\[\]OP])", re.DOTALL)
_UNFINISHED: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O|\][^\x07]*|P[^\x1b]*)?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Key:
    """A key by name, or `text` when it is typed or pasted."""

    name: str
    text: str = ""


class Keyboard:
    """Feed it bytes, get keys. An escape that stays alone is the Esc key: call `idle` after a short silence."""

    def __init__(self) -> None:
        self._buffer = b""
        self._paste: bytearray | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the last bytes may be the start of a sequence."""
        return bool(self._buffer) and self._paste is None

    def feed(self, data: bytes) -> list[Key]:
        """The keys that `data` completes."""
        self._buffer += data
        keys: list[Key] = []
        while self._buffer:
            if self._paste is not None:
                if not self._take_paste(keys):
                    return keys
            elif self._buffer.startswith(b"\x1b"):
                if not self._take_sequence(keys):
                    return keys
            elif not self._take_text(keys):
                return keys
        return keys

    def idle(self) -> list[Key]:
        """Nothing more came: an escape was the key itself."""
        held, self._buffer = self._buffer, b""
        return [Key("escape")] if held.startswith(b"\x1b") else []

    def _take_paste(self, keys: list[Key]) -> bool:
        assert self._paste is not None
        end = self._buffer.find(PASTE_END)
        if end < 0:
            keep = len(PASTE_END) - 1
            self._paste += self._buffer[:-keep] if len(self._buffer) > keep else b""
            self._buffer = self._buffer[-keep:]
            return False
        self._paste += self._buffer[:end]
        self._buffer = self._buffer[end + len(PASTE_END) :]
        text = self._paste.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        keys.append(Key("paste", text))
        self._paste = None
        return True

    def _take_sequence(self, keys: list[Key]) -> bool:
        if self._buffer.startswith(PASTE_START):
            self._buffer = self._buffer[len(PASTE_START) :]
            self._paste = bytearray()
            return True
        match = _SEQUENCE.match(self._buffer)
        if match is None:
            if _UNFINISHED.match(self._buffer) and len(self._buffer) < 4096:
                return False
            self._buffer = self._buffer[1:]
            return True
        sequence = match.group()
        self._buffer = self._buffer[len(sequence) :]
        if sequence == b"\x1b\x1b":
            self._buffer = b"\x1b" + self._buffer
            keys.append(Key("escape"))
            return True
        name = _NAMES.get(sequence)
        if name is not None:
            keys.append(Key(name))
        return True

    def _take_text(self, keys: list[Key]) -> bool:
        first = self._buffer[:1]
        if first in _NAMES:
            self._buffer = self._buffer[1:]
            keys.append(Key(_NAMES[first]))
            return True
        if first < b" ":
            self._buffer = self._buffer[1:]
            return True
        end = next((i for i, byte in enumerate(self._buffer) if byte < 32 or byte == 127), len(self._buffer))
        run = self._buffer[:end]
        text = run.decode("utf-8", "ignore") if end < len(self._buffer) else _decoded(run)
        if not text:
            if end == len(self._buffer) and len(run) < 4:
                return False
            self._buffer = self._buffer[max(end, 1) :]
            return True
        taken = len(text.encode("utf-8")) if end == len(self._buffer) else end
        self._buffer = self._buffer[taken:]
        keys.append(Key("text", text))
        return end < len(run) or not self._buffer or taken > 0


def _decoded(run: bytes) -> str:
    """The text of bytes whose last character may be unfinished."""
    for cut in range(min(4, len(run) + 1)):
        try:
            return run[: len(run) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
    return run.decode("utf-8", "replace")
