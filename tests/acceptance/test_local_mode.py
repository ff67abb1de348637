"""Local mode with the real processes: one command starts everything, and nothing is left when the last one goes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.stack import ROOT
from tests.fakes.terminal import window

GPL = "/usr/share/common-licenses/GPL-3"
PATENT = 'How many times does the word "patent" appear in the attached file?'
FLEET_TERM = [sys.executable, "-m", "fleet_term"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    # What a shell may hold of other deployments must not matter.
    foreign = {
        "REDIS_URL": "redis://127.0.0.1:1",
        "DATABASE_URL": "sqlite:////nowhere.db",
        "PORT": "1",
        "DYNO": "web.1",
    }
    made = {**kept, **foreign, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8"}
    yield made
    subprocess.run([*FLEET_TERM, "local", "stop"], env=made, capture_output=True, check=False, timeout=90)


def of_this_home(tmp_path: Path) -> list[str]:
    """Command lines of processes that belong to this data directory."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                environ = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if str(tmp_path).encode() in environ + command.encode():
                found.append(f"{folder.name} {command[:100]}")
    return found


def until_empty(tmp_path: Path, *, seconds: float) -> list[str]:
    """What is left of the processes after waiting for their end."""
    deadline = time.monotonic() + seconds
    while (left := of_this_home(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_one_command_answers_and_leaves_nothing_behind(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*FLEET_TERM, "ask", "--local", "-a", GPL, PATENT, "--jsonl"]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert facts[-1]["type"] == "turn.completed"
    assert any("**23**" in fact.get("text", "") for fact in facts if fact["type"] == "answer")
    assert "started" in done.stderr
    assert until_empty(tmp_path, seconds=40) == []
    token = tmp_path / ".local/share/fleet/token"
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_second_terminal_joins_and_the_last_one_ends_it_also_by_kill(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with window([*FLEET_TERM, "--local"], environment) as first:
        first.wait_for("›", timeout_s=60)
        assert "demo model" in first.text()
        with window([*FLEET_TERM, "--local"], environment) as second:
            second.wait_for("›", timeout_s=30)
            status = subprocess.run(
                [*FLEET_TERM, "local", "status"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            ).stdout
            assert "worker" in status and "redis" in status and "bubblewrap" in status
            second.send("What is 6 * 7?\r")
            second.wait_for("6 * 7 = 42")
        first.send("/sessions\r")
        first.wait_for("What is 6 * 7?")
        os.kill(first.pid, signal.SIGKILL)
    assert until_empty(tmp_path, seconds=40) == []


def test_a_killed_supervisor_takes_everything_with_it_and_the_next_start_works(
    environment: dict[str, str], tmp_path: Path
) -> None:
    subprocess.run([*FLEET_TERM, "local", "start"], env=environment, capture_output=True, timeout=90, check=True)
    card = json.loads((tmp_path / ".local/share/fleet/supervisor.json").read_text())
    os.kill(card["pid"], signal.SIGKILL)
    assert until_empty(tmp_path, seconds=20) == []
    done = subprocess.run(
        [*FLEET_TERM, "ask", "--local", "What is 6 * 7?"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0 and "**42**" in done.stdout
