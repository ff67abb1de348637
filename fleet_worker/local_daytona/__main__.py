"""`python -m fleet_worker.local_daytona`: prepares the data folder, prints one ready line as JSON, serves until
told to stop."""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fleet_shared.logs import start_logging
from fleet_worker.local_daytona.jail.jail import NoIsolation, remove_tree, survey
from fleet_worker.local_daytona.options import Options, parse
from fleet_worker.local_daytona.server import HOST, running

PARENT_S: Final = 1.0


def main(argv: list[str] | None = None) -> int:
    """Run the server; 0 when it was told to stop, 1 when it cannot start."""
    options = parse(argv)
    os.umask(0o022)  # sandboxes run as other users and must be able to read what is made for them
    start_logging(form=options.log_format, level="INFO")
    try:
        with _data_folder(options.data_dir):
            return asyncio.run(_serve(options))
    except (NoIsolation, OSError) as error:
        sys.stderr.write(f"local_daytona: {error}\n")
        return 1


@contextlib.contextmanager
def _data_folder(folder: Path) -> Iterator[None]:
    """Take a data folder for this process alone and clear what a former life left in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"another server uses {folder}") from error
        for name in ("agent", "etc", "probe", "sandboxes"):
            remove_tree(folder / name)
        yield


async def _serve(options: Options) -> int:
    ground = None
    if options.toolbox_url is None:
        ground = survey(options.data_dir, options.limits, allow_unisolated=options.allow_unisolated)
    key = _api_key(options)
    stopping = asyncio.Event()
    # Clients offer WebSocket subprotocols as plain headers; none is ever chosen, which aiohttp warns of each time.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with running(options, ground, key) as server:
        ready = {
            "ready": True,
            "port": server.port,
            "api_url": f"http://{HOST}:{server.port}/api",
            "api_key": key,
            "isolation": "foreign" if ground is None else ground.isolation,
        }
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()
        parent = os.getppid()
        while not stopping.is_set():
            # Looked at, not signalled: a signal would come at the end of the thread that started this process.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), PARENT_S if options.exit_with_parent else None)
            if options.exit_with_parent and os.getppid() != parent:
                break
    return 0


def _api_key(options: Options) -> str:
    if options.api_key_file is not None:
        key = options.api_key_file.read_text().strip()
        if not key:
            raise OSError(f"{options.api_key_file} holds no key")
        return key
    # The starter's key. This program stands alone: it reads no other setting.
    given = os.environ.get("DAYTONA_API_KEY", "")  # noqa: TID251
    return given or secrets.token_urlsafe(32)


if __name__ == "__main__":
    sys.exit(main())
