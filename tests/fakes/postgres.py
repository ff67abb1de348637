"""A private PostgreSQL cluster for tests, on a unix socket, run by an unprivileged user; a fresh database per test."""

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

_numbers = itertools.count(1)


class PostgresServer:
    """One cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = _binaries()
        self._data = folder / "data"

    def start(self) -> None:
        """Make the cluster when it is not there yet, and start it."""
        if not self._data.exists():
            made = ("-U", "fleet", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
            self._run("initdb", "-D", str(self._data), *made)
        options = f"-k {self._folder} -c listen_addresses= -c fsync=off -c max_connections=60"
        self._run("pg_ctl", "-D", str(self._data), "-o", options, "-l", str(self._folder / "log"), "-w", "start")

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it: fast, or immediate as after a crash. Stopping what is stopped is fine."""
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop it and start it again; every connection breaks, every commit stays."""
        self.stop(mode)
        self.start()

    def database(self) -> str:
        """The SQLAlchemy URL of a fresh database."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        self._run("createdb", "-h", str(self._folder), "-U", "fleet", name)
        return f"postgresql+psycopg://fleet@/{name}?host={self._folder}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", _user(), "--", *command]
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        if done.returncode:
            log = self._folder / "log"
            told = log.read_text(encoding="utf-8", errors="replace")[-3000:] if log.exists() else ""
            raise RuntimeError(f"{program}: {done.stderr.decode('utf-8', 'replace')}\n{told}")


@contextlib.contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running cluster for the length of a block. Its folder has a short path, as unix sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-pg-", dir=_short_folder()))
    if os.geteuid() == 0:
        shutil.chown(folder, _user())
    server = PostgresServer(folder)
    try:
        server.start()
        yield server
    finally:
        try:
            server.stop("immediate")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str | None:
    """Where a socket's path stays below the limit of 107 bytes; None where tempfile's own choice is short enough."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None


def _binaries() -> Path:
    for folder in [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), *map(Path, _path_folders())]:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise RuntimeError("the tests need PostgreSQL: apt install postgresql")


def _path_folders() -> list[str]:
    found = shutil.which("initdb")
    return [str(Path(found).resolve().parent)] if found else []


def _user() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"
