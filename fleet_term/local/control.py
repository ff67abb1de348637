"""`fleet-term local status | logs | stop`: looks at a running supervisor and ends it, without being its terminal."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fleet_term import config
from fleet_term.local.attach import open_line
from fleet_term.local.errors import LocalError
from fleet_term.local.places import DataDir, find_data_dir
from fleet_term.local.processes import tail
from fleet_term.local.wire import Ask, Draining, Report, Stop, WireError

#: What `status` answers: state (starting, running, draining), addresses, model, terminals (pids), parts, and phases
#: (milliseconds of each step of the start).
LocalStatus = Report

LOGS: Final = ("supervisor", "redis", "daytona", "database", "web", "worker")
_LOOK_S: Final = 0.2


def status(data_dir: Path | None = None) -> LocalStatus | None:
    """What runs for this data directory, None when nothing does. Raises LocalError when it does not answer."""
    line = open_line(_data(data_dir))
    if line is None:
        return None
    try:
        line.send(Ask())
        answer = line.receive(5.0)
    except (OSError, WireError) as error:
        raise LocalError("Local mode does not answer.", hint="End it with: fleet-term local stop") from error
    finally:
        line.close()
    return answer if isinstance(answer, Report) else None


def logs(
    name: str | None = None, *, data_dir: Path | None = None, lines: int = 100, follow: bool = False
) -> Iterator[str]:
    """The last lines of a log (supervisor, redis, daytona, database, web, worker), of all of them when `name` is None.

    Of all logs each line is led by `name | `. With `follow` it goes on as lines are written, until the caller stops.
    Raises LocalError for an unknown name or when there are no logs.
    """
    data = _data(data_dir)
    if name is not None and name not in LOGS:
        raise LocalError(f"There is no log named {name}.", hint=f"The logs are: {', '.join(LOGS)}.")
    chosen = [part for part in ([name] if name else LOGS) if data.log(part).exists()]
    if not chosen:
        raise LocalError("There are no logs yet.", hint="Start local mode with: fleet-term --local")
    lead = {part: f"{part} | " if name is None else "" for part in chosen}
    places = {part: data.log(part).stat().st_size for part in chosen}
    for part in chosen:
        for line in tail(data.log(part), lines):
            yield lead[part] + line
    while follow:
        time.sleep(_LOOK_S)
        for part in chosen:
            path = data.log(part)
            size = path.stat().st_size if path.exists() else 0
            if size <= places[part]:
                places[part] = size
                continue
            with path.open("rb") as source:
                source.seek(places[part])
                text = source.read()
            end = text.rfind(b"\n") + 1
            places[part] += end
            for line in text[:end].decode("utf-8", "replace").splitlines():
                yield lead[part] + line


def stop(data_dir: Path | None = None, *, timeout_s: float = 60.0) -> int | None:
    """Drain and end local mode, whoever is connected; returns when nothing of it is left.

    The answer is the number of Turns that were open (they go on at the next start), None when nothing was running.
    Raises LocalError when it did not end in time.
    """
    data = _data(data_dir)
    line = open_line(data)
    if line is None:
        return None
    open_turns = 0
    try:
        line.send(Stop())
        answer = line.receive(10.0)
        open_turns = (answer.open_turns or 0) if isinstance(answer, Draining) else 0
    except (OSError, WireError):
        pass  # it is ending already
    finally:
        line.close()
    deadline = time.monotonic() + timeout_s
    while data.is_locked():
        if time.monotonic() > deadline:
            raise LocalError(f"Local mode did not end within {timeout_s:g} s.", hint=f"Its logs are in {data.logs}.")
        time.sleep(0.05)
    return open_turns


def _data(data_dir: Path | None) -> DataDir:
    return find_data_dir(data_dir, config.environ())
