"""The sandbox of one Run, made ready on a thread of its own while the first model call runs."""

import logging
import threading
import time
import uuid
from typing import Final

from fleet_shared.domain.errors import RunFailure, SandboxLost
from fleet_shared.domain.events import Phase
from fleet_shared.ledger import Claimed
from fleet_shared.settings import FileSettings
from fleet_shared.store import Database
from fleet_worker.agent.seams import Emit
from fleet_worker.sandbox.bridge import Bridge
from fleet_worker.sandbox.connection import INCOMING, connect
from fleet_worker.sandbox.interpreter import Connected
from fleet_worker.sandbox.lifecycle import Acquired, Sandboxes
from fleet_worker.scope import RunStopped, Scope
from fleet_worker.staging import Plan, Stage, uploads_for

log = logging.getLogger(__name__)

#: Times a sandbox that turns out to be gone is replaced before the Run fails.
REPLACEMENTS: Final = 2


class Preparation:
    """Gets a sandbox and puts the Turn's files into it. `connected` waits for it; `close` leaves the sandbox."""

    def __init__(
        self,
        claimed: Claimed,
        plan: Plan,
        *,
        sandboxes: Sandboxes,
        database: Database,
        limits: FileSettings,
        scope: Scope,
        emit: Emit,
    ) -> None:
        self._claimed = claimed
        self._plan = plan
        self._sandboxes = sandboxes
        self._database = database
        self._limits = limits
        self._scope = scope
        self._emit = emit
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self._bridge: Bridge | None = None
        self._acquired: Acquired | None = None
        self._stage: Stage | None = None
        self.duration_ms = 0
        self._thread = threading.Thread(target=self._work, name="preparation", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def connected(self) -> Connected:
        """The way into the sandbox, once it is ready. Raises RunFailure or RunStopped."""
        self._wait()
        assert self._bridge is not None and self._acquired is not None
        return Connected(self._bridge, self._acquired.machine.upload, INCOMING)

    @property
    def stage(self) -> Stage:
        """The sandbox's trees, once it is ready. Raises RunFailure or RunStopped."""
        self._wait()
        assert self._stage is not None
        return self._stage

    @property
    def is_ready(self) -> bool:
        """Whether the sandbox was made ready."""
        return self._done.is_set() and self._failure is None

    def stop_cells(self) -> None:
        """End the Turn's interpreter process: nothing more of it may happen in the sandbox."""
        if self._bridge is not None:
            self._bridge.leave_lane("root")

    def give_up_sandbox(self) -> None:
        """Never use this Session's sandbox again."""
        if self._acquired is not None:
            self._sandboxes.retire(self._acquired.row)

    def close(self) -> None:
        """Detach from the sandbox, which lives on."""
        if self._bridge is not None:
            self._bridge.close()

    def _wait(self) -> None:
        while not self._done.wait(0.05):
            self._scope.check()
        if self._failure is not None:
            self._scope.check()
            raise self._failure

    def _work(self) -> None:
        began = time.monotonic()
        try:
            self._prepare()
        except (RunFailure, RunStopped) as failure:
            self._failure = failure
        except BaseException as error:  # passed on to the thread that waits
            log.exception("preparation.failed", extra={"turn_id": self._claimed.turn_id})
            self._failure = error
        finally:
            self.duration_ms = int((time.monotonic() - began) * 1000)
            self._done.set()

    def _prepare(self) -> None:
        claimed = self._claimed
        for replacement in range(REPLACEMENTS + 1):
            self._scope.check()
            self._tell("sandbox", "getting a sandbox")
            acquired = self._acquired = self._sandboxes.acquire(
                owner_id=claimed.owner_id, session_id=claimed.session_id
            )
            try:
                self._enter(acquired)
                return
            except SandboxLost as lost:
                log.warning("sandbox.replaced", extra={"sandbox": acquired.row.name, "reason": lost.detail})
                self.close()
                self._sandboxes.retire(acquired.row)
                if replacement == REPLACEMENTS:
                    raise
        raise AssertionError("unreachable")

    def _enter(self, acquired: Acquired) -> None:
        claimed, plan = self._claimed, self._plan
        blobs = list(plan.blobs.values()) if acquired.is_new else []
        if blobs:
            size = sum(item.bytes for item in blobs)
            self._tell("staging", f"{len(blobs)} files, {size} bytes")
        with uploads_for(self._database, blobs) as uploads:
            bridge = self._bridge = connect(
                acquired.machine,
                turn_sequence=claimed.sequence,
                attempt=claimed.attempt,
                seed=uuid.UUID(claimed.session_id).int % 2**32,
                is_new=acquired.is_new,
                uploads=uploads,
            )
        if acquired.is_unclean:
            bridge.request("clean", {}, timeout_s=30)
        self._scope.check()
        self._stage = Stage(self._database, bridge, acquired.machine, self._limits)
        self._stage.put(plan, uploaded=frozenset(item.sha256 for item in blobs))
        if acquired.is_unclean:
            self._sandboxes.mark_clean(acquired.row)

    def _tell(self, name: str, detail: str) -> None:
        self._emit(Phase(name, detail), ())
