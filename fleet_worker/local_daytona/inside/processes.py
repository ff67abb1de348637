"""Starts, signals and reaps the processes of a sandbox. Knows nothing about files or messages."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pty
import resource
import shutil
import signal
import struct
import termios
from dataclasses import dataclass

SHELLS = ("zsh", "bash")
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
OOM_SCORE_ADJ = "100"
"""The machine's own out-of-memory killer takes a sandbox before the server that serves it."""


@dataclass(frozen=True)
class Bounds:
    """Resource limits of every process started for the user; None is unlimited."""

    tasks: int | None
    file_bytes: int | None
    data_bytes: int | None


def protect_self() -> None:
    """Become unreadable for other processes of the same user, and the parent of every orphan."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(OOM_SCORE_ADJ)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def shell(environment: dict[str, str]) -> str:
    """The shell a command runs in: the first of zsh, bash, $SHELL, sh."""
    for name in (*SHELLS, environment.get("SHELL", ""), "sh"):
        found = name and shutil.which(name, path=environment.get("PATH"))
        if found:
            return found
    return "/bin/sh"


def start(argv: list[str], environment: dict[str, str], cwd: str, bounds: Bounds, fds: list[int]) -> int:
    """Run a program in a session of its own with the three given descriptors; returns its pid."""
    pid = os.fork()
    if pid == 0:
        _become(argv, environment, cwd, bounds, fds)
    return pid


def start_on_terminal(
    argv: list[str], environment: dict[str, str], cwd: str, bounds: Bounds, size: tuple[int, int]
) -> tuple[int, int]:
    """Run a program on a new terminal of `size` (rows, columns); returns its pid and the controlling side."""
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        pid = os.fork()
        if pid == 0:
            _become(argv, environment, cwd, bounds, [slave, slave, slave], terminal=True)
    finally:
        os.close(slave)
    return pid, master


def _become(
    argv: list[str], environment: dict[str, str], cwd: str, bounds: Bounds, fds: list[int], terminal: bool = False
) -> None:
    try:
        os.setsid()
        if terminal:
            fcntl.ioctl(fds[0], termios.TIOCSCTTY, 0)
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in fds]
        for target, fd in enumerate(copies):
            os.dup2(fd, target)
        os.closerange(3, 4096)
        signal.set_wakeup_fd(-1)
        for name in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT):
            signal.signal(name, signal.SIG_DFL)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_NPROC, bounds.tasks)
        _limit(resource.RLIMIT_FSIZE, bounds.file_bytes)
        _limit(resource.RLIMIT_DATA, bounds.data_bytes)
        os.chdir(cwd)
        program = shutil.which(argv[0], path=environment.get("PATH")) or argv[0]
        os.execve(program, argv, environment)
    except OSError as error:
        os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _limit(which: int, value: int | None) -> None:
    if value is not None:
        _, hard = resource.getrlimit(which)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (bound, bound))


def reap() -> list[tuple[int, int]]:
    """Every process that ended since: its pid and its exit status (negative: the signal that ended it)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def signal_session(leader: int, number: int) -> None:
    """Signal every process of a session, whatever group its shell put it in."""
    for pid in all_pids():
        if _session(pid) == leader:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def kill_everything() -> None:
    """End every descendant. Called when the server is gone; as PID 1 the kernel does it again for us."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(-1, signal.SIGKILL)
        return
    for _ in range(100):
        children = [pid for pid in all_pids() if _parent(pid) == os.getpid()]
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
            reap()


def all_pids() -> list[int]:
    """The processes visible here, without this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def segment_bytes() -> int:
    """Resident size of the System V shared memory segments here, which belong to no process."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sysvipc/shm", encoding="ascii") as table:
        head, *rows = (line.split() for line in table)
        return sum(int(row[head.index("rss")]) for row in rows)
    return 0


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _session(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[3]) if fields else 0


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0
