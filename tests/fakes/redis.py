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

START_S = 20.0


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
        """Start, and wait until it answers with its password."""
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--requirepass", self._password, "--dir", str(self._folder), "--daemonize", "no"]
        path = self._folder / "redis.log"
        with path.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self.answers():
                return
            time.sleep(0.02)
        self.stop()
        raise RuntimeError(f"redis-server did not start:\n{path.read_text(encoding='utf-8', errors='replace')[-3000:]}")

    def answers(self, *, timeout_s: float = 1.0) -> bool:
        """Whether it accepts its password and a PING."""
        asked = f"AUTH {self._password}\r\nPING\r\n".encode()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout_s) as connection:
            connection.sendall(asked)
            with connection.makefile("rb") as lines:
                return [lines.readline(), lines.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
        return False

    def stop(self) -> None:
        """End it as kill -9 does, with everything it held. Stopping what is stopped is fine."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        """Kill it and start it again on the same address, empty."""
        self.stop()
        self.start()

    def repair(self) -> None:
        """Bring it back after a test that froze or stopped it."""
        if self.process is not None:
            self.thaw()
        if not self.answers():
            self.restart()

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
    try:
        server.start()
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A loopback port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
