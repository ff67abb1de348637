"""`fleet-term local status | logs | stop`: looks at a running supervisor and ends it, without becoming its terminal."""

from collections.abc import Iterator
from pathlib import Path

from fleet_term.local.wire import Report

#: What `status` answers: state (starting, running, draining), pid, url, model, isolation, data_dir, runtime_dir, version,
#: uptime_s, keep, terminals (pids), parts (name, pid, port, restarts) and phases (milliseconds of each step of the start).
LocalStatus = Report


def status(data_dir: Path | None = None) -> LocalStatus | None:
    """What runs for this data directory, None when nothing does. Raises LocalError when it does not answer."""
    raise NotImplementedError


def logs(name: str | None = None, *, data_dir: Path | None = None, lines: int = 100, follow: bool = False) -> Iterator[str]:
    """The last lines of a log (supervisor, redis, daytona, database, web, worker), of all of them when `name` is None.

    Of all logs each line is led by `name | `. With `follow` it goes on as lines are written, until the caller stops.
    Raises LocalError for an unknown name or when there are no logs.
    """
    raise NotImplementedError


def stop(data_dir: Path | None = None, *, timeout_s: float = 60.0) -> int | None:
    """Drain and end local mode, whoever is connected; returns when nothing of it is left.

    The answer is the number of Turns that were open (they go on at the next start), None when nothing was running.
    Raises LocalError when it did not end in time.
    """
    raise NotImplementedError
