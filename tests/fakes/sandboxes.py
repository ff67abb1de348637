"""Sandboxes without the store, for tests and benchmarks of the sandbox room: machines, Turns on them, interpreters.

`account_from_environment` points them at any Daytona.
"""

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fleet_worker.sandbox.bridge import Bridge
from fleet_worker.sandbox.connection import INCOMING, connect
from fleet_worker.sandbox.daytona import Account, Daytona, Machine, SandboxSpec
from fleet_worker.sandbox.interpreter import CellLimits, Connected, SandboxInterpreter
from fleet_worker.sandbox.protocol import AnsweredCall, CellDone
from fleet_worker.scope import Scope
from tests.fakes.daytona import LocalDaytona

#: Labels of what tests make, so that a real account can be cleaned up.
LABELS = {"app": "fleet-test", "deployment": "conformance"}


def account_from_environment() -> Account | None:
    """The account of FLEET_TEST_DAYTONA_URL and FLEET_TEST_DAYTONA_KEY; None when they are not set."""
    url, key = os.environ.get("FLEET_TEST_DAYTONA_URL"), os.environ.get("FLEET_TEST_DAYTONA_KEY")
    return Account(key, url) if url and key else None


def account_of(server: LocalDaytona) -> Account:
    """The account of a local server."""
    return Account(server.api_key, server.url)


@dataclass
class Heard:
    """A listener that remembers."""

    outputs: list[tuple[str, str]] = field(default_factory=list)
    cells: list[CellDone] = field(default_factory=list)
    again: list[AnsweredCall] = field(default_factory=list)

    def output(self, stream: str, text: str) -> None:
        self.outputs.append((stream, text))

    def finished(self, done: CellDone) -> None:
        self.cells.append(done)

    def answered_before(self, call: AnsweredCall) -> None:
        self.again.append(call)

    @property
    def text(self) -> str:
        """All live output."""
        return "".join(text for _, text in self.outputs)


class Host:
    """One sandbox and the Turns of a Session on it."""

    def __init__(self, daytona: Daytona) -> None:
        self.daytona = daytona
        self.name = f"fleet-test-{uuid.uuid4().hex[:12]}"
        self.machine: Machine | None = None
        self.sequence = 0

    def bridge(self, *, attempt: int = 1, same_turn: bool = False) -> Bridge:
        """An open bridge for the next Turn, or for another attempt at the present one."""
        is_new = self.machine is None
        if self.machine is None:
            self.machine = self.daytona.create(SandboxSpec(self.name, LABELS, 5, 5), timeout_s=60)
        if not same_turn:
            self.sequence += 1
        return connect(self.machine, turn_sequence=self.sequence, attempt=attempt, seed=7, is_new=is_new, uploads={})

    @contextlib.contextmanager
    def turn(
        self,
        tools: dict[str, Callable[..., Any]] | None = None,
        *,
        attempt: int = 1,
        same_turn: bool = False,
        limits: CellLimits | None = None,
        fields: list[dict[str, Any]] | None = None,
        scope: Scope | None = None,
        end: bool = True,
    ) -> Iterator[tuple[SandboxInterpreter, Heard]]:
        """An interpreter as a Run wires it, and what its listener hears; without `end` the Turn goes on elsewhere."""
        bridge = self.bridge(attempt=attempt, same_turn=same_turn)
        assert self.machine is not None
        heard = Heard()
        connected = Connected(bridge, self.machine.upload, INCOMING)
        interpreter = SandboxInterpreter(
            lambda: connected, limits=limits or CellLimits(timeout_s=20), listener=heard, scope=scope, keep=True
        )
        interpreter.tools.update(tools or {})
        interpreter.output_fields = fields or [{"name": "answer", "type": "str"}]
        interpreter.start()
        try:
            yield interpreter, heard
        finally:
            interpreter.shutdown()
            if end:
                bridge.end_turn()
            bridge.close()

    def delete(self) -> None:
        """Delete the sandbox."""
        if self.machine is not None:
            self.daytona.delete(self.machine.id)
