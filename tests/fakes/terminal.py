"""A terminal for tests: a program in a real pty, its screen as pyte sees it, keys sent to it; and a tmux session."""

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyte

WAIT_S = 30.0


class Window:
    """A program in a pty of some size."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, columns: int = 100, rows: int = 40
    ) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            try:
                _set_size(0, columns, rows)  # before the program asks for it
                os.execvpe(command[0], list(command), {**environment, "TERM": "xterm-256color"})
            finally:
                os._exit(127)  # never run the tests a second time

    def send(self, text: str) -> None:
        """Type."""
        os.write(self._fd, text.encode())

    def text(self) -> str:
        """Everything on the screen and scrolled out of it."""
        history = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*history, *self.screen.display])

    def wait_for(self, wanted: str, *, timeout_s: float = WAIT_S) -> str:
        """The whole text once `wanted` is in it."""
        deadline = time.monotonic() + timeout_s
        while wanted not in self.text():
            if (time.monotonic() > deadline or not self._take(0.1)) and wanted not in self.text():
                raise AssertionError(f"{wanted!r} did not appear:\n{self.text()}")
        return self.text()

    def resize(self, columns: int, rows: int) -> None:
        """Change the size; the program gets SIGWINCH."""
        self.screen.resize(rows, columns)
        _set_size(self._fd, columns, rows)

    def pump(self, seconds: float) -> bool:
        """Take what the program writes in this time; False at its end."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self._take(left):
                return False
        return True

    def wait(self, *, timeout_s: float = WAIT_S) -> int:
        """The program's exit status."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.pump(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pump(0.2)  # its last words
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it has not ended:\n{self.text()}")

    def kill(self) -> None:
        """kill -9."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _take(self, seconds: float) -> bool:
        """Wait at most so long for something the program writes, and take it; False at its end."""
        if select.select([self._fd], [], [], seconds)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.raw += data
            self._stream.feed(data)
        return True


@contextlib.contextmanager
def window(
    command: Sequence[str], environment: Mapping[str, str], *, columns: int = 100, rows: int = 40
) -> Iterator[Window]:
    """A program in a pty for the length of a block."""
    opened = Window(command, environment, columns=columns, rows=rows)
    try:
        yield opened
    finally:
        opened.kill()


class Tmux:
    """A program in a tmux session of its own server."""

    def __init__(
        self, name: str, command: str, environment: Mapping[str, str], *, columns: int = 100, rows: int = 30
    ) -> None:
        program = shutil.which("tmux")
        if program is None:
            raise RuntimeError("the tests need tmux: apt install tmux")
        self._command = [program, "-L", f"fleet-{os.getpid()}-{name}", "-f", "/dev/null"]
        size = ["-x", str(columns), "-y", str(rows)]
        # The program's exit status is shown, and the pane stays for a last look.
        shown = f"{command}; echo EXIT $?; sleep 600"
        start = [*self._command, "new-session", "-d", *size, shown]
        subprocess.run(start, env={**environment, "TERM": "xterm-256color"}, check=True)

    def send(self, *keys: str) -> None:
        """Send keys by tmux's names, or text."""
        subprocess.run([*self._command, "send-keys", *keys], check=True)

    def text(self) -> str:
        """The pane with its scrollback."""
        return subprocess.run(
            [*self._command, "capture-pane", "-p", "-S", "-"], capture_output=True, text=True, check=True
        ).stdout

    def wait_for(self, wanted: str, *, timeout_s: float = WAIT_S) -> str:
        """The text once `wanted` is in it."""
        deadline = time.monotonic() + timeout_s
        while wanted not in (text := self.text()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{wanted!r} did not appear:\n{text}")
            time.sleep(0.05)
        return text

    def pid(self) -> int:
        """The program, which is the first child of the pane's shell."""
        shown = [*self._command, "display-message", "-p", "#{pane_pid}"]
        shell = int(subprocess.run(shown, capture_output=True, text=True, check=True).stdout)
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def resize(self, columns: int, rows: int) -> None:
        """Change the size."""
        subprocess.run([*self._command, "resize-window", "-x", str(columns), "-y", str(rows)], check=True)

    def close(self) -> None:
        """End the server and the program."""
        subprocess.run([*self._command, "kill-server"], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def tmux(
    name: str, command: str, environment: Mapping[str, str], *, columns: int = 100, rows: int = 30
) -> Iterator[Tmux]:
    """A tmux session for the length of a block."""
    session = Tmux(name, command, environment, columns=columns, rows=rows)
    try:
        yield session
    finally:
        session.close()


def _set_size(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
