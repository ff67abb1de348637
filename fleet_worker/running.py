"""The Turns this process runs right now: renews their leases and passes cancels on to them.

A lease is renewed every third of its length by one thread. When a renewal finds that another attempt holds the Turn,
its Run is stopped; a database that is away is asked again, because an expired lease only permits a takeover.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from fleet_shared.domain.errors import FleetError
from fleet_shared.ledger import Claimed, Ledger, NotHeld
from fleet_worker.scope import Scope, StopReason

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Running:
    claimed: Claimed
    scope: Scope
    renewed: float = field(default_factory=time.monotonic)


class RunningTurns:
    """The registry of a process. Safe to use from any thread."""

    def __init__(self, ledger: Ledger, *, lease_s: float) -> None:
        self._ledger = ledger
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-renewal", daemon=True)

    def __len__(self) -> int:
        return len(self._running)

    def start(self) -> None:
        """Begin to renew leases."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing."""
        self._stopping.set()

    @contextlib.contextmanager
    def hold(self, claimed: Claimed, scope: Scope) -> Iterator[None]:
        """Keep the lease of a claimed Turn for the length of the block."""
        entry = _Running(claimed, scope)
        with self._lock:
            self._running[claimed.turn_id] = entry
        try:
            yield
        finally:
            with self._lock:
                if self._running.get(claimed.turn_id) is entry:
                    del self._running[claimed.turn_id]

    def cancel(self, turn_id: str) -> None:
        """A cancel of a Turn was requested; it may be one of ours."""
        with self._lock:
            entry = self._running.get(turn_id)
        if entry is not None:
            entry.scope.stop(StopReason.CANCELLED)

    def stop_all(self, reason: StopReason) -> None:
        """Stop every Run of this process."""
        with self._lock:
            entries = list(self._running.values())
        for entry in entries:
            entry.scope.stop(reason)

    def renew_all(self) -> None:
        """Renew every lease now, one Turn per transaction."""
        with self._lock:
            entries = list(self._running.values())
        for entry in entries:
            self._renew(entry)

    def _run(self) -> None:
        while not self._stopping.wait(self._lease_s / 3):
            self.renew_all()

    def _renew(self, entry: _Running) -> None:
        claimed = entry.claimed
        try:
            cancelled = self._ledger.renew(claimed.turn_id, attempt=claimed.attempt, lease_s=self._lease_s)
        except NotHeld:
            entry.scope.stop(StopReason.LOST)
            return
        except FleetError as error:
            log.warning("lease.not_renewed", extra={"turn_id": claimed.turn_id, "reason": error.code})
            return
        entry.renewed = time.monotonic()
        if cancelled:
            entry.scope.stop(StopReason.CANCELLED)
