"""A text being typed, with its cursor and history: pure."""

from dataclasses import dataclass, replace
from typing import Final

from fleet_term.keys import Key

HISTORY: Final = 500


@dataclass(frozen=True, slots=True)
class Editor:
    """The text, the cursor as an index into it, what was killed last, and earlier inputs."""

    text: str = ""
    cursor: int = 0
    killed: str = ""
    history: tuple[str, ...] = ()
    place: int = 0
    draft: str = ""

    def press(self, key: Key) -> "Editor":
        """The editor after a key."""
        match key.name:
            case "text" | "paste":
                return self._insert(key.text)
            case "newline":
                return self._insert("\n")
            case "backspace":
                return self._remove(max(0, self.cursor - 1), self.cursor)
            case "delete":
                return self._remove(self.cursor, self.cursor + 1)
            case "left":
                return replace(self, cursor=max(0, self.cursor - 1))
            case "right":
                return replace(self, cursor=min(len(self.text), self.cursor + 1))
            case "home":
                return replace(self, cursor=self.text.rfind("\n", 0, self.cursor) + 1)
            case "end":
                end = self.text.find("\n", self.cursor)
                return replace(self, cursor=len(self.text) if end < 0 else end)
            case "word_left":
                return replace(self, cursor=self._word_start())
            case "word_right":
                return replace(self, cursor=self._word_end())
            case "kill_word":
                return self._kill(self._word_start(), self.cursor)
            case "kill_line":
                return self._kill(0, self.cursor)
            case "kill_to_end":
                return self._kill(self.cursor, self.press(Key("end")).cursor)
            case "yank":
                return self._insert(self.killed)
            case "up":
                return self._row(-1)
            case "down":
                return self._row(1)
            case _:
                return self

    def clear(self) -> "Editor":
        """Empty, with what was typed kept in the history."""
        history = self.history
        if self.text.strip() and (not history or history[-1] != self.text):
            history = (*history, self.text)[-HISTORY:]
        return Editor(killed=self.killed, history=history, place=len(history))

    def _insert(self, text: str) -> "Editor":
        changed = self.text[: self.cursor] + text + self.text[self.cursor :]
        return replace(self, text=changed, cursor=self.cursor + len(text))

    def _remove(self, start: int, end: int) -> "Editor":
        return replace(self, text=self.text[:start] + self.text[end:], cursor=start)

    def _kill(self, start: int, end: int) -> "Editor":
        return replace(self._remove(start, end), killed=self.text[start:end] or self.killed)

    def _word_start(self) -> int:
        at = self.cursor
        while at and not self.text[at - 1].isalnum():
            at -= 1
        while at and self.text[at - 1].isalnum():
            at -= 1
        return at

    def _word_end(self) -> int:
        at = self.cursor
        while at < len(self.text) and not self.text[at].isalnum():
            at += 1
        while at < len(self.text) and self.text[at].isalnum():
            at += 1
        return at

    def _row(self, step: int) -> "Editor":
        start = self.text.rfind("\n", 0, self.cursor) + 1
        column = self.cursor - start
        if step < 0 and start:
            previous = self.text.rfind("\n", 0, start - 1) + 1
            return replace(self, cursor=min(previous + column, start - 1))
        end = self.text.find("\n", self.cursor)
        if step > 0 and end >= 0:
            following = self.text.find("\n", end + 1)
            limit = len(self.text) if following < 0 else following
            return replace(self, cursor=min(end + 1 + column, limit))
        return self._recall(self.place + step)

    def _recall(self, place: int) -> "Editor":
        if not 0 <= place <= len(self.history):
            return self
        draft = self.text if self.place == len(self.history) else self.draft
        text = draft if place == len(self.history) else self.history[place]
        return replace(self, text=text, cursor=len(text), place=place, draft=draft)
