"""Local mode: everything of Fleet on this machine, kept running by one detached supervisor per data directory.

This is the door for the terminal. It connects, asks and stops; what the supervisor does is told in `supervisor.py`.
"""

from fleet_term.local.attach import LocalConnection, OnProgress, connect
from fleet_term.local.control import LocalStatus, logs, status, stop
from fleet_term.local.errors import LocalError, LocalStartError
from fleet_term.local.places import DataDir
from fleet_term.local.wire import Part, Progress

__all__ = [
    "DataDir",
    "LocalConnection",
    "LocalError",
    "LocalStartError",
    "LocalStatus",
    "OnProgress",
    "Part",
    "Progress",
    "connect",
    "logs",
    "status",
    "stop",
]
