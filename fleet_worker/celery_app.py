"""Entry file of the worker process and of Flower: the Celery application, and the signals that start and drain it."""

import logging
import os
import sys
import threading
from typing import Any, Final

from celery import signals

from fleet_shared.logs import start_logging
from fleet_shared.messaging.names import Names
from fleet_shared.messaging.queue import make_celery, make_nudge
from fleet_shared.settings import Role, load_models, load_process, load_settings, process_environment
from fleet_shared.store import Database
from fleet_shared.store.deployment import deployment_id
from fleet_worker.tasks import register_tasks

log = logging.getLogger(__name__)

#: Seconds from SIGTERM until the process ends whatever still runs; the platform kills after 30.
EXIT_AFTER_S: Final = 22.0

_environment = process_environment()
_settings = load_process(_environment, Role.FLOWER if "flower" in sys.argv else Role.WORKER)
start_logging(form=_settings.log_format, level=_settings.log_level)
_database = Database(_settings.database_url)
with _database.read() as _tx:
    _names = Names(deployment_id(_tx))

app = make_celery(_settings.redis_url, _names, _settings.role)
_station: Any = None


def _run_turn(turn_id: str) -> None:
    _station.run_turn(turn_id)


register_tasks(app, _run_turn)


@signals.setup_logging.connect
def _keep_logging(**_: Any) -> None:
    """Connected so that Celery leaves the handlers of `start_logging` alone."""


@signals.worker_init.connect
def _start(**_: Any) -> None:
    from fleet_worker.agent.guard import require_dspy  # noqa: PLC0415  # Flower must not pay for dspy and daytona
    from fleet_worker.station import Station, load_account  # noqa: PLC0415

    require_dspy()
    global _station  # Celery's signals know no instance
    _station = Station(
        process=_settings,
        settings=load_settings(_environment),
        models=load_models(_environment),
        account=load_account(_environment),
        database=_database,
        names=_names,
        nudge=make_nudge(app, _names),
    )
    _station.start()


@signals.worker_shutting_down.connect
def _drain(**_: Any) -> None:
    # Runs inside a signal handler: only starts threads.
    if _station is not None:
        threading.Thread(target=_station.drain, name="drain", daemon=True).start()
    timer = threading.Timer(EXIT_AFTER_S, _exit_now)
    timer.daemon = True
    timer.start()


@signals.worker_shutdown.connect
def _stop(**_: Any) -> None:
    if _station is not None:
        _station.stop()


def _exit_now() -> None:
    log.warning("worker.exit_forced", extra={"after_s": EXIT_AFTER_S})
    os._exit(0)
