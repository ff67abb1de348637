"""The parts of one worker process, built once and shared by its Runs: database, writer, ledger, sandboxes, models."""

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from fleet_shared.domain.ids import new_id
from fleet_shared.ledger import Ledger, Sweep
from fleet_shared.messaging.control import ControlListener
from fleet_shared.messaging.event_log import EventWriter
from fleet_shared.messaging.live import LivePublisher
from fleet_shared.messaging.names import Names
from fleet_shared.messaging.queue import Nudge, make_celery, make_nudge
from fleet_shared.messaging.redis import make_redis
from fleet_shared.settings import (
    BadSetting,
    LoadedSettings,
    Models,
    Process,
    Role,
    load_models,
    load_process,
    load_settings,
)
from fleet_shared.store import Database
from fleet_shared.store.deployment import deployment_id
from fleet_worker.pipeline import Parts, Pipeline
from fleet_worker.recovery import Recovery
from fleet_worker.running import RunningTurns
from fleet_worker.sandbox.daytona import Account, Daytona
from fleet_worker.sandbox.lifecycle import Sandboxes
from fleet_worker.scope import StopReason
from fleet_worker.tasks import BusyWorker

log = logging.getLogger(__name__)

#: Seconds a drain waits for its Runs to hand over.
DRAIN_S: Final = 15.0


class Station:
    """One worker process at work. `start` begins, `drain` hands the Runs over, `stop` ends the threads."""

    def __init__(
        self,
        *,
        process: Process,
        settings: LoadedSettings,
        models: Models,
        account: Account,
        database: Database,
        names: Names,
        nudge: Nudge,
    ) -> None:
        operator = settings.settings
        worker_id, worker_name = new_id(), f"{socket.gethostname()}:{os.getpid()}"
        self._draining = threading.Event()
        self._publisher = LivePublisher(make_redis(process.redis_url, max_connections=1, name="live"), names)
        self._writer = EventWriter(database, self._publisher)
        ledger = Ledger(database, self._publisher, nudge)
        self._running = RunningTurns(ledger, lease_s=operator.run.lease_s)
        control = make_redis(process.redis_url, max_connections=1, name="control")
        self._control = ControlListener(control, names, self._running.cancel)
        self._daytona = Daytona(account)
        self.sandboxes = Sandboxes(
            self._daytona,
            database,
            deployment_id=names.deployment_id,
            settings=operator.sandbox,
            snapshot=process.snapshot,
        )
        self.sweep = Sweep(database, ledger, nudge)
        self.recovery = Recovery(
            database,
            self.sweep,
            self.sandboxes,
            operator,
            worker_id=worker_id,
            worker_name=worker_name,
            counters=self._counters,
        )
        self._pipeline = Pipeline(
            Parts(
                database=database,
                ledger=ledger,
                writer=self._writer,
                running=self._running,
                sandboxes=self.sandboxes,
                models=models,
                worker_id=worker_id,
                worker_name=worker_name,
                lease_s=operator.run.lease_s,
                max_running=operator.owner.max_running,
            )
        )

    def start(self) -> None:
        """Begin all threads."""
        for part in (self._publisher, self._writer, self._running, self._control, self.recovery):
            part.start()

    def run_turn(self, turn_id: str) -> None:
        """Run a Turn if it is free. Raises BusyWorker while draining."""
        if self._draining.is_set():
            raise BusyWorker
        self._pipeline.run(turn_id)

    def drain(self) -> None:
        """Hand every Run over; returns when all have, or after DRAIN_S."""
        self._draining.set()
        log.info("worker.draining", extra={"turns": len(self._running)})
        self._running.stop_all(StopReason.HANDOVER)
        deadline = time.monotonic() + DRAIN_S
        while len(self._running) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.recovery.drain()

    def stop(self) -> None:
        """End all threads."""
        self.recovery.stop()
        self._control.stop()
        self._running.stop()
        self._writer.stop()
        self._publisher.stop()
        self._daytona.close()

    def _counters(self) -> dict[str, Any]:
        return {"running": len(self._running), "live_dropped": self._publisher.dropped}


def load_account(environment: Mapping[str, str]) -> Account:
    """The Daytona account that the environment names. Raises BadSetting."""
    key = environment.get("DAYTONA_API_KEY", "").strip()
    if not key:
        raise BadSetting("DAYTONA_API_KEY", "is not set; give it the API key of the sandbox provider")
    return Account(
        api_key=key,
        api_url=environment.get("DAYTONA_API_URL") or None,
        target=environment.get("DAYTONA_TARGET") or None,
        organization_id=environment.get("DAYTONA_ORGANIZATION_ID") or None,
    )


def build_station(environment: Mapping[str, str]) -> Station:
    """A station for one pass of the recovery work; nothing is started. Raises BadSetting, Unavailable."""
    process = load_process(environment, Role.WORKER)
    database = Database(process.database_url)
    names = Names(database.run(deployment_id))
    app = make_celery(process.redis_url, names, Role.WORKER)
    return Station(
        process=process,
        settings=load_settings(environment),
        models=load_models(environment),
        account=load_account(environment),
        database=database,
        names=names,
        nudge=make_nudge(app, names),
    )
