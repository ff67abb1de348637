"""Runs every check: format, lint, types, layers, tests. Arguments go to pytest."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = (
    ("format", [sys.executable, "-m", "ruff", "format", "--check", "."]),
    ("lint", [sys.executable, "-m", "ruff", "check", "."]),
    ("types", [sys.executable, "-m", "mypy"]),
    ("layers", [str(Path(sys.executable).parent / "lint-imports")]),
)


def main() -> int:
    """The exit status: that of the first check that fails."""
    for name, command in CHECKS:
        sys.stdout.write(f"== {name}\n")
        sys.stdout.flush()
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status:
            return status
    sys.stdout.write("== tests\n")
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:]], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
