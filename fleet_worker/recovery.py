"""The recovery work of a worker process: heartbeats, the sweep of Turns, sandboxes, blobs and expired rows."""

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from fleet_shared.blobs import collect_unused
from fleet_shared.domain.errors import FleetError
from fleet_shared.ledger import Sweep
from fleet_shared.ledger.sweep import sweep_quietly
from fleet_shared.settings import Settings
from fleet_shared.store import Database, Transaction, database_now, workers
from fleet_shared.store.housekeeping import expire_events, expire_turns
from fleet_worker.sandbox.lifecycle import Sandboxes

log = logging.getLogger(__name__)

#: Seconds between heartbeats, passes over the Turns, and passes over everything else.
BEAT_S: Final = 15.0
TURNS_S: Final = 10.0
REST_S: Final = 30.0
#: Seconds until an unused upload is removed, and a silent worker's row.
UNUSED_S: Final = 24 * 3600.0
SILENT_S: Final = 3600.0


class Recovery:
    """Runs the recovery work on one thread; any number of processes may."""

    def __init__(
        self,
        database: Database,
        sweep: Sweep,
        sandboxes: Sandboxes,
        settings: Settings,
        *,
        worker_id: str,
        worker_name: str,
        counters: Callable[[], dict[str, Any]],
    ) -> None:
        self._database = database
        self._sweep = sweep
        self._sandboxes = sandboxes
        self._settings = settings
        self._worker_id = worker_id
        self._worker_name = worker_name
        self._counters = counters
        self._stopping = threading.Event()
        self._draining = False
        self._threads = [
            threading.Thread(target=self._every, args=(self.beat, BEAT_S), name="heartbeat", daemon=True),
            threading.Thread(target=self._every, args=(self._turns, TURNS_S), name="sweep", daemon=True),
            threading.Thread(target=self._every, args=(self.rest, REST_S), name="housekeeping", daemon=True),
        ]

    def start(self) -> None:
        """Begin, with one pass at once."""
        for thread in self._threads:
            thread.start()

    def drain(self) -> None:
        """Say in the heartbeat that this worker takes no more Turns."""
        self._draining = True
        self._guarded(self.beat)

    def stop(self) -> None:
        """End, and take the heartbeat row away."""
        self._stopping.set()
        self._guarded(lambda: self._database.run(lambda tx: workers.leave(tx, self._worker_id)))

    def beat(self) -> None:
        """Write the heartbeat."""
        counters = self._counters()
        self._database.run(
            lambda tx: workers.beat(
                tx, worker_id=self._worker_id, name=self._worker_name, draining=self._draining, counters=counters
            )
        )

    def rest(self) -> None:
        """Sandboxes, blobs and rows nobody needs any more."""
        gone = self._sandboxes.sweep()
        blobs = collect_unused(self._database, older_than_s=UNUSED_S)
        rows = self._database.run(self._expire)
        if gone or blobs or rows:
            log.info("housekeeping.done", extra={"sandboxes": gone, "blobs": blobs, "rows": rows})

    def _turns(self) -> None:
        sweep_quietly(self._sweep)

    def _expire(self, tx: Transaction) -> int:
        now = database_now(tx)
        rows = workers.forget_silent(tx, older_than_s=SILENT_S)
        rows += expire_events(tx, before=now - timedelta(days=self._settings.events.retention_days))
        if self._settings.turns.retention_days:
            rows += expire_turns(tx, before=now - timedelta(days=self._settings.turns.retention_days))
        return rows

    def _every(self, work: Callable[[], None], seconds: float) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._guarded(work)
            log.debug("recovery.pass", extra={"work": work.__name__, "s": round(time.monotonic() - began, 3)})
            self._stopping.wait(seconds * random.uniform(0.8, 1.2))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except FleetError as error:
            log.warning("recovery.skipped", extra={"reason": error.code, "detail": error.detail})
