"""The supervisor of a data directory: starts everything, stays while a terminal is connected, leaves nothing behind.

Run as `python -m fleet_term.local.supervisor DATA_DIR`, detached, by the first terminal. One thread: the kernel ends
its children when the thread that started them ends.
"""

import contextlib
import fcntl
import http.client
import importlib.metadata
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from fleet_term import config
from fleet_term.local.environment import (
    is_demo_only,
    model_of,
    plain_environment,
    server_environment,
    settings_digests,
)
from fleet_term.local.errors import LocalStartError
from fleet_term.local.keeping import kept_or_new, read_kept, write_kept
from fleet_term.local.places import DataDir, RuntimeDir, clear_stale, make_runtime_dir, write_card
from fleet_term.local.processes import Process, Recipe
from fleet_term.local.redis import find_redis
from fleet_term.local.wire import (
    MAX_LINE,
    PROTOCOL,
    Ask,
    Draining,
    Failed,
    Hello,
    Message,
    Part,
    Progress,
    Ready,
    Refused,
    Report,
    Stop,
    Told,
    WireError,
    decode,
    encode,
)

#: Exit status when another supervisor has the data directory.
LOCKED: Final = 75
#: Seconds a step of the start may take, without any terminal before the start is given up, and between looks.
STEP_S: Final = 60.0
ALONE_S: Final = 20.0
LOOK_S: Final = 1.0


class Ending(Exception):
    """The supervisor has to end now."""


class Peer:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.hello: Hello | None = None

    def send(self, message: Message) -> None:
        """Send a message; a peer that is gone or does not read is left to the next look."""
        with contextlib.suppress(OSError):
            self.sock.sendall(encode(message))


