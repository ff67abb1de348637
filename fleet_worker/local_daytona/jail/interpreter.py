"""Finds the Python that sandboxes run: the one this server runs on, shown to them at a fixed place, else the
system's."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON_AT: Final = "/opt/python"
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROBE_S: Final = 15


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How a sandbox runs Python: what it must see (source, place), the program, the search path, the expected
    version."""

    seen: tuple[tuple[Path, str], ...]
    program: str
    path: str
    version: str | None

    def proof(self) -> str:
        """Code that ends well when this interpreter is the expected one and complete enough for us."""
        expected = f"assert sys.version == {self.version!r}; " if self.version else ""
        return f"import sys; {expected}assert sys.version_info >= (3, 9); import ctypes, json, select, socket, zlib"


def candidates() -> list[Interpreter]:
    """Interpreters to try, best first."""
    prefix = Path(sys.base_prefix).resolve()
    program = Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))
    found = []
    if not prefix.is_relative_to("/usr") and program.is_relative_to(prefix):
        inside = f"{PYTHON_AT}/{program.relative_to(prefix)}"
        path = f"{PYTHON_AT}/bin:{SYSTEM_PATH}"
        at_fixed_place = (prefix, PYTHON_AT)
        found.append(Interpreter((at_fixed_place,), inside, path, sys.version))
        # An interpreter that looks for its shared library where it was installed finds it there, too.
        library = prefix / "lib"
        found.append(Interpreter((at_fixed_place, (library, str(library))), inside, path, sys.version))
    if prefix.is_relative_to("/usr"):
        found.append(Interpreter((), str(program), f"{program.parent}:{SYSTEM_PATH}", sys.version))
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")
    if system:
        found.append(Interpreter((), system, SYSTEM_PATH, None))
    return found


def failure(command: list[str]) -> str | None:
    """Run a prepared command: None when it ended well, else the last thing it said."""
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False, env={}, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = ran.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {ran.returncode}"]
    return said[-1] if ran.returncode else None
