"""A deployment's processes as the Procfile starts them: web and worker over Redis, a database, sandboxes, a model."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fleet_term.client import Client
from fleet_term.client.errors import ClientError
from tests.fakes.redis import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0


class Stack:
    """One deployment. Parts are named web, worker, worker2 and so on."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.environment = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "FLEET_SECRET_KEY": "of-the-tests",
            "FLEET_MODEL": "demo/rules",
            "FLEET_LOG_FORMAT": "text",
            "FLEET_WEB_HOST": "127.0.0.1",
            "PORT": str(self.port),
            **environment,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.token = ""

    @property
    def client(self) -> Client:
        """A client of the owner of the stack's token."""
        return Client(self.url, self.token)

    def command(self, *words: str) -> str:
        """The output of a command of ours in this deployment's environment."""
        done = subprocess.run(
            [sys.executable, "-m", *words], env=self.environment, cwd=self.folder, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def start(self) -> None:
        """Migrate, make a token, start web and worker, and wait until Turns can run."""
        self.command("fleet_web", "db", "upgrade")
        self.token = self.command("fleet_web", "token", "create", "tests")
        self.start_web()
        self.start_worker()
        self.wait_ready()

    def start_web(self) -> None:
        """Start the web process."""
        self._spawn("web", "fleet_web", "serve")

    def start_worker(self, name: str = "worker") -> None:
        """Start a worker process."""
        self._spawn(name, "fleet_worker", "run")

    def wait_ready(self, *, workers: int = 1) -> None:
        """Wait until the API answers and that many workers are alive."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(ClientError):
                if self.client.get("/health/ready")["workers"] >= workers:
                    return
            for name in self.processes:
                assert not self._ended(name), f"{name} has ended:\n{self.log(name)}"
            time.sleep(0.05)
        raise AssertionError(f"not ready:\n{self.log('web')}\n{self.log('worker')}")

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a part, to all of its processes as a platform does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    def kill(self, name: str) -> None:
        """kill -9, without warning."""
        self.signal(name, signal.SIGKILL)
        self.processes.pop(name).wait()

    def repair(self) -> None:
        """Bring back what a test has stopped, killed or added: one web and one worker, both alive."""
        for name in [name for name in self.processes if name not in ("web", "worker")]:
            self.kill(name)
        for name in self.processes:
            self.signal(name, signal.SIGCONT)
        dead = [name for name in ("web", "worker") if name not in self.processes or self._ended(name)]
        if "web" in dead:
            self.start_web()
        if "worker" in dead:
            self.start_worker()
        if dead:
            self.wait_ready()

    def stop(self) -> None:
        """End everything."""
        for name in self.processes:
            self.signal(name, signal.SIGCONT)
            self.signal(name, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for name in list(self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(max(0.1, deadline - time.monotonic()))
            self.kill(name)

    def log(self, name: str) -> str:
        """The end of a part's log."""
        path = self.folder / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace")[-6000:] if path.exists() else ""

    def ask(self, prompt: str, *, session_id: str | None = None, files: Mapping[str, bytes] | None = None) -> Any:
        """An ended Turn."""
        client = self.client
        session = session_id or client.create_session()["id"]
        ids = [attach(client, name, data) for name, data in (files or {}).items()]
        turn = client.submit(session, prompt, attachment_ids=ids)
        for _ in client.follow(turn["id"], give_up_s=60):
            pass
        return client.turn(turn["id"])

    def _ended(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def _spawn(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *words],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def attach(client: Client, name: str, data: bytes) -> str:
    """The id of an Attachment with that content."""
    import io

    return str(client.upload_stream(io.BytesIO(data), name, len(data))["id"])


@contextlib.contextmanager
def running(stack: Stack) -> Iterator[Stack]:
    """A stack for the length of a block; its logs are shown when the block fails."""
    try:
        stack.start()
        yield stack
    except BaseException:
        for name in stack.processes:
            sys.stdout.write(f"--- {name}\n{stack.log(name)}\n")
        raise
    finally:
        stack.stop()
