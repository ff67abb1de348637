"""The interactive terminal: one loop over keys, events and time. What is shown comes from `state` and `view` alone."""

import queue
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fleet_term.client import ApiError, Client, EventStream
from fleet_term.client.errors import ClientError
from fleet_term.client.stream import Event, Link
from fleet_term.editor import Editor
from fleet_term.keys import Key, Keyboard
from fleet_term.screen import Screen
from fleet_term.slash import find, help_lines, parse
from fleet_term.state import Block, Kind, Phase, TurnState, reduce, size_text
from fleet_term.view import Style, columns, cut, lines_of, live_lines, safe

#: Seconds after which an escape that stays alone is the Esc key, and between frames of a running Turn.
ESCAPE_S: Final = 0.05
FRAME_S: Final = 0.033
TICK_S: Final = 0.25
#: Seconds in which a second Ctrl+C leaves.
TWICE_S: Final = 2.0
#: Earlier questions shown when a Session is continued.
SHOWN_TURNS: Final = 5
PROMPT: Final = "› "


class App:
    """One person at one terminal in one Session at a time."""

    def __init__(self, client: Client, screen: Screen, style: Style, session: dict[str, Any] | None) -> None:
        self._client = client
        self._screen = screen
        self._style = style
        self._session = session
        self._editor = Editor()
        self._keyboard = Keyboard()
        self._events: queue.SimpleQueue[Event | Link | Exception | None] = queue.SimpleQueue()
        self._commits: list[str] = []
        self._turn = TurnState()
        self._turn_id: str | None = None
        self._stream: EventStream | None = None
        self._began = 0.0
        self._link = ""
        self._attachments: list[dict[str, Any]] = []
        self._listed: list[dict[str, Any]] = []
        self._artifacts: list[dict[str, Any]] = []
        self._last_prompt: tuple[str, list[str]] | None = None
        self._interrupted_at = 0.0
        self._leaving = False
        self._dirty = True

    @property
    def session_id(self) -> str | None:
        """The Session in use, None before the first question."""
        return str(self._session["id"]) if self._session is not None else None

    def run(self, greeting: Sequence[str]) -> int:
        """Until the person leaves; the exit status."""
        with self._screen.open():
            self._say(*greeting)
            if self._session is not None:
                self._show_session()
            while not self._leaving:
                self._paint()
                self._turn_keys()
                self._turn_events()
            self._screen.paint([], 0, 0, self._take_commits())
        if self._stream is not None:
            self._stream.stop()
        return 0

    def _turn_keys(self) -> None:
        waiting = self._keyboard.is_waiting
        timeout = ESCAPE_S if waiting else TICK_S if self._turn.phase.is_open else 3600.0
        data = self._screen.read(timeout if not self._dirty else FRAME_S)
        if data is None:
            self._leaving = True
            return
        keys = self._keyboard.feed(data) if data else self._keyboard.idle() if waiting else []
        for key in keys:
            self._press(key)
        if keys or self._turn.phase.is_open or not self._screen.may_paint:
            self._dirty = True

    def _press(self, key: Key) -> None:
        match key.name:
            case "enter":
                self._enter()
            case "escape":
                self._cancel()
            case "interrupt":
                self._interrupt()
            case "eof":
                if self._editor.text:
                    self._editor = self._editor.press(Key("delete"))
                else:
                    self._leave()
            case "suspend":
                self._screen.suspend()
            case "tab":
                self._complete()
            case _:
                self._editor = self._editor.press(key)

    def _enter(self) -> None:
        text = self._editor.text.strip()
        if not text:
            return
        if text.endswith("\\"):
            self._editor = Editor(text[:-1] + "\n", len(text), history=self._editor.history)
            return
        command = parse(text)
        if command is None and self._turn.phase.is_open:
            self._say(self._style.tool("a question is running; wait, or cancel it with Esc"))
            return
        self._editor = self._editor.clear()
        if command is not None:
            self._command(*command)
        else:
            self._ask(text.removeprefix("/") if text.startswith("//") else text, [])

    def _ask(self, prompt: str, attachment_ids: list[str]) -> None:
        chosen = attachment_ids or [item["id"] for item in self._attachments]
        self._commit(Block(Kind.USER, prompt))
        try:
            if self._session is None:
                self._session = self._client.create_session(_title(prompt))
            turn = self._client.submit(self._session["id"], prompt, attachment_ids=chosen)
        except ClientError as error:
            self._fail(error)
            self._editor = Editor(prompt, len(prompt), history=self._editor.history, place=len(self._editor.history))
            return
        self._attachments = []
        self._last_prompt = (prompt, chosen)
        self._follow(turn["id"])

    def _follow(self, turn_id: str) -> None:
        self._turn, self._turn_id = TurnState(phase=Phase.QUEUED), turn_id
        self._began, self._link = time.monotonic(), ""
        stream = self._stream = self._client.follow(turn_id, on_link=self._tell)
        threading.Thread(target=self._read, args=(stream,), name="events", daemon=True).start()

    def _read(self, stream: EventStream) -> None:
        try:
            for event in stream:
                self._tell(event)
        except (ClientError, OSError) as error:
            self._tell(error)
        self._tell(None)

    def _tell(self, item: Event | Link | Exception | None) -> None:
        self._events.put(item)
        self._screen.wake()

    def _turn_events(self) -> None:
        deadline = time.monotonic() + 0.01
        while time.monotonic() < deadline:
            try:
                item = self._events.get_nowait()
            except queue.Empty:
                return
            self._dirty = True
            match item:
                case Event():
                    self._event(item)
                case Link():
                    self._link = "" if item.is_open else f"{item.reason}, again in {item.wait_s:.0f} s"
                case Exception():
                    self._fail(item)
                    self._turn = TurnState()
                case None:
                    pass

    def _event(self, event: Event) -> None:
        cancelling = self._turn.phase is Phase.CANCELLING
        self._turn, blocks = reduce(self._turn, event.type, event.fields)
        if cancelling and self._turn.phase is Phase.RUNNING:
            self._turn = _with_phase(self._turn, Phase.CANCELLING)
        for block in blocks:
            if block.kind is Kind.ARTIFACT:
                self._artifacts.append({"id": block.title, "name": block.text})
                block = Block(block.kind, block.text, str(len(self._artifacts)))
            self._commit(block)

    def _cancel(self) -> None:
        if self._turn.phase.is_open and self._turn_id is not None:
            turn_id = self._turn_id
            self._turn = _with_phase(self._turn, Phase.CANCELLING)
            self._in_background(lambda: self._client.copy().cancel(turn_id))

    def _interrupt(self) -> None:
        now = time.monotonic()
        if self._editor.text:
            self._editor = self._editor.clear()
        elif self._turn.phase.is_open and now - self._interrupted_at > 1.0:
            self._cancel()
        elif now - self._interrupted_at < TWICE_S:
            self._leave()
        else:
            self._say(self._style.dim("press Ctrl+C again to leave"))
        self._interrupted_at = now

    def _leave(self) -> None:
        if self._turn.phase.is_open:
            self._say(self._style.dim("the question goes on; come back with --continue"))
        self._leaving = True

    def _complete(self) -> None:
        text = self._editor.text
        if text.startswith("/") and " " not in text:
            command = find(text[1:])
            if command is not None:
                filled = f"/{command.name} "
                self._editor = Editor(filled, len(filled), history=self._editor.history, place=self._editor.place)
        elif text.startswith("/attach "):
            head, _, word = text.rpartition(" ")
            filled = f"{head} {_completed_path(word)}"
            self._editor = Editor(filled, len(filled), history=self._editor.history, place=self._editor.place)

    def _command(self, name: str, rest: str) -> None:
        command = find(name)
        handlers: dict[str, Callable[[str], None]] = {
            "attach": self._attach,
            "sessions": self._sessions,
            "new": self._new,
            "files": self._files,
            "artifacts": self._list_artifacts,
            "get": self._get,
            "cancel": lambda _: self._cancel(),
            "retry": self._retry,
            "help": lambda _: self._say(*help_lines()),
            "exit": lambda _: self._leave(),
        }
        if command is None:
            self._say(self._style.bad(f"there is no command /{safe(name)}; /help lists them"))
            return
        try:
            handlers[command.name](rest)
        except (ClientError, OSError, ValueError) as error:
            self._fail(error)

    def _attach(self, rest: str) -> None:
        if rest in ("", "list"):
            shown = [f"  {item['name']} · {size_text(item['bytes'])}" for item in self._attachments]
            self._say(*(shown or ["  nothing is attached; /attach PATH"]))
        elif rest == "clear":
            self._attachments = []
            self._say("  nothing is attached now")
        else:
            for path in _paths(rest):
                attachment = self._client.upload(path.expanduser())
                self._attachments.append(attachment)
                self._say(self._style.good(f"  + {safe(attachment['name'])} · {size_text(attachment['bytes'])}"))

    def _sessions(self, rest: str) -> None:
        if rest:
            if not rest.isdecimal() or not 1 <= int(rest) <= len(self._listed):
                raise ValueError("give a number of the list that /sessions shows")
            if self._stream is not None:
                self._stream.stop()
            self._turn, self._session = TurnState(), self._listed[int(rest) - 1]
            self._show_session()
            return
        self._listed = list(self._client.items("/api/sessions", limit=20))
        for number, item in enumerate(self._listed, start=1):
            mark = "●" if item["id"] == self.session_id else " "
            when = f"{item['turn_count']} questions · {item['updated_at'][:16]}"
            self._say(f"  {mark} {number:2} {safe(item['title'])} · {when}")
        self._say(self._style.dim("  /sessions NUMBER goes to one"))

    def _new(self, rest: str) -> None:
        self._session = self._client.create_session(rest or None)
        self._turn = TurnState()
        self._say(self._style.dim(f"── new Session “{safe(self._session['title'])}” ──"))

    def _files(self, rest: str) -> None:
        if self._session is None:
            raise ValueError("there is no Session yet; ask something first")
        items = self._client.get(f"/api/sessions/{self.session_id}/files", recursive="true")["items"]
        self._say(*(f"  {safe(item['path'])} · {size_text(item['bytes'])}" for item in items if item["kind"] == "file"))
        if not items:
            self._say("  the Workspace is empty")

    def _list_artifacts(self, rest: str) -> None:
        if self._session is None:
            raise ValueError("there is no Session yet; ask something first")
        self._artifacts = list(self._client.items(f"/api/sessions/{self.session_id}/artifacts", limit=100))
        for number, item in enumerate(self._artifacts, start=1):
            self._say(f"  {number:2} {safe(item['title'])} · {safe(item['path'])} · {size_text(item['bytes'])}")
        if not self._artifacts:
            self._say("  there are no Artifacts yet")

    def _get(self, rest: str) -> None:
        wanted, _, target = rest.partition(" ")
        if wanted.isdecimal() and 1 <= int(wanted) <= len(self._artifacts):
            wanted = self._artifacts[int(wanted) - 1]["id"]
        artifact = self._client.get(f"/api/artifacts/{wanted}")
        path = Path(target.strip() or Path(artifact["name"]).name).expanduser()
        size = self._client.download(f"/api/artifacts/{wanted}/content", path)
        self._say(self._style.good(f"  saved {path} · {size_text(size)}"))

    def _retry(self, rest: str) -> None:
        if self._last_prompt is None or self._turn.phase.is_open:
            raise ValueError("there is nothing to ask again")
        self._ask(*self._last_prompt)

    def _show_session(self) -> None:
        assert self._session is not None
        path = f"/api/sessions/{self._session['id']}"
        turns = self._client.get(f"{path}/turns", order="desc", limit=SHOWN_TURNS)["items"]
        title = safe(str(self._session["title"]))
        self._say(self._style.dim(f"── Session “{title}” · {self._session['turn_count']} questions ──"))
        for turn in reversed(turns):
            self._commit(Block(Kind.USER, turn["prompt"]))
            if turn["answer"]:
                self._commit(Block(Kind.ANSWER, turn["answer"], "answer"))
            elif turn["error"]:
                self._commit(Block(Kind.FAILURE, turn["error"]["message"]))
            elif turn["status"] == "cancelled":
                self._commit(Block(Kind.FAILURE, "cancelled"))
        if turns and turns[0]["status"] in ("queued", "running"):
            self._follow(turns[0]["id"])

    def _in_background(self, work: Callable[[], Any]) -> None:
        def guarded() -> None:
            try:
                work()
            except (ClientError, OSError) as error:
                self._tell(error)

        threading.Thread(target=guarded, daemon=True).start()

    def _fail(self, error: Exception) -> None:
        code = f" ({error.code})" if isinstance(error, ApiError) else ""
        self._say(self._style.bad(f"✗ {safe(str(error))}{code}"))

    def _say(self, *lines: str) -> None:
        self._commits += lines
        self._dirty = True

    def _commit(self, block: Block) -> None:
        self._say(*lines_of(block, self._screen.width, self._style))

    def _take_commits(self) -> list[str]:
        commits, self._commits = self._commits, []
        return commits

    def _paint(self) -> None:
        if not self._dirty or not self._screen.may_paint:
            return
        self._dirty = bool(self._events.qsize())
        width, lines = self._screen.width, []
        if self._turn.phase.is_open:
            lines += live_lines(self._turn, width, time.monotonic() - self._began, self._link, self._style)
        if self._attachments:
            names = ", ".join(safe(item["name"]) for item in self._attachments)
            lines.append(self._style.dim(cut(f"+ {names}", width - 1)))
        typed, row, column = _prompt_lines(self._editor, width, max(1, self._screen.height * 2 // 5))
        self._screen.paint([*lines, *typed], len(lines) + row, column, self._take_commits())


def _prompt_lines(editor: Editor, width: int, rows: int) -> tuple[list[str], int, int]:
    """The typed text as lines, and the cursor's row and column in them; long text shows the part around the cursor."""
    room = max(10, width - len(PROMPT) - 1)
    lines: list[str] = []
    row = column = 0
    at = 0
    for logical in editor.text.split("\n"):
        begin = 0
        while True:
            piece = ""
            used = 0
            for character in logical[begin:]:
                size = columns(character)
                if used + size > room:
                    break
                piece += character
                used += size
            if at <= editor.cursor <= at + len(piece):
                row, column = len(lines), columns(editor.text[at : editor.cursor])
            lines.append((PROMPT if not lines else " " * len(PROMPT)) + safe(piece))
            begin += len(piece)
            at += len(piece)
            if begin >= len(logical):
                break
        at += 1
    first = max(0, min(row - rows + 1, len(lines) - rows)) if len(lines) > rows else 0
    return lines[first : first + rows], row - first, len(PROMPT) + column


def _with_phase(state: TurnState, phase: Phase) -> TurnState:
    return replace(state, phase=phase, doing=phase.value if phase is Phase.CANCELLING else state.doing)


def _title(prompt: str) -> str:
    line = prompt.strip().split("\n")[0]
    return line if len(line) <= 60 else line[:59] + "…"


def _paths(text: str) -> list[Path]:
    """The paths of /attach: the whole text when it names a file, else its words; quotes are understood."""
    whole = Path(text).expanduser()
    return [whole] if whole.exists() else [Path(word) for word in shlex.split(text)]


def _completed_path(word: str) -> str:
    """The longest common beginning of the paths that begin with `word`."""
    path = Path(word).expanduser()
    folder, name = (path, "") if word.endswith("/") else (path.parent, path.name)
    if not folder.is_dir():
        return word
    found = sorted(item for item in folder.iterdir() if item.name.startswith(name))
    if not found:
        return word
    common = _common([str(item) for item in found])
    return common + "/" if len(found) == 1 and found[0].is_dir() else common


def _common(texts: list[str]) -> str:
    """The longest text that all begin with."""
    first, last = min(texts), max(texts)
    length = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[:length]
