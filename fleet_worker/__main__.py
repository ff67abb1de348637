"""Entry file of the worker: `python -m fleet_worker run | sweep | doctor`."""

import argparse
import os
import sys

from fleet_shared.domain.errors import FleetError
from fleet_shared.settings import (
    BadSetting,
    Process,
    Role,
    load_models,
    load_process,
    load_settings,
    process_environment,
)
from fleet_shared.store import Database
from fleet_shared.store.schema import require_current
from fleet_worker.agent.guard import prepare_environment


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status. `run` replaces this process by Celery's worker."""
    parser = argparse.ArgumentParser(prog="python -m fleet_worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="take Turns from the queue and run them")
    commands.add_parser("sweep", help="one pass of the recovery work")
    doctor = commands.add_parser("doctor", help="tell what works, and what to do about the rest")
    doctor.add_argument("--live", action="store_true", help="also call the model and create a sandbox")
    chosen = parser.parse_args(arguments)
    try:
        match chosen.command:
            case "run":
                return _run()
            case "sweep":
                return _sweep()
            case _:
                return _doctor(live=chosen.live)
    except (BadSetting, FleetError) as error:
        sys.stderr.write(f"fleet_worker: {error}\n")
        return 2


def _run() -> int:
    process = _checked()
    prepare_environment(process_environment())
    celery = [sys.executable, "-m", "celery", "--app", "fleet_worker.celery_app", "worker"]
    options = {"--pool": "threads", "--concurrency": str(process.worker_concurrency), "--queues": "turns"}
    flags = ["--without-gossip", "--without-mingle", "--events", "--loglevel", process.log_level]
    sys.stdout.flush()
    os.execv(sys.executable, [*celery, *(part for pair in options.items() for part in pair), *flags])


def _checked() -> Process:
    """The settings of this process when everything it needs to start is right. Raises BadSetting or FleetError."""
    environment = process_environment()
    process = load_process(environment, Role.WORKER)
    load_models(environment)
    for variable in load_settings(environment).unknown:
        sys.stderr.write(f"fleet_worker: warning: {variable} is not known to this release\n")
    database = Database(process.database_url)
    require_current(database)
    database.close()
    return process


def _sweep() -> int:
    environment = process_environment()
    _checked()
    prepare_environment(environment)
    from fleet_worker.station import build_station  # noqa: PLC0415  # after what DSPy reads at import

    station = build_station(environment)
    try:
        report = station.sweep.run()
        station.recovery.rest()
    finally:
        station.stop()
    sys.stdout.write(f"{report}\n")
    return 0


def _doctor(*, live: bool) -> int:
    from fleet_worker.doctor import examine  # noqa: PLC0415  # each command pays for its own imports alone

    healthy: bool = examine(process_environment(), live=live)
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
