"""Files and functions stay short enough to be read in one go. The lists of exceptions may only shrink."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fleet_shared", "fleet_web", "fleet_worker", "fleet_term", "tests")
LINES_OF_A_FILE = 400
LINES_OF_A_FUNCTION = 60

#: What was longer when the rule came, and how long it may be at most. Lower a number when you can; add none.
LONG_FILES = {
    "fleet_term/app.py": 440,
    "fleet_term/local/supervisor.py": 480,
    "fleet_worker/agent/demo/texts.py": 520,
    "fleet_worker/pipeline.py": 420,
    "fleet_worker/sandbox/daytona.py": 420,
    "fleet_worker/sandbox/driver/cells.py": 460,
    "fleet_worker/staging.py": 440,
    "tests/conformance/test_local_daytona.py": 420,
}
LONG_FUNCTIONS = {
    # One table after the other.
    "fleet_shared/store/migrations/versions/0001_first_schema.py:_create_tables": 307,
    # Routes are functions inside the function that registers them.
    "fleet_web/routes/files.py:file_routes": 80,
    "fleet_web/routes/sessions.py:session_routes": 140,
    "fleet_worker/agent/demo/calculations.py:_sequence": 80,
    "fleet_worker/agent/demo/calculations.py:_special": 80,
}


def lengths_of_files() -> dict[str, int]:
    return {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in sources().items()}


def lengths_of_functions() -> dict[str, int]:
    found: dict[str, int] = {}
    for name, path in sources().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                key = f"{name}:{node.name}"
                found[key] = max(found.get(key, 0), (node.end_lineno or node.lineno) - node.lineno + 1)
    return found


def sources() -> dict[str, Path]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path for path in paths}


@pytest.mark.parametrize(
    ("lengths", "limit", "exceptions"),
    [
        pytest.param(lengths_of_files(), LINES_OF_A_FILE, LONG_FILES, id="files"),
        pytest.param(lengths_of_functions(), LINES_OF_A_FUNCTION, LONG_FUNCTIONS, id="functions"),
    ],
)
def test_nothing_is_too_long_and_no_exception_is_kept_in_vain(
    lengths: dict[str, int], limit: int, exceptions: dict[str, int]
) -> None:
    too_long = {name: lines for name, lines in lengths.items() if lines > exceptions.get(name, limit)}
    in_vain = {name for name in exceptions if lengths.get(name, 0) <= limit}
    assert not too_long, f"split these: {too_long}"
    assert not in_vain, f"these are short now, take them from the list of exceptions: {in_vain}"
