"""Makes interpreter processes out of the supervisor, which costs milliseconds, and one ahead of its use."""

import fcntl
import os
import socket

from cells import start_interpreter
from processes import kill, status_of

PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031


class Forks:
    """Interpreter processes as (pid, socket, {pipe: stream}); one waits for the next Turn."""

    def __init__(self):
        self.spare = None

    @property
    def spare_pid(self):
        """The pid of the one that waits."""
        return self.spare[0] if self.spare is not None else None

    def take(self):
        """A process that has run nothing."""
        taken, self.spare = self.spare, None
        return taken or fork()

    def prepare(self):
        """Have one wait."""
        if self.spare is None:
            self.spare = fork()

    def drop(self, is_dead=False):
        """Have none wait."""
        if self.spare is None:
            return
        (pid, sock, pipes), self.spare = self.spare, None
        if not is_dead:
            kill(pid)
            status_of(pid)
        sock.close()
        for fd in pipes:
            os.close(fd)


def fork():
    """A new interpreter process."""
    ours, theirs = socket.socketpair()
    (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
    for fd in (out_write, err_write):
        try:
            fcntl.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # a smaller pipe only costs speed
    pid = os.fork()
    if pid == 0:
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in (out_write, err_write, theirs.fileno())]
        keep = {*high, 0, 1, 2}
        start_interpreter(high[2], {1: high[0], 2: high[1]}, [fd for fd in _open_fds() if fd not in keep])
    os.close(out_write)
    os.close(err_write)
    theirs.close()
    return pid, ours, {out_read: "o", err_read: "e"}


def _open_fds():
    fds = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
            fds.append(int(name))
        except OSError:
            continue
    return fds
