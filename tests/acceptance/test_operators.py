"""What an operator runs beside web and worker: doctor, sweep, schema, tokens, and the lines of the Procfile."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from fleet_term.client.errors import ClientError
from tests.fakes.redis import free_port
from tests.fakes.stack import ROOT, Stack


def line(name: str) -> str:
    """A process of the Procfile as a shell command that finds our Python."""
    lines = dict(text.split(": ", 1) for text in (ROOT / "Procfile").read_text().splitlines())
    return lines[name].replace("python ", f"{shlex.quote(sys.executable)} ", 1)


def test_the_doctor_finds_everything_well_also_the_sandbox(stack: Stack) -> None:
    told = stack.command("fleet_worker", "doctor", "--live").splitlines()
    assert [text.split()[0] for text in told] == ["ok"] * len(told)
    assert {"dspy:", "database:", "schema:", "redis:", "sandbox:"} <= {text.split()[1] for text in told}


def test_the_doctor_names_what_is_wrong(stack: Stack) -> None:
    broken = {**stack.environment, "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0", "FLEET_NONSENSE_X": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "fleet_worker", "doctor"], env=broken, capture_output=True, text=True, check=False
    )
    failed = [text for text in done.stdout.splitlines() if text.startswith("FAIL")]
    assert done.returncode == 1 and any("redis" in text for text in failed)
    assert any("FLEET_NONSENSE_X" in text for text in failed)


def test_a_sweep_without_anything_lost_changes_nothing(stack: Stack) -> None:
    assert set(stack.command("fleet_worker", "sweep").split()) >= {"lost=0", "overdue=0", "expired=0"}


def test_servers_refuse_a_database_without_schema_and_say_the_command(stack: Stack, tmp_path: Path) -> None:
    empty = {**stack.environment, "DATABASE_URL": f"sqlite:///{tmp_path / 'empty.db'}"}
    for words in (["fleet_web", "serve"], ["fleet_worker", "run"], ["fleet_web", "db", "check"]):
        done = subprocess.run(
            [sys.executable, "-m", *words], env=empty, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode != 0, words
        assert "python -m fleet_web db upgrade" in done.stdout + done.stderr, words


def test_a_token_opens_the_door_until_it_is_revoked(stack: Stack) -> None:
    secret = stack.command("fleet_web", "token", "create", "visitor")
    visitor = stack.client
    visitor = type(visitor)(stack.url, secret)
    visitor.create_session()
    assert "visitor" in stack.command("fleet_web", "token", "list")
    stack.command("fleet_web", "token", "revoke", "visitor")
    deadline = time.monotonic() + 10
    with pytest.raises(ClientError):
        while time.monotonic() < deadline:
            visitor.create_session()
            time.sleep(0.2)


def test_flower_shows_the_worker(stack: Stack) -> None:
    port = free_port()
    environment = {**stack.environment, "PORT": str(port)}
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line('flower')}"],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        workers: list[object] = []
        while not workers and time.monotonic() < deadline:
            time.sleep(0.3)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/workers?json=1", timeout=5) as answer:
                    workers = [item for item in json.load(answer)["data"] if item["status"]]
            except OSError:
                continue
        assert workers
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(10)
