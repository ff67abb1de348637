"""One sandbox per Session: made, found again, cleaned, retired and evicted. The record in SQL comes before the machine.

A sandbox is cattle: whatever is odd about it, it is retired and another one is made; the Workspace lives in SQL.
"""

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Final

from fleet_shared.settings import SandboxSettings
from fleet_shared.store import Database, Transaction, sandboxes
from fleet_shared.store.sandboxes import SandboxRow
from fleet_worker.sandbox.daytona import Daytona, KnownSandbox, Machine, SandboxSpec

log = logging.getLogger(__name__)

#: Machines whose client object is kept, so that a warm Turn asks the control plane nothing.
KNOWN_MACHINES: Final = 256
APP: Final = "fleet"


@dataclass(frozen=True, slots=True)
class Acquired:
    """A Session's machine; `is_new` when nothing of ours is on it yet, `is_unclean` when a Turn left things behind."""

    row: SandboxRow
    machine: Machine
    is_new: bool
    is_unclean: bool


class Sandboxes:
    """The sandboxes of one deployment, as one worker process sees them. Safe to share between threads."""

    def __init__(
        self,
        daytona: Daytona,
        database: Database,
        *,
        deployment_id: str,
        settings: SandboxSettings,
        snapshot: str | None,
    ) -> None:
        self._daytona = daytona
        self._database = database
        self._deployment_id = deployment_id
        self._settings = settings
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._machines: OrderedDict[str, Machine] = OrderedDict()

    def acquire(self, *, owner_id: str, session_id: str) -> Acquired:
        """The Session's sandbox, or a new one. Raises SandboxUnavailable, SandboxQuota."""
        row = self._database.run(lambda tx: sandboxes.live_sandbox(tx, session_id))
        if row is not None and row.daytona_id is not None:
            machine = self._known(row) or self._daytona.find(row.daytona_id)
            if machine is not None:
                self._remember(row, machine)
                self._database.run(partial(sandboxes.mark_used, sandbox_id=row.id))
                return Acquired(row, machine, is_new=False, is_unclean=row.unclean)
            self.retire(row)
            row = None
        if row is None:
            row = self._database.run(lambda tx: self._intend(tx, owner_id, session_id))
        machine = self._daytona.create(self._spec(row), timeout_s=self._settings.create_timeout_s)
        self._database.run(lambda tx: sandboxes.record_created(tx, row.id, machine.id))
        self._remember(row, machine)
        return Acquired(row, machine, is_new=True, is_unclean=False)

    def retire(self, row: SandboxRow) -> None:
        """Never use this sandbox again; the sweep deletes it."""
        with self._lock:
            self._machines.pop(row.id, None)
        self._database.run(lambda tx: sandboxes.retire(tx, row.id))

    def mark_clean(self, row: SandboxRow) -> None:
        """Nothing of an earlier Turn is left in the sandbox."""
        session_id = row.session_id
        if session_id is not None:
            self._database.run(lambda tx: sandboxes.mark_unclean(tx, session_id, unclean=False))

    def sweep(self) -> int:
        """Evict idle sandboxes beyond the warm limit, delete retired ones and orphans; how many are gone."""
        idle = self._database.run(sandboxes.idle_sandboxes)
        for row in idle[: max(0, len(idle) - self._settings.max_warm)]:
            log.info("sandbox.evicted", extra={"sandbox": row.name})
            self.retire(row)
        gone = 0
        for row in self._database.run(sandboxes.retiring_sandboxes):
            if self._daytona.delete(row.daytona_id or row.name):
                self._database.run(partial(sandboxes.forget, sandbox_id=row.id))
                gone += 1
        return gone + self._delete_orphans()

    def _delete_orphans(self) -> int:
        """Delete this deployment's sandboxes that no record names."""
        found: list[KnownSandbox] = list(self._daytona.labelled({"app": APP, "deployment": self._deployment_id}))
        known = self._database.run(sandboxes.known_names)
        gone = 0
        for item in found:
            if item.name not in known and self._daytona.delete(item.id):
                log.info("sandbox.orphan_deleted", extra={"sandbox": item.name})
                gone += 1
        return gone

    def _intend(self, tx: Transaction, owner_id: str, session_id: str) -> SandboxRow:
        known = sandboxes.live_sandbox(tx, session_id)
        if known is not None:
            return known
        return sandboxes.intend_sandbox(tx, owner_id=owner_id, session_id=session_id, deployment_id=self._deployment_id)

    def _spec(self, row: SandboxRow) -> SandboxSpec:
        labels = {
            "app": APP,
            "deployment": self._deployment_id,
            "owner": row.owner_id,
            "session": row.session_id or "",
            "generation": str(row.generation),
        }
        return SandboxSpec(
            name=row.name,
            labels=labels,
            auto_stop_min=self._settings.auto_stop_min,
            auto_delete_min=self._settings.auto_delete_min,
            snapshot=self._snapshot,
            network=self._settings.network,
            allowlist=self._settings.network_allowlist,
        )

    def _known(self, row: SandboxRow) -> Machine | None:
        with self._lock:
            return self._machines.get(row.id)

    def _remember(self, row: SandboxRow, machine: Machine) -> None:
        with self._lock:
            self._machines[row.id] = machine
            self._machines.move_to_end(row.id)
            while len(self._machines) > KNOWN_MACHINES:
                self._machines.popitem(last=False)
