"""The programs that run inside the sandbox: a supervisor that outlives Runs, and the interpreter process it forks.

Standard library alone, Python 3.9 or later, no import from Fleet: these files are uploaded as they are.
"""

import hashlib
from pathlib import Path
from typing import Final

#: Version of the line protocol between host and supervisor.
PROTOCOL: Final = 1
FILES: Final = ("supervisor.py", "lanes.py", "cells.py", "outputs.py", "trees.py", "lines.py")


def sources() -> dict[str, bytes]:
    """The driver's files by name."""
    folder = Path(__file__).parent
    return {name: (folder / name).read_bytes() for name in FILES}


def digest() -> str:
    """Names this version of the driver; part of the directory it is uploaded to."""
    total = hashlib.sha256()
    for name, data in sorted(sources().items()):
        total.update(name.encode() + b"\0" + data)
    return total.hexdigest()[:16]
