"""`fleet-term ask`: one Turn without a screen. The answer goes to stdout, progress to stderr."""

import io
import json
import os
import select
import stat
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO

from fleet_term.client import ApiError, Client
from fleet_term.client.errors import ConnectionFailed, IntegrityError
from fleet_term.errors import Exit, UsageError
from fleet_term.state import Kind, TurnState, reduce
from fleet_term.view import Style, lines_of, safe

#: Version of the JSON that --json prints.
SCHEMA: Final = 1
#: Seconds without any contact after which following is given up.
GIVE_UP_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What was asked for on the command line."""

    prompt: str | None = None
    files: tuple[Path, ...] = ()
    skills: tuple[str, ...] = ()
    session: str | None = None
    continues: bool = False
    form: str = "text"
    timeout_s: float | None = None
    detach: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def run_ask(client: Client, ask: Ask, *, style: Style, command: str) -> Exit:
    """Ask and answer; `command` is how to reach the same server again, for the follow line."""
    prompt, piped = _prompt(ask)
    for path in ask.files:
        if not path.is_file():
            raise UsageError(f"{path} is not a file")
    ids = [_upload(client, path)["id"] for path in ask.files]
    if piped is not None:
        ids.append(client.upload_stream(piped, "stdin.txt", None)["id"])
    session_id = _session(client, ask, prompt)
    turn = client.submit(session_id, prompt, attachment_ids=ids, skills=ask.skills, options=ask.options)
    follow_line = f"{command} turns follow {turn['id']}"
    if ask.detach:
        _finish(ask, turn)
        _progress(f"· accepted; follow it with: {follow_line}")
        return Exit.ANSWERED
    return follow(client, turn["id"], ask=ask, style=style, follow_line=follow_line)


def follow(client: Client, turn_id: str, *, ask: Ask, style: Style, follow_line: str, after: int = 0) -> Exit:
    """Show a Turn to its end in the form asked for; the exit status tells how it ended."""
    state = TurnState()
    deadline = time.monotonic() + ask.timeout_s if ask.timeout_s is not None else None
    stream = client.follow(turn_id, after=after, give_up_s=GIVE_UP_S)
    stopper = _stop_at(stream, deadline)
    try:
        for event in stream:
            if event.seq is not None and ask.form == "jsonl":
                _out(event.data)
            state, blocks = reduce(state, event.type, event.fields)
            for block in blocks:
                if ask.form == "text" and block.kind is not Kind.ANSWER:
                    for line in lines_of(block, 100, style):
                        _progress(line)
    except KeyboardInterrupt:
        client.cancel(turn_id)
        _progress("· cancelled")
        if ask.form == "json":
            _finish(ask, client.turn(turn_id))
        return Exit.CANCELLED
    finally:
        stopper()
    turn = client.turn(turn_id)
    if turn["status"] in ("queued", "running"):
        _progress(f"· the time limit is over, the Turn goes on; follow it with: {follow_line}")
        if ask.form == "json":
            _finish(ask, turn)
        return Exit.TIME_LIMIT
    _finish(ask, turn)
    return {"completed": Exit.ANSWERED, "cancelled": Exit.CANCELLED}.get(turn["status"], Exit.FAILED)


def report(error: Exception, form: str) -> None:
    """Tell an error in the form asked for."""
    if form == "json":
        code = error.code if isinstance(error, ApiError) else type(error).__name__
        told: dict[str, Any] = {"code": code, "message": str(error)}
        if isinstance(error, ApiError):
            told["request_id"] = error.request_id
        _out(json.dumps({"schema": SCHEMA, "ok": False, "error": told}, ensure_ascii=False))
    _progress(f"fleet-term: {safe(str(error))}")


def status_of(error: Exception) -> Exit:
    """The exit status of an error."""
    if isinstance(error, UsageError):
        return Exit.USAGE
    if isinstance(error, ApiError):
        if error.status in (401, 403):
            return Exit.NOT_AUTHORISED
        return (
            Exit.NOT_FOUND
            if error.status in (404, 409, 410, 412)
            else Exit.USAGE
            if error.status == 422
            else Exit.FAILED
        )
    if isinstance(error, ConnectionFailed):
        return Exit.UNREACHABLE
    return Exit.INTEGRITY if isinstance(error, IntegrityError) else Exit.UNKNOWN


def _prompt(ask: Ask) -> tuple[str, BinaryIO | None]:
    """The prompt, and piped input that goes along as a file."""
    piped = _piped()
    if ask.prompt is not None and ask.prompt != "-":
        return ask.prompt, piped
    if piped is None and ask.prompt != "-":
        raise UsageError("give a question: fleet-term ask QUESTION, or pipe it in")
    text = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    if not text:
        raise UsageError("the question is empty")
    return text, None


def _piped() -> BinaryIO | None:
    """Standard input when it is a file with content, or a pipe into which something is written soon."""
    if sys.stdin is None or sys.stdin.isatty():
        return None
    mode = os.fstat(sys.stdin.fileno())
    if stat.S_ISREG(mode.st_mode):
        return sys.stdin.buffer if mode.st_size else None
    if not (stat.S_ISFIFO(mode.st_mode) or stat.S_ISSOCK(mode.st_mode)):
        return None
    if not select.select([sys.stdin], [], [], 2.0)[0]:
        return None  # an open pipe that nobody writes to must not hang the command
    has_data = bool(sys.stdin.buffer.peek(1)) if isinstance(sys.stdin.buffer, io.BufferedReader) else True
    return sys.stdin.buffer if has_data else None


def _upload(client: Client, path: Path) -> dict[str, Any]:
    told = [0.0]

    def on_progress(done: int, total: int) -> None:
        now = time.monotonic()
        if now - told[0] >= 5.0 and told[0]:
            _progress(f"· sending {path.name}: {100 * done // max(total, 1)} %")
        told[0] = told[0] or now
        told[0] = now if now - told[0] >= 5.0 else told[0]

    return client.upload(path, on_progress=on_progress)


def _session(client: Client, ask: Ask, prompt: str) -> str:
    if ask.session is not None:
        return str(client.get(f"/api/sessions/{ask.session}")["id"])
    if ask.continues:
        last = latest_session(client)
        if last is not None:
            return str(last["id"])
    title = prompt.strip().split("\n")[0]
    return str(client.create_session(title if len(title) <= 60 else title[:59] + "…")["id"])


def latest_session(client: Client) -> dict[str, Any] | None:
    """The active Session changed last."""
    return next(client.items("/api/sessions", limit=1, status="active"), None)


def _stop_at(stream: Any, deadline: float | None) -> Any:
    """End the stream at a deadline; the returned function takes that back."""

    if deadline is None:
        return lambda: None
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), stream.stop)
    timer.daemon = True
    timer.start()
    return timer.cancel


def _finish(ask: Ask, turn: dict[str, Any]) -> None:
    if ask.form == "json":
        ok = turn["status"] == "completed"
        _out(json.dumps({"schema": SCHEMA, "ok": ok, "turn": turn}, ensure_ascii=False))
    elif ask.form == "text" and turn.get("answer"):
        _out(safe(turn["answer"]))
    elif ask.form == "text" and turn.get("error"):
        _progress(f"✗ {turn['error']['message']} ({turn['error']['code']})")


def _out(line: str, stream: TextIO | None = None) -> None:
    out = stream or sys.stdout
    out.write(line + "\n")
    out.flush()


def _progress(line: str) -> None:
    _out(line, sys.stderr)
