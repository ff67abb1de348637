"""`fleet-term` as a person and as a script use it: in a real pty, in tmux, and through pipes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.stack import ROOT, Stack
from tests.fakes.terminal import tmux, window

GPL = "/usr/share/common-licenses/GPL-3"
PATENT = 'How many times does the word "patent" appear in the attached file?'
FLEET_TERM = [sys.executable, "-m", "fleet_term"]


@pytest.fixture
def environment(stack: Stack, tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    home = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    return {**kept, **home, "FLEET_URL": stack.url, "FLEET_TOKEN": stack.token}


def ask(environment: dict[str, str], *words: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*FLEET_TERM, *words],
        env=environment,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_a_person_attaches_a_file_asks_and_sees_every_step(environment: dict[str, str]) -> None:
    with window(FLEET_TERM, environment) as shown:
        shown.wait_for("demo model")
        shown.send(f"/attach {GPL}\r")
        shown.wait_for("+ GPL-3")
        shown.send(f"{PATENT}\r")
        text = shown.wait_for("■ answer")
        for step in ("queued", "started", "◦ ", "▸ python #1", "│ GPL-3", "iterations"):
            assert step in text
        assert "23 times" in text
        shown.send("/exit\r")
        text = shown.wait_for("Continue with: fleet-term --session ")
        assert shown.wait() == 0
        assert text.count("■ answer") == 1
    assert b"\x1b[2J" not in shown.raw and b"\x1b[3J" not in shown.raw and b"\x1b[?1049h" not in shown.raw
    assert shown.raw.count(b"\x1b[?2026h") == shown.raw.count(b"\x1b[?2026l") - 1


def test_a_session_is_continued_with_its_conversation_and_file(environment: dict[str, str]) -> None:
    first = ask(environment, "ask", "-a", GPL, PATENT)
    assert first.returncode == 0, first.stderr
    with window([*FLEET_TERM, "--continue"], environment) as shown:
        shown.wait_for("23 times")
        shown.send("How many lines does the same file have?\r")
        assert "674" in shown.wait_for("has 674 lines")
        shown.send("\x04")
        assert shown.wait() == 0


def test_escape_cancels_and_the_prompt_is_there_again(environment: dict[str, str]) -> None:
    with window(FLEET_TERM, environment) as shown:
        shown.wait_for("›")
        shown.send("sum of the primes between 1 and 4999999\r")
        shown.wait_for("▸ python #1")
        shown.send("\x1b")
        shown.wait_for("✗ cancelled")
        shown.send("What is 2 + 2?\r")
        shown.wait_for("2 + 2 = 4")


def test_typing_pasting_and_editing_reach_the_question_whole(environment: dict[str, str]) -> None:
    with window(FLEET_TERM, environment) as shown:
        shown.wait_for("›")
        shown.send("What is 2 + 5\x7f2?")
        shown.send("\x1b[200~ 你好\r\nsecond line\x1b[201~")
        shown.wait_for("second line")
        shown.send("\x15")
        shown.send("What is 6 * 7?\r")
        shown.wait_for("6 * 7 = 42")
        assert "\n> What is 6 * 7?" in shown.text()


def test_a_crash_of_the_terminal_leaves_the_tty_as_it_was(environment: dict[str, str]) -> None:
    command = shlex.join(FLEET_TERM)
    with tmux("term", command, environment) as pane:
        pane.wait_for("›")
        pane.send("What is 2 + 2?", "Enter")
        pane.wait_for("2 + 2 = 4")
        os.kill(pane.pid(), signal.SIGTERM)
        pane.wait_for("EXIT 143")
        text = pane.text()
    assert text.count("2 + 2 = 4") == 1


def test_ask_prints_the_answer_alone_on_stdout(environment: dict[str, str]) -> None:
    done = ask(environment, "ask", "What is 6 * 7?")
    assert done.returncode == 0
    assert done.stdout.startswith("6 * 7 = **42**") and "queued" not in done.stdout
    assert "started" in done.stderr and "\x1b" not in done.stdout + done.stderr


def test_jsonl_gives_the_facts_and_ends_with_the_terminal_one(environment: dict[str, str]) -> None:
    done = ask(environment, "ask", "--jsonl", "-a", GPL, PATENT)
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1))
    assert facts[0]["type"] == "turn.queued" and facts[-1]["type"] == "turn.completed"


def test_json_gives_the_turn_or_the_error(environment: dict[str, str]) -> None:
    good = ask(environment, "ask", "--json", "What is 6 * 7?")
    told = json.loads(good.stdout)
    assert told["schema"] == 1 and told["ok"] and "**42**" in told["turn"]["answer"]
    bad = ask({**environment, "FLEET_TOKEN": "wrong"}, "ask", "--json", "What?")
    told = json.loads(bad.stdout)
    assert bad.returncode == 4 and not told["ok"] and told["error"]["code"] == "unauthorized"


def test_piped_input_is_the_question_or_a_file_beside_it(environment: dict[str, str]) -> None:
    question = ask(environment, "ask", stdin=b"What is 6 * 7?\n")
    assert "**42**" in question.stdout
    beside = ask(environment, "ask", "How many lines are in the file?", stdin=b"a\nb\nc\n")
    assert "**3**" in beside.stdout and "stdin.txt" in beside.stdout


@pytest.mark.parametrize(
    ("words", "change", "status"),
    [
        (["ask"], {}, 2),
        (["ask", "hi", "-a", "/nowhere/at/all"], {}, 2),
        (["ask", "hi"], {"FLEET_URL": "http://127.0.0.1:9"}, 3),
        (["ask", "hi"], {"FLEET_TOKEN": "wrong"}, 4),
        (["ask", "hi", "--session", "00000000-0000-0000-0000-000000000000"], {}, 5),
        (["turns", "show", "00000000-0000-0000-0000-000000000000"], {}, 5),
        (["ask", "sum of the primes between 1 and 4999999", "--timeout", "0.5"], {}, 6),
    ],
)
def test_exit_statuses_tell_what_happened(
    environment: dict[str, str], words: list[str], change: dict[str, str], status: int
) -> None:
    done = ask({**environment, **change}, *words)
    assert done.returncode == status, done.stderr
    assert done.stderr.strip() and "Traceback" not in done.stderr


def test_a_detached_turn_is_followed_later(environment: dict[str, str]) -> None:
    detached = ask(environment, "ask", "--detach", "What is 6 * 7?")
    assert detached.returncode == 0
    turn_id = detached.stderr.split("turns follow ")[1].split()[0]
    followed = ask(environment, "turns", "follow", turn_id, "--jsonl")
    assert json.loads(followed.stdout.splitlines()[-1])["type"] == "turn.completed"


def test_an_artifact_is_saved_whole_and_never_over_another_file(environment: dict[str, str], tmp_path: Path) -> None:
    made = ask(environment, "ask", "--json", "-a", GPL, "Write a report about this file")
    artifact = json.loads(made.stdout)["turn"]["artifacts"][0]
    target = tmp_path / "out.md"
    assert ask(environment, "artifacts", "get", artifact["id"], "-o", str(target)).returncode == 0
    assert target.stat().st_size == artifact["bytes"]
    assert ask(environment, "artifacts", "get", artifact["id"], "-o", str(target)).returncode == 2
    assert not list(tmp_path.glob("*.part"))


def test_lists_and_doctor_answer(environment: dict[str, str]) -> None:
    assert ask(environment, "ask", "What is 6 * 7?").returncode == 0
    sessions = json.loads(ask(environment, "sessions", "--json").stdout)
    assert sessions[0]["title"] == "What is 6 * 7?"
    assert "workers" in ask(environment, "doctor").stdout
    for shell in ("bash", "zsh", "fish"):
        assert "sessions" in ask(environment, "completion", shell).stdout
