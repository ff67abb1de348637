"""From a machine to an obeyed supervisor: uploads the driver, starts it on a terminal, or finds the one that lives."""

import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Final

from fleet_shared.domain.errors import SandboxLost
from fleet_worker.sandbox import driver
from fleet_worker.sandbox.bridge import Bridge, Transport
from fleet_worker.sandbox.daytona import Machine

log = logging.getLogger(__name__)

#: Seconds from the start command to the supervisor's READY line.
READY_S: Final = 15.0
FOLDER: Final = f"/tmp/.fleet-{driver.digest()}"
INCOMING: Final = f"{FOLDER}/in"
TERMINAL: Final = f"fleet-{driver.digest()}"


def driver_files() -> dict[str, bytes]:
    """The driver's files by the path they are uploaded to."""
    return {f"{FOLDER}/{name}": data for name, data in driver.sources().items()}


def connect(
    machine: Machine, *, turn_sequence: int, attempt: int, seed: int, is_new: bool, uploads: Mapping[str, bytes | str]
) -> Bridge:
    """An open bridge to the machine's supervisor, started when there is none. `uploads` are written first.

    `seed` fixes Python's string hashing for all interpreters of a Session. Raises SandboxLost.
    """
    lines = _Lines(machine)
    bridge = Bridge(lines, turn_sequence=turn_sequence, attempt=attempt)
    if not is_new:
        try:
            if uploads:
                machine.upload(uploads)
            bridge.open()
            return bridge
        except SandboxLost as error:
            log.info("supervisor.not_there", extra={"sandbox": machine.name, "reason": error.detail})
            bridge.close()
            bridge = Bridge(lines, turn_sequence=turn_sequence, attempt=attempt)
    machine.upload({**driver_files(), **uploads})
    lines.start(seed)
    bridge.open()
    return bridge


class _Lines:
    """Attaches to the supervisor's terminal; after `start` the first attachment is the one it was started on."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._started: _Started | None = None

    def __call__(self, *, on_data: Callable[[bytes], None], on_lost: Callable[[], None]) -> Transport:
        started, self._started = self._started, None
        if started is not None:
            return started.hand_over(on_data, on_lost)
        return self._machine.open_terminal(TERMINAL, create=False, on_data=on_data, on_lost=on_lost)

    def start(self, seed: int) -> None:
        """Run the supervisor on a new terminal and wait for its READY line. Raises SandboxLost."""
        nonce = secrets.token_hex(8)
        started = _Started(nonce)
        started.terminal = self._machine.open_terminal(
            TERMINAL, create=True, on_data=started.on_data, on_lost=started.on_lost
        )
        command = f" stty raw -echo 2>/dev/null; PYTHONHASHSEED={seed} exec python3 -u {FOLDER}/supervisor.py {nonce}\n"
        started.terminal.send(command.encode())
        if not started.wait():
            started.terminal.close()
            raise SandboxLost(f"The driver did not start in the sandbox: {started.seen or 'no output'}.")
        self._started = started


class _Started:
    """A terminal on which a supervisor starts: first watches for READY, then passes everything on."""

    def __init__(self, nonce: str) -> None:
        self.terminal: Transport | None = None
        self._nonce = nonce
        self._lock = threading.Lock()
        self._bytes = bytearray()
        self._over = threading.Event()
        self._is_ready = False
        self._is_lost = False
        self._pass_data: Callable[[bytes], None] | None = None
        self._pass_lost: Callable[[], None] | None = None

    @property
    def seen(self) -> str:
        """The end of what the terminal showed."""
        return bytes(self._bytes[-300:]).decode("utf-8", "replace").strip()

    def wait(self) -> bool:
        """Whether the READY line came in time."""
        self._over.wait(READY_S)
        return self._is_ready

    def hand_over(self, on_data: Callable[[bytes], None], on_lost: Callable[[], None]) -> Transport:
        """The terminal, with what it says going to other ears from now on."""
        with self._lock:
            self._pass_data, self._pass_lost = on_data, on_lost
            is_lost = self._is_lost
        assert self.terminal is not None
        if is_lost:
            on_lost()
        return self.terminal

    def on_data(self, data: bytes) -> None:
        """The terminal said something."""
        with self._lock:
            listener = self._pass_data
            if listener is None and not self._is_ready:
                self._bytes += data
                self._is_ready = _is_ready(bytes(self._bytes), self._nonce)
                if self._is_ready:
                    self._over.set()
        if listener is not None:
            listener(data)

    def on_lost(self) -> None:
        """The terminal is gone."""
        with self._lock:
            self._is_lost = True
            listener = self._pass_lost
        self._over.set()
        if listener is not None:
            listener()


def _is_ready(seen: bytes, nonce: str) -> bool:
    for line in seen.split(b"\n"):
        start = line.rfind(b"\x1e")
        if start >= 0:
            try:
                message = json.loads(line[start + 1 :])
            except ValueError:
                continue
            if isinstance(message, dict) and message.get("t") == "ready" and message.get("nonce") == nonce:
                return True
    return False
