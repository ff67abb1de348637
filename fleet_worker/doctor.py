"""`doctor`: a line for each thing a worker needs, with the cause and what to do when it does not work."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from fleet_shared.domain.errors import FleetError
from fleet_shared.domain.ids import new_id
from fleet_shared.messaging.redis import is_reachable, make_redis
from fleet_shared.settings import BadSetting, Role, load_models, load_process, load_settings
from fleet_shared.store import Database
from fleet_shared.store.deployment import deployment_id
from fleet_shared.store.schema import require_current
from fleet_worker.agent.guard import require_dspy
from fleet_worker.agent.probe import probe_model
from fleet_worker.sandbox.daytona import Daytona, SandboxSpec
from fleet_worker.sandbox.lifecycle import APP
from fleet_worker.station import load_account

Check = Callable[[Mapping[str, str]], str]
#: Seconds for the sandbox of `--live`.
CREATE_S: Final = 90


class Ailing(Exception):
    """Something does not work; the message tells the cause and the remedy."""


def examine(environment: Mapping[str, str], *, live: bool) -> bool:
    """Print a line per check; whether all is well."""
    checks: dict[str, Check] = {
        "settings": _settings,
        "model": _model,
        "dspy": _dspy,
        "database": _database,
        "schema": _schema,
        "redis": _redis,
        "daytona": _daytona,
    }
    if live:
        checks |= {"model endpoint": probe_model, "sandbox": _sandbox}
    healthy = True
    for name, check in checks.items():
        try:
            line = f"ok    {name}: {check(environment)}"
        except (BadSetting, FleetError, Ailing) as error:
            healthy = False
            line = f"FAIL  {name}: {error}"
        sys.stdout.write(line + "\n")
    return healthy


def _settings(environment: Mapping[str, str]) -> str:
    loaded = load_settings(environment)
    if loaded.unknown:
        raise Ailing(f"{', '.join(loaded.unknown)} not known to this release; correct or unset")
    return f"{len(loaded.from_environment)} set in the environment"


def _model(environment: Mapping[str, str]) -> str:
    models = load_models(environment)
    return f"{models.default}, sub-calls to {models.default_sub}"


def _dspy(_: Mapping[str, str]) -> str:
    require_dspy()
    return "3.4.0 with all it is relied on for"


def _database(environment: Mapping[str, str]) -> str:
    database = Database(load_process(environment, Role.WORKER).database_url)
    with database.read() as tx:
        found = "SQLite" if tx.dialect.name == "sqlite" else "PostgreSQL"
    database.close()
    return f"{found} answers"


def _schema(environment: Mapping[str, str]) -> str:
    database = Database(load_process(environment, Role.WORKER).database_url)
    require_current(database)
    return f"current; deployment {database.run(deployment_id)}"


def _redis(environment: Mapping[str, str]) -> str:
    if not is_reachable(make_redis(load_process(environment, Role.WORKER).redis_url, name="doctor")):
        raise Ailing("REDIS_URL does not answer; Turns are accepted and wait until it does. Start or correct it")
    return "answers"


def _daytona(environment: Mapping[str, str]) -> str:
    account = load_account(environment)
    return f"key set, {account.api_url or 'the cloud'}"


def _sandbox(environment: Mapping[str, str]) -> str:
    daytona = Daytona(load_account(environment))
    snapshot = load_process(environment, Role.WORKER).snapshot
    name = f"fleet-doctor-{new_id()[:8]}"
    labels = {"app": APP, "deployment": "doctor"}
    began = time.monotonic()
    try:
        machine = daytona.create(
            SandboxSpec(name, labels, auto_stop_min=5, auto_delete_min=0, snapshot=snapshot), timeout_s=CREATE_S
        )
        machine.upload({"/tmp/fleet-doctor": b"ok"})  # inside the sandbox
        content = machine.download(["/tmp/fleet-doctor"])
        if b"".join(content.values()) != b"ok":
            raise Ailing("a file came back changed; look at the provider's status")
        return f"created, written, read in {time.monotonic() - began:.1f} s, and deleted"
    finally:
        daytona.delete(name)
        daytona.close()
