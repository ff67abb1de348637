"""Starts the loopback Daytona server as a process of its own and talks to its admin endpoints, for tests of any
room."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_S = 60.0


@dataclass
class LocalDaytona:
    """A running server. `url` is what the SDK calls the API URL."""

    url: str
    api_key: str
    process: subprocess.Popen[str]
    data_dir: Path
    isolation: str
    _log: Path = field(repr=False)

    @property
    def origin(self) -> str:
        """The server's address without a path."""
        return self.url.removesuffix("/api")

    def environment(self) -> dict[str, str]:
        """The variables that point the SDK here."""
        return {"DAYTONA_API_URL": self.url, "DAYTONA_API_KEY": self.api_key}

    def faults(self, **switches: Any) -> dict[str, Any]:
        """Set fault switches (`fleet_worker.local_daytona.faults.Switches`), e.g. `latency_ms=37.5`; returns all
        of them."""
        return self.admin("POST", "/fleet/faults", switches)

    def fail(self, operation: str, kind: str, **more: Any) -> None:
        """Make the next request(s) of an operation fail (`faults.Rule`), e.g. `fail("create", "rate_limit",
        times=2)`."""
        self.admin("POST", "/fleet/faults", {"add_rules": [{"operation": operation, "kind": kind, **more}]})

    def heal(self) -> None:
        """Take back every fault."""
        self.admin("DELETE", "/fleet/faults")

    def happen(self, event: str, sandbox: str | None = None, **more: Any) -> dict[str, Any]:
        """Let something happen once: drop_sockets, stall_replies, stall_requests (seconds=…), or to a sandbox (all
        without one)
        destroy, stop, archive, error, lose_runner, find_runner, kill_agent."""
        return self.admin("POST", "/fleet/happen", {"event": event, "sandbox": sandbox, **more})

    def requests(self) -> dict[str, Any]:
        """The access log: `requests`, `count`, `by_operation`, `bytes_in`, `bytes_out`,
        `event_channel_attempts` (not counted)."""
        return self.admin("GET", "/fleet/requests")

    def reset_requests(self) -> None:
        """Empty the access log."""
        self.admin("POST", "/fleet/requests/reset", {})

    def status(self) -> dict[str, Any]:
        """Isolation and the sandboxes that exist."""
        return self.admin("GET", "/fleet/status")

    def admin(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Call one of the server's own endpoints."""
        request = urllib.request.Request(
            self.origin + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            answer = json.load(response)
            assert isinstance(answer, dict)
            return answer

    def logged(self) -> str:
        """What the server wrote on stderr."""
        return self._log.read_text()

    def stop(self) -> None:
        """Stop the server and wait until it is gone; every sandbox goes with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


def start_local_daytona(tmp_path: Path, *, as_user: int | None = None, **flags: Any) -> LocalDaytona:
    """Start a server with its files below `tmp_path`; a flag's name is the option's, e.g. `memory_mib=256`,
    `allow_unisolated=True`."""
    data_dir = tmp_path / "daytona"
    command = [sys.executable, "-m", "fleet_worker.local_daytona"]
    for name, value in {"port": 0, "data_dir": data_dir, "exit_with_parent": True, **flags}.items():
        option = "--" + name.replace("_", "-")
        command += [option] if value is True else [] if value is False or value is None else [option, str(value)]
    log = tmp_path / "daytona.log"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DAYTONA_")}
    with log.open("a") as stderr:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=tmp_path,
            user=as_user,
            group=as_user,
            extra_groups=None if as_user is None else [],
        )
    ready = _ready_line(process, log)
    return LocalDaytona(ready["api_url"], ready["api_key"], process, data_dir, ready["isolation"], log)


def _ready_line(process: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if readable else ""
    if not line:
        process.kill()
        process.wait(10)
        raise AssertionError(f"local_daytona did not start: {log.read_text()}")
    ready = json.loads(line)
    assert isinstance(ready, dict)
    return ready


@contextlib.contextmanager
def local_daytona(tmp_path: Path, **flags: Any) -> Iterator[LocalDaytona]:
    """A server for the length of a block."""
    server = start_local_daytona(tmp_path, **flags)
    try:
        yield server
    finally:
        server.stop()


def until(condition: Any, *, seconds: float = 20.0, what: str = "condition") -> Any:
    """Poll a condition until it is true; its value. Fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")
