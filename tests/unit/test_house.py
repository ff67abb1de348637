"""Rules of the whole repository that no single module can keep: what lies where, what is promised, what is loaded."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fleet_shared", "fleet_web", "fleet_worker", "fleet_term")
TOP_LEVEL = {
    *PACKAGES,
    "tests",
    "setup.cfg",
    "pyproject.toml",
    "Procfile",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    # What Heroku's buildpack reads.
    "requirements.txt",
}
#: Lines of a module. Longer ones own more than one subject.
LONGEST = 520
VAGUE = re.compile(r"class \w*(?:Manager|Handler|Helper|Service|Util|Common|Base|Misc)\b")


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).exists()]


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_the_top_level_holds_only_what_belongs_there() -> None:
    found = {path.parts[0] for path in tracked() if not path.parts[0].startswith(".")}
    assert found <= TOP_LEVEL


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_says_what_it_owns_and_has_no_vague_class(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert not text.strip() or text.startswith('"""') or path.name == "__init__.py"
    assert not VAGUE.search(text)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("fleet_web.app", ("dspy", "daytona", "blessed", "litellm")),
        ("fleet_term.cli", ("flask", "sqlalchemy", "celery", "redis", "dspy", "daytona", "marshmallow", "blessed")),
        ("fleet_term.app", ("flask", "sqlalchemy", "celery", "redis", "dspy", "daytona")),
        ("fleet_worker.pipeline", ("flask", "blessed", "litellm")),
    ],
)
def test_a_process_loads_only_its_own_libraries(module: str, absent: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print(*(name for name in {absent!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_procfile_has_the_four_processes_and_runs_our_own_commands() -> None:
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
    assert list(lines) == ["release", "web", "worker", "flower"]
    assert lines["release"] == "python -m fleet_web db upgrade"
    assert lines["web"] == "python -m fleet_web serve" and lines["worker"] == "python -m fleet_worker run"


def test_the_gate_runs_the_test_command_of_the_readme() -> None:
    readme, gate = (ROOT / "README.md").read_text(), (ROOT / ".ci/run").read_text()
    assert ".venv/bin/python -m tests\n" in readme and 'venv/bin/python" -m tests\n' in gate


def test_dspy_is_pinned_to_the_version_the_guard_wants() -> None:
    from fleet_worker.agent.guard import DSPY_VERSION

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"dspy=={DSPY_VERSION}" in project["optional-dependencies"]["server"]


def test_every_environment_variable_of_the_readme_is_known() -> None:
    from fleet_shared.settings import load_settings

    named = set(re.findall(r"\b(FLEET_[A-Z][A-Z_]*[A-Z])\b", (ROOT / "README.md").read_text()))
    assert "FLEET_RUN_TIMEOUT_S" in named
    assert load_settings(dict.fromkeys(named, "600")).unknown == ()
