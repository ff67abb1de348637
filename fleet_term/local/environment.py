"""The environments of the parts: every address is ours, whatever the user's shell says; models and settings pass on."""

import hashlib
import re
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEMO_MODEL: Final = "demo/rules"

#: Addresses and switches of other deployments that a shell may hold; none of them reaches a part.
_FOREIGN: Final = re.compile(
    r"(REDIS|DATABASE|DAYTONA|CELERY|FLASK|GUNICORN|HEROKU|LISTEN)(_|$)"
    r"|(PORT|DYNO|NOTIFY_SOCKET|FLEET_URL|FLEET_TOKEN|FLEET_SNAPSHOT|FLEET_SECRET_KEY)$"
    r"|FLEET_TERM_|FLEET_WEB_LOCAL_ONLY$"
)
#: What the sandbox server and Redis may see: no keys, no settings.
_PLAIN: Final = re.compile(
    r"(PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|TMPDIR|VIRTUAL_ENV|LD_LIBRARY_PATH|XDG_RUNTIME_DIR)$|LC_|PYTHON"
)
_SETTING: Final = re.compile(r"FLEET_|.*_(API_KEY|API_BASE|BASE_URL)$")
_NO_PROXY: Final = ("127.0.0.1", "localhost")


def server_environment(environment: Mapping[str, str], addresses: Mapping[str, str]) -> dict[str, str]:
    """The environment of web, worker and their commands: the user's, without foreign addresses, with ours."""
    passed = {name: value for name, value in environment.items() if not _FOREIGN.match(name)}
    passed.setdefault("FLEET_LOG_FORMAT", "text")
    if not passed.get("FLEET_MODEL", "").strip():
        passed["FLEET_MODEL"] = DEMO_MODEL
    for name in ("NO_PROXY", "no_proxy"):
        given = [part.strip() for part in passed.get(name, "").split(",") if part.strip()]
        passed[name] = ",".join([*given, *(host for host in _NO_PROXY if host not in given)])
    return _importable({**passed, "FLEET_WEB_LOCAL_ONLY": "true", **addresses})


def plain_environment(environment: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of the parts that run no code of ours for a model: neither keys nor settings."""
    passed = {name: value for name, value in environment.items() if _PLAIN.match(name)}
    return _importable({**passed, **extra})


def model_of(environment: Mapping[str, str]) -> str:
    """The root model that this environment asks for."""
    return environment.get("FLEET_MODEL", "").strip() or DEMO_MODEL


def is_demo_only(environment: Mapping[str, str]) -> bool:
    """Whether only demo models can be used, so that no code is written by a model that could be talked into harm."""
    models = (model_of(environment), environment.get("FLEET_SUB_MODEL", "").strip() or DEMO_MODEL)
    return not environment.get("FLEET_MODELS_FILE", "").strip() and all(name.startswith("demo/") for name in models)


def settings_digests(environment: Mapping[str, str]) -> dict[str, str]:
    """The names of the settings and keys in an environment, with digests to tell whether two shells differ."""
    return {
        name: hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        for name, value in environment.items()
        if _SETTING.match(name) and not _FOREIGN.match(name) and value.strip()
    }


def _importable(environment: dict[str, str]) -> dict[str, str]:
    """Children find the package this process runs from, also in a source folder, and nothing in their own folder."""
    root = str(Path(__file__).resolve().parents[2])
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    paths = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
    if root not in installed and root in sys.path and root not in paths:
        paths.insert(0, root)
    if paths:
        environment["PYTHONPATH"] = ":".join(paths)
    environment["PYTHONSAFEPATH"] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    return environment