class Supervisor:
    """Everything that runs for one data directory."""

    def __init__(self, data: DataDir, runtime: RuntimeDir) -> None:
        self._data = data
        self._runtime = runtime
        self._environment = config.environ()
        self._selector = selectors.DefaultSelector()
        self._peers: set[Peer] = set()
        self._parts: dict[str, Process] = {}
        self._told: list[Progress] = []
        self._phases: dict[str, int] = {}
        self._ready: Ready | None = None
        self._state = "starting"
        self._keep = False
        self._unisolated = False
        self._stopping = False
        self._began = time.monotonic()
        self._alone_since = time.monotonic()
        self._isolation: str | None = None
        self._daytona_key = ""
        self._daytona_url = ""

    def run(self) -> int:
        """Until the last terminal is gone; the exit status."""
        self._listen()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        try:
            self._start()
            self._state = "running"
            while not self._is_over():
                self._pump(LOOK_S)
                self._mend()
            return 0
        except Ending:
            return 0
        except LocalStartError as error:
            self._tell(Failed(message=error.message, hint=error.hint, log_tail=error.log_tail))
            return 1
        except Exception as error:
            hint = f"Its log is {self._data.log('supervisor')}."
            self._tell(Failed(message=f"Local mode broke: {type(error).__name__}: {error}", hint=hint, log_tail=()))
            raise
        finally:
            self._end()

    def _listen(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._runtime.socket))
        self._runtime.socket.chmod(0o600)
        listener.listen(16)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        write_card(self._data, self._runtime, protocol=PROTOCOL)

    def _start(self) -> None:
        self._wait_for(lambda: self._terminals or self._keep, "a terminal", None)
        model = model_of(self._environment)
        with self._step("parts", "Redis, sandboxes and the database"):
            self._launch(self._redis_recipe())
            self._launch(self._daytona_recipe())
            upgrade = self._launch(self._command("database", ["fleet_web", "db", "upgrade"]))
            self._wait_for(lambda: self._runtime.redis_socket.exists(), "Redis", self._parts["redis"])
            told = self._wait_for(self._daytona_ready, "the sandbox server", self._parts["daytona"])
            self._daytona_url, self._isolation = told["api_url"], told["isolation"]
            self._wait_for(lambda: _has_ended(upgrade), "the database", None)
            self._require_success(upgrade, "The database could not be brought to this release's schema.")
        if self._isolation == "none" and not is_demo_only(self._environment) and not self._unisolated:
            raise LocalStartError(
                f"There is no bubblewrap here, so the Python that {model} writes would run without isolation.",
                hint="Install bubblewrap (apt install bubblewrap), or accept that with --allow-unisolated.",
            )
        token = self._token()
        with self._step("servers", "the API and a worker"):
            port = _free_port()
            self._launch(self._server("web", ["fleet_web", "serve"], port, stop_s=12.0))
            self._launch(self._server("worker", ["fleet_worker", "run"], port, stop_s=26.0))
            self._wait_for(lambda: self._answers(port), "the API", self._parts["web"])
            self._wait_for(lambda: self._answers(port, workers=True), "the worker", self._parts["worker"])
        self._ready = Ready(
            url=f"http://127.0.0.1:{port}",
            token=token,
            model=model,
            isolation=str(self._isolation),
            data_dir=str(self._data.root),
            version=_version("fleet"),
            versions={name: _version(name) for name in ("dspy", "daytona", "celery", "flask")},
            pids={name: part.pid or 0 for name, part in self._parts.items()},
            settings=settings_digests(self._environment),
            unisolated_allowed=self._unisolated,
        )
        self._tell(self._ready)

    def _redis_recipe(self) -> Recipe:
        command = [find_redis(), "--port", "0", "--unixsocket", str(self._runtime.redis_socket)]
        command += ["--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--daemonize", "no"]
        command += ["--maxmemory", "256mb", "--maxmemory-policy", "noeviction", "--dir", str(self._runtime.root)]
        environment = plain_environment(self._environment, {})
        return Recipe("redis", command, environment, self._data.log("redis"), stop_s=3.0)

    def _daytona_recipe(self) -> Recipe:
        self._daytona_key = kept_or_new(self._runtime.root / "daytona_key")
        command = [sys.executable, "-m", "fleet_worker.local_daytona", "--port", "0", "--exit-with-parent"]
        command += ["--data-dir", str(self._data.sandboxes), "--log-format", "text"]
        if self._unisolated or is_demo_only(self._environment):
            command.append("--allow-unisolated")  # used only where there is no bubblewrap
        environment = plain_environment(self._environment, {"DAYTONA_API_KEY": self._daytona_key})
        log, output = self._data.log("daytona"), self._runtime.output("daytona")
        return Recipe("daytona", command, environment, log, stop_s=8.0, output=output)

    def _addresses(self, port: int) -> dict[str, str]:
        return {
            "DATABASE_URL": f"sqlite:///{self._data.database}",
            "REDIS_URL": f"unix://{self._runtime.redis_socket}",
            "DAYTONA_API_KEY": self._daytona_key,
            "DAYTONA_API_URL": self._daytona_url,
            "FLEET_SECRET_KEY": kept_or_new(self._data.secret_key),
            "FLEET_WEB_HOST": "127.0.0.1",
            "PORT": str(port),
        }

    def _command(self, name: str, words: list[str]) -> Recipe:
        environment = server_environment(self._environment, self._addresses(1))
        command = [sys.executable, "-m", *words]
        return Recipe(name, command, environment, self._data.log(name), stop_s=5.0, output=self._runtime.output(name))

    def _server(self, name: str, words: list[str], port: int, *, stop_s: float) -> Recipe:
        environment = server_environment(self._environment, self._addresses(port))
        shown = port if name == "web" else None
        return Recipe(name, [sys.executable, "-m", *words], environment, self._data.log(name), stop_s, port=shown)

    def _token(self) -> str:
        kept = read_kept(self._data.token)
        if kept is not None:
            return kept
        with self._step("token", "a token"):
            for action in ("create", "rotate"):
                made = self._launch(self._command("database", ["fleet_web", "token", action, "local"]))
                self._wait_for(partial(_has_ended, made), "a token", None)
                if made.running is not None and made.running.returncode == 0:
                    secret = self._runtime.output("database").read_text(encoding="utf-8").strip()
                    write_kept(self._data.token, secret)
                    return secret
            raise LocalStartError("No token could be made.", log_tail=made.tail())

    def _launch(self, recipe: Recipe) -> Process:
        process = Process(recipe)
        if recipe.name != "database":
            self._parts[recipe.name] = process
        process.start()
        return process

    def _require_success(self, process: Process, message: str) -> None:
        if process.running is not None and process.running.returncode:
            raise LocalStartError(message, hint=f"Its log is {process.recipe.log}.", log_tail=process.tail())

    def _daytona_ready(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            line, newline, _ = self._runtime.output("daytona").read_text(encoding="utf-8").partition("\n")
            found = json.loads(line) if newline else None
            return found if isinstance(found, dict) else None
        return None

    def _answers(self, port: int, *, workers: bool = False) -> bool:
        found = self._get(port, "/health/ready", "")
        return found is not None and (not workers or bool(found.get("workers")))

    def _get(self, port: int, path: str, token: str) -> dict[str, Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            found = json.loads(answer.read())
            return found if answer.status == 200 and isinstance(found, dict) else None
        except (OSError, ValueError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _open_turns(self) -> int | None:
        if self._ready is None:
            return 0
        found = self._get(int(self._ready.url.rpartition(":")[2]), "/api/sessions?limit=100", self._ready.token)
        return sum(item["open_turn_id"] is not None for item in found["items"]) if found is not None else None

    def _is_over(self) -> bool:
        """Whether nobody needs this any more: no terminal, no open Turn, nobody asked to keep it."""
        if self._stopping:
            return True
        if self._keep or self._terminals:
            return False
        return not self._open_turns()

    @property
    def _terminals(self) -> list[Peer]:
        return [peer for peer in self._peers if peer.hello is not None]

    def _wait_for(self, check: Callable[[], Any], what: str, part: Process | None) -> Any:
        deadline = time.monotonic() + STEP_S
        while not (found := check()):
            self._pump(0.02)
            if self._stopping:
                raise Ending
            if self._terminals:
                self._alone_since = time.monotonic()
            elif not self._keep and time.monotonic() - self._alone_since > ALONE_S:
                raise Ending
            if part is not None and part.pid is None:
                hint = f"Its log is {part.recipe.log}."
                raise LocalStartError(f"{what} ended while it started.", hint=hint, log_tail=part.tail())
            if time.monotonic() > deadline:
                tail = part.tail() if part is not None else ()
                raise LocalStartError(f"{what} did not start within {STEP_S:g} s.", log_tail=tail)
        return found

    @contextlib.contextmanager
    def _step(self, name: str, text: str) -> Any:
        began = time.monotonic()
        self._progress(Progress(step=name, text=f"starting {text}", done=False, elapsed_ms=0))
        yield
        elapsed = int((time.monotonic() - began) * 1000)
        self._phases[name] = elapsed
        self._progress(Progress(step=name, text=f"started {text}", done=True, elapsed_ms=elapsed))

    def _progress(self, progress: Progress) -> None:
        self._told.append(progress)
        self._tell(progress)

    def _tell(self, message: Message) -> None:
        for peer in self._terminals:
            peer.send(message)

    def _mend(self) -> None:
        """Start again what has died, a few times."""
        for name, part in self._parts.items():
            if part.pid is not None:
                continue
            if not part.may_restart():
                self._tell(Told(level="error", text=f"{name} dies again and again; local mode ends. See its log."))
                raise Ending
            part.restarts += 1
            self._tell(Told(level="warning", text=f"{name} had ended and was started again"))
            if name == "redis":
                self._runtime.redis_socket.unlink(missing_ok=True)
            part.start()

    def _pump(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._accept(key.fileobj)
            else:
                self._read(key.data)

    def _accept(self, listener: Any) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = listener.accept()
            sock.settimeout(2)
            peer = Peer(sock)
            self._peers.add(peer)
            self._selector.register(sock, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(65536)
        except OSError:
            data = b""
        peer.buffer += data
        if not data or len(peer.buffer) > MAX_LINE:
            self._drop(peer)
            return
        *lines, peer.buffer = peer.buffer.split(b"\n")
        for line in lines:
            try:
                self._hear(peer, decode(line))
            except WireError as error:
                peer.send(Refused(message=str(error)))
                self._drop(peer)
                return

    def _drop(self, peer: Peer) -> None:
        self._selector.unregister(peer.sock)
        peer.sock.close()
        self._peers.discard(peer)
        self._alone_since = time.monotonic()

    def _hear(self, peer: Peer, message: Message) -> None:
        match message:
            case Hello() if message.protocol != PROTOCOL:
                peer.send(Refused(message="Another version of Fleet runs here.", hint="Run: fleet-term local stop"))
            case Hello() if self._stopping:
                peer.send(Refused(message="Local mode is ending.", retry=True))
            case Hello():
                peer.hello = message
                self._keep = self._keep or message.keep
                self._unisolated = self._unisolated or (message.allow_unisolated and self._ready is None)
                for progress in self._told if self._ready is None else []:
                    peer.send(progress)
                if self._ready is not None:
                    peer.send(self._ready)
            case Ask():
                peer.send(self._report())
            case Stop():
                self._stopping = True
                peer.send(Draining(open_turns=self._open_turns()))
            case _:
                raise WireError("a message for terminals")

    def _report(self) -> Report:
        return Report(
            state="draining" if self._stopping else self._state,
            pid=os.getpid(),
            url=self._ready.url if self._ready is not None else None,
            model=model_of(self._environment),
            isolation=self._isolation,
            data_dir=str(self._data.root),
            runtime_dir=str(self._runtime.root),
            version=_version("fleet"),
            uptime_s=round(time.monotonic() - self._began, 1),
            keep=self._keep,
            terminals=tuple(peer.hello.pid for peer in self._terminals if peer.hello is not None),
            parts=tuple(
                Part(name=name, pid=part.pid, port=part.recipe.port, restarts=part.restarts)
                for name, part in self._parts.items()
            ),
            phases=self._phases,
        )

    def _signalled(self, number: int, _: FrameType | None) -> None:
        self._stopping = True

    def _end(self) -> None:
        """End everything in the right order, and leave nothing behind."""
        self._stopping, self._state = True, "draining"
        self._data.card.unlink(missing_ok=True)
        servers = [self._parts[name] for name in ("worker", "web") if name in self._parts]
        for part in servers:
            if part.running is not None and part.pid is not None:
                part.running.terminate()
        for part in [*servers, *(self._parts[name] for name in ("daytona", "redis") if name in self._parts)]:
            part.stop(self._pump)
        for peer in list(self._peers):
            peer.sock.close()
        self._runtime.remove()


def _has_ended(process: Process) -> bool:
    return process.running is None or process.running.poll() is not None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def main() -> int:
    """Take the data directory's lock and supervise; the exit status."""
    data = DataDir(Path(sys.argv[1]))
    with data.lock.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return LOCKED
        clear_stale(data)
        try:
            return Supervisor(data, make_runtime_dir(config.environ())).run()
        except LocalStartError as error:
            sys.stderr.write(f"{error}\n")
            return 1


if __name__ == "__main__":
    sys.exit(main())
