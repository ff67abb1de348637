"""What the command line says: where to listen and store, how to isolate, and what one sandbox may use."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What all processes of one sandbox may use together."""

    memory_bytes: int = GIB
    processes: int = 128
    disk_bytes: int = 3 * GIB
    cpus: int | None = None
    niceness: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One server's start parameters. `minute_s` shortens the minutes of the stop, delete and life intervals in
    tests."""

    data_dir: Path
    port: int = 0
    api_key_file: Path | None = None
    toolbox_url: str | None = None
    allow_unisolated: bool = False
    minute_s: float = 60.0
    exit_with_parent: bool = False
    log_format: Literal["json", "text"] = "json"
    limits: Limits = Limits()


def parse(argv: list[str] | None = None) -> Options:
    """Read the command line; exits with status 2 on a bad one."""
    parser = argparse.ArgumentParser(prog="python -m fleet_worker.local_daytona", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1; 0 picks a free one")
    parser.add_argument(
        "--data-dir", type=Path, required=True, help="folder for the sandboxes' files; one server at a time"
    )
    parser.add_argument(
        "--api-key-file", type=Path, help="file with the API key; else DAYTONA_API_KEY, else a random one"
    )
    parser.add_argument("--toolbox", metavar="URL", help="serve the toolbox of every sandbox from this address")
    parser.add_argument(
        "--allow-unisolated", action="store_true", help="run sandboxes without bubblewrap when there is none"
    )
    parser.add_argument("--minute-s", type=float, default=60.0, help="length of a minute of the intervals, in seconds")
    parser.add_argument("--memory-mib", type=int, default=1024, help="memory of one sandbox")
    parser.add_argument("--processes", type=int, default=128, help="processes and threads of one sandbox")
    parser.add_argument("--disk-mib", type=int, default=3072, help="disk of one sandbox")
    parser.add_argument("--cpus", type=int, help="processors one sandbox may run on (all)")
    parser.add_argument("--niceness", type=int, default=5, help="scheduling niceness of sandboxes")
    parser.add_argument("--exit-with-parent", action="store_true", help="stop when the process that started it is gone")
    parser.add_argument("--log-format", choices=("json", "text"), default="json", help="form of the lines on stderr")
    given = parser.parse_args(argv)
    return Options(
        data_dir=given.data_dir.resolve(),
        port=given.port,
        api_key_file=given.api_key_file,
        toolbox_url=given.toolbox.rstrip("/") if given.toolbox else None,
        allow_unisolated=given.allow_unisolated,
        minute_s=given.minute_s,
        exit_with_parent=given.exit_with_parent,
        log_format=given.log_format,
        limits=Limits(
            memory_bytes=given.memory_mib * 1024**2,
            processes=given.processes,
            disk_bytes=given.disk_mib * 1024**2,
            cpus=given.cpus,
            niceness=given.niceness,
        ),
    )
