"""What is installed is what is in the checkout, on the Python versions that are promised."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("fleet_shared", "fleet_web", "fleet_worker", "fleet_term")
VERSIONS = ("3.11", "3.12", "3.13")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    assert int(version("setuptools").split(".")[0]) >= 77, "install the test extra again: pip install -e '.[test]'"
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    files = (path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    wanted = {
        path.as_posix()
        for path in files
        if not any(part == "__pycache__" or part.startswith(".") for part in path.parts) and path.name != "ruff.toml"
    }
    assert {f"{package}/py.typed" for package in PACKAGES} <= wanted
    assert any("/migrations/versions/" in name for name in wanted)
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == wanted


def test_the_wheel_installs_the_terminal(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "fleet-term = fleet_term.__main__:main" in wheel.read(name).decode()


def test_the_promised_python_versions_are_the_same_everywhere(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    prefix = "Programming Language :: Python :: "
    assert tuple(text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)) == VERSIONS
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["mypy"]["python_version"] == VERSIONS[0]
    assert pyproject["tool"]["ruff"]["target-version"] == "py" + VERSIONS[0].replace(".", "")
    assert (ROOT / ".python-version").read_text().strip() in VERSIONS
    gate = (ROOT / ".ci/run").read_text()
    assert set(re.findall(r"\bpython(3\.\d+)\b", gate)) == set(VERSIONS)


def test_the_readme_and_the_gate_install_the_same_system_packages() -> None:
    gate = (ROOT / ".ci/run").read_text()
    wanted = {name for found in re.findall(r"need\+=\(([^)]+)\)", gate) for name in found.split()} - {"python3"}
    [line] = re.findall(r"apt-get install -y ([a-z0-9 -]+) && python3 -m venv", (ROOT / "README.md").read_text())
    assert set(line.split()) == wanted


def test_the_platform_installs_the_server(pyproject: dict[str, Any]) -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [".[server]"]
    assert "server" in pyproject["project"]["optional-dependencies"]
