"""The terminal itself: modes, colours and frames. The only importer of blessed.

The timeline goes to the terminal's own scrollback and is never touched again; below it a small live area is painted
over in place. A frame is one write; lines of the live area never reach the last column.
"""

import atexit
import contextlib
import io
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import blessed

from fleet_term.view import Style

#: Seconds after a resize in which nothing is painted: tmux tells of later ones that late (measured).
RESIZE_QUIET_S: Final = 0.3
PASTE_ON: Final = "\x1b[?2004h"
PASTE_OFF: Final = "\x1b[?2004l"
SYNC_ON: Final = "\x1b[?2026h"
SYNC_OFF: Final = "\x1b[?2026l"
CLEAR_BELOW: Final = "\x1b[J"


def style_for(environment: Mapping[str, str], *, color: str, is_tty: bool) -> Style:
    """Colours of the terminal's own palette, or none: `--color`, `NO_COLOR` and `TERM=dumb` are obeyed."""
    wanted = color == "always" or (
        color == "auto" and is_tty and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    )
    if not wanted:
        return Style()
    return Style(dim=_sgr("2"), bold=_sgr("1"), code=_sgr("36"), tool=_sgr("33"), good=_sgr("32"), bad=_sgr("31"))


def _sgr(code: str) -> Any:
    return lambda text: f"\x1b[{code}m{text}\x1b[0m" if text else text


class Screen:
    """A terminal in use. `open` takes it, everything that ends the process gives it back."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.pop("NO_COLOR", None)  # noqa: TID251  # it would switch off cursor control too; style_for obeys it
        # Not given the terminal itself, which it would question at once: some show that as text (measured).
        self._terminal = blessed.Terminal(stream=io.StringIO(), force_styling=True)
        self._fd = sys.stdin.fileno()
        self._saved: list[Any] | None = None
        self._live = 0
        self._cursor_row = 0
        self._resized_at = 0.0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    @property
    def width(self) -> int:
        """Columns."""
        return max(20, self._size().columns)

    @property
    def height(self) -> int:
        """Rows."""
        return max(4, self._size().lines)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Take the terminal: raw keys, but output as usual."""
        self._saved = termios.tcgetattr(self._fd)
        atexit.register(self.restore)
        previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
        for number in previous:
            signal.signal(number, self._killed)
        signal.signal(signal.SIGWINCH, self._resized)
        self._enter()
        try:
            yield
        finally:
            self.restore()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def restore(self) -> None:
        """Give the terminal back as it was; may be called often."""
        if self._saved is not None:
            saved, self._saved = self._saved, None
            self._write(SYNC_OFF + PASTE_OFF + "\x1b[?25h\x1b[0m")
            termios.tcsetattr(self._fd, termios.TCSADRAIN, saved)

    def suspend(self) -> None:
        """Stop the process as Ctrl+Z means it, and come back."""
        self.paint([], 0, 0)
        saved = self._saved
        self.restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._saved = saved
        self._enter()

    def wake(self) -> None:
        """Have `read` return, from any thread."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._wake_write, b"x")

    def read(self, timeout_s: float) -> bytes | None:
        """What was typed; empty when nothing was, None at the end of the input."""
        with contextlib.suppress(InterruptedError):
            ready, _, _ = select.select([self._fd, self._wake_read], [], [], timeout_s)
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            if self._fd in ready:
                return os.read(self._fd, 65536) or None
        return b""

    @property
    def may_paint(self) -> bool:
        """Whether the terminal has been still long enough after a resize."""
        return time.monotonic() - self._resized_at >= RESIZE_QUIET_S

    def paint(self, live: Sequence[str], row: int, column: int, commits: Sequence[str] = ()) -> None:
        """Print `commits` for good, then the live area with the cursor at (row, column) of it."""
        width = self.width
        live = [self._fit(line, width) for line in live][-max(1, self.height - 1) :]
        parts = [SYNC_ON, "\x1b[?25l", "\r"]
        if self._cursor_row:
            parts.append(f"\x1b[{self._cursor_row}A")
        # Cleared before, not after: behind a line that fills the row it would take the last character.
        parts.append(CLEAR_BELOW)
        parts += [f"{line}\r\n" for line in commits]
        parts.append("\r\n".join(live))
        row = min(row, max(0, len(live) - 1))
        up = len(live) - 1 - row
        if up > 0:
            parts.append(f"\x1b[{up}A")
        parts.append("\r" + (f"\x1b[{column}C" if column else ""))
        parts += ["\x1b[?25h", SYNC_OFF]
        self._cursor_row = row if live else 0
        self._write("".join(parts))

    def _fit(self, line: str, width: int) -> str:
        return self._terminal.truncate(line, width - 1) if self._terminal.length(line) >= width else line

    def _size(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return os.terminal_size((80, 24))

    def _enter(self) -> None:
        tty.setraw(self._fd)
        attributes = termios.tcgetattr(self._fd)
        attributes[1] |= termios.OPOST
        termios.tcsetattr(self._fd, termios.TCSADRAIN, attributes)
        self._cursor_row = 0
        self._write(PASTE_ON)

    def _resized(self, *_: Any) -> None:
        self._resized_at = time.monotonic()
        self.wake()

    def _killed(self, number: int, _: Any) -> None:
        self.restore()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            try:
                data = data[os.write(sys.stdout.fileno(), data) :]
            except BlockingIOError:
                select.select([], [sys.stdout.fileno()], [])
