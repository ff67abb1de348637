"""The import contracts of setup.cfg are kept, and each of them would notice the import it is there against."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fleet_term", "fleet_web", "fleet_worker", "fleet_shared")
#: A contract's key in setup.cfg → an import it forbids, and the module that must not have it.
FORBIDDEN = {
    "processes": ("fleet_shared/domain/errors.py", "fleet_web.app"),
    "shared": ("fleet_shared/domain/ids.py", "fleet_shared.store"),
    "worker": ("fleet_worker/scope.py", "fleet_worker.agent"),
    "web": ("fleet_web/auth.py", "fleet_web.commands"),
    "term": ("fleet_term/state.py", "fleet_term.cli"),
    "pure-domain": ("fleet_shared/domain/turn.py", "sqlalchemy"),
    "term-speaks-http": ("fleet_term/view.py", "redis"),
    "small-web": ("fleet_web/queries.py", "dspy"),
    "door-daytona": ("fleet_worker/agent/tools.py", "daytona"),
    "door-dspy": ("fleet_worker/pipeline.py", "dspy"),
    "door-sql": ("fleet_web/queries.py", "sqlalchemy"),
    "door-redis": ("fleet_web/stream.py", "redis"),
    "door-celery": ("fleet_web/dispatch.py", "celery"),
    "door-marshmallow": ("fleet_web/commands.py", "marshmallow"),
    "door-flask": ("fleet_worker/doctor.py", "flask"),
    "door-blessed": ("fleet_term/app.py", "blessed"),
    "door-requests": ("fleet_term/ask.py", "requests"),
    "named-only": ("fleet_worker/doctor.py", "litellm"),
    "local-daytona": ("fleet_worker/doctor.py", "fleet_worker.local_daytona"),
    "local-daytona-alone": ("fleet_worker/local_daytona/faults.py", "fleet_worker.scope"),
    "driver-alone": ("fleet_worker/sandbox/driver/lines.py", "fleet_shared.logs"),
    # bridge imports protocol
    "acyclic": ("fleet_worker/sandbox/protocol.py", "fleet_worker.sandbox.bridge"),
}


def contracts() -> dict[str, str]:
    """The name of each contract by its key."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    prefix = "importlinter:contract:"
    return {key.removeprefix(prefix): config[key]["name"] for key in config.sections() if key.startswith(prefix)}


def lint(folder: Path) -> tuple[int, str]:
    """The exit status and the text of lint-imports in a checkout."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "setup.cfg"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def planted(folder: Path, changes: Mapping[str, str]) -> Path:
    """A copy of the checkout in which a line is added to some modules."""
    shutil.copy(ROOT / "setup.cfg", folder)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, line in changes.items():
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(line)
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What lint-imports says of each broken contract when every forbidden import is there."""
    lines: dict[str, str] = {}
    for path, imported in FORBIDDEN.values():
        assert (ROOT / path).is_file(), f"{path} has moved: name another module here"
        lines[path] = lines.get(path, "") + f"\nimport {imported}\n"
    status, told = lint(planted(tmp_path_factory.mktemp("planted"), lines))
    assert status == 1, told
    sections = re.split(r"\n([^\n]+)\n-+\n", told.partition("Broken contracts")[2])
    return dict(zip(sections[1::2], sections[2::2], strict=True))


def test_every_contract_is_kept() -> None:
    status, told = lint(ROOT)
    assert status == 0, told


def test_every_contract_has_an_import_it_forbids() -> None:
    assert set(contracts()) == set(FORBIDDEN)


@pytest.mark.parametrize("contract", FORBIDDEN)
def test_a_contract_notices_the_import_it_is_there_against(contract: str, broken: Mapping[str, str]) -> None:
    path, imported = FORBIDDEN[contract]
    module = path.removesuffix(".py").replace("/", ".")
    found = broken[contracts()[contract]]
    # A circle is told by the names of the siblings alone.
    circle = f".{module.rpartition('.')[2]} -> .{imported.rpartition('.')[2]} "
    assert (module in found and imported in found) or circle in found, found


def test_a_new_room_must_be_given_its_place(tmp_path: Path) -> None:
    names = [f"{package}/newcomer.py" for package in PACKAGES]
    status, told = lint(planted(tmp_path, dict.fromkeys(names, '"""New."""\n')))
    assert status == 1
    for package in PACKAGES:
        assert re.search(rf"{package}\W+newcomer|{package}\.newcomer", told), told
