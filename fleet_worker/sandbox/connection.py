"""From a machine to an obeyed supervisor: uploads the driver, starts it on a terminal, or finds the one that lives."""

import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Final

from fleet_shared.domain.errors import SandboxLost
from fleet_worker.sandbox import driver
from fleet_worker.sandbox.bridge import Bridge, Superseded, Transport
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
    if not is_new:
        bridge = Bridge(_Lines(machine), turn_sequence=turn_sequence, attempt=attempt)
        try:
            if uploads:
                machine.upload(uploads)
            bridge.open()
            return bridge
        except SandboxLost as error:
            log.info("supervisor.not_there", extra={"sandbox": machine.name, "reason": error.detail})
            bridge.close()
        except Superseded as error:
            raise SandboxLost("Another Turn uses the sandbox.") from error
    machine.upload({**driver_files(), **uploads})
    _start(machine, seed)
    bridge = Bridge(_Lines(machine), turn_sequence=turn_sequence, attempt=attempt)
    bridge.open()
    return bridge


class _Lines:
    """Attaches to the supervisor's terminal."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __call__(self, *, on_data: Callable[[bytes], None], on_lost: Callable[[], None]) -> Transport:
        return self._machine.open_terminal(TERMINAL, create=False, on_data=on_data, on_lost=on_lost)


def _start(machine: Machine, seed: int) -> None:
    """Run the supervisor on a new terminal and wait for its READY line."""
    nonce = secrets.token_hex(8)
    ready = threading.Event()
    seen = bytearray()

    def on_data(data: bytes) -> None:
        seen.extend(data)
        if not ready.is_set() and _is_ready(bytes(seen), nonce):
            ready.set()

    terminal = machine.open_terminal(TERMINAL, create=True, on_data=on_data, on_lost=ready.set)
    command = f" stty raw -echo 2>/dev/null; PYTHONHASHSEED={seed} exec python3 -u {FOLDER}/supervisor.py {nonce}\n"
    terminal.send(command.encode())
    ready.wait(READY_S)
    terminal.close()
    if not _is_ready(bytes(seen), nonce):
        text = bytes(seen[-300:]).decode("utf-8", "replace").strip()
        raise SandboxLost(f"The driver did not start in the sandbox: {text or 'no output'}.")


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
