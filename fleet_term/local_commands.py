"""`fleet-term local start|status|logs|stop`: the words around what local mode does."""

import sys
from collections.abc import Callable
from pathlib import Path

from fleet_term.errors import Exit
from fleet_term.local import DataDir, LocalConnection, logs, status, stop


def run_local(
    action: str, part: str | None, data_dir: Path | None, *, follow: bool, connect: Callable[[], LocalConnection]
) -> Exit:
    """Do it; the exit status. Raises LocalError."""
    match action:
        case "start":
            connection = connect()
            sys.stdout.write(f"{connection.url}\n")
            sys.stderr.write(f"The token is in {DataDir(connection.data_dir).token}\n")
            connection.close()
        case "status":
            return _status(data_dir)
        case "logs":
            for line in logs(part, data_dir=data_dir, follow=follow):
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
        case _:
            open_turns = stop(data_dir)
            told = "nothing was running" if open_turns is None else "stopped"
            if open_turns:
                told += f"; {open_turns} questions were running and go on at the next start"
            sys.stdout.write(f"{told}\n")
    return Exit.ANSWERED


def _status(data_dir: Path | None) -> Exit:
    found = status(data_dir)
    if found is None:
        sys.stdout.write("local mode does not run\n")
        return Exit.NOT_FOUND
    sys.stdout.write(f"url        {found.url}\ndata       {found.data_dir}\nmodel      {found.model}\n")
    sys.stdout.write(f"token      in {DataDir(Path(found.data_dir)).token}\n")
    sys.stdout.write(f"isolation  {found.isolation}\nterminals  {found.terminals}\nuptime     {found.uptime_s:.0f} s\n")
    for part in found.parts:
        port = f" port {part.port}" if part.port else ""
        sys.stdout.write(f"  {part.name:10} pid {part.pid}{port} restarts {part.restarts}\n")
    return Exit.ANSWERED
