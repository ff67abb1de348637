"""A real Redis server for tests: private, with a password, killed and started again on demand."""

import contextlib
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


class RedisServer:
    """One server on a loopback port."""

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            raise RuntimeError("the tests need redis-server: apt install redis-server")
        self._binary = binary
        self._folder = folder
        self._password = secrets.token_hex(8)
        self.port = free_port()
        self.url = f"redis://:{self._password}@127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--requirepass", self._password, "--dir", str(self._folder), "--daemonize", "no"]
        with (self._folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.02)
        raise RuntimeError("redis-server did not start")

    def stop(self) -> None:
        """End it, with everything it held."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """Let it hang: connections are open, nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A running server for the length of a block."""
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A loopback port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
