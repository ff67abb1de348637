"""Runs as a program of its own: lowers the rights of root, shows the new user the few folders it needs, becomes
bubblewrap.

Started as an ordinary user it only lowers priority and becomes the given program. Standard library alone; argument
1 is JSON.
"""

import ctypes
import json
import os
import signal
import stat
import sys
from typing import Any

CLONE_NEWNS = 0x00020000
MS_NODEV, MS_NOSUID = 4, 2
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1


def main(order: dict[str, Any]) -> None:
    """Prepare as ordered and become `order["argv"]`; never returns."""
    os.nice(order["niceness"])
    if order["cpus"]:
        allowed = sorted(os.sched_getaffinity(0))[: order["cpus"]]
        os.sched_setaffinity(0, allowed)
    if order["uid"] is not None:
        _stage(order["staging"], order["sources"])
        os.setgroups([])
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    if order["dies_with_parent"]:
        # After the change of user, which clears it. It fires when the parent's thread ends: that is the main one.
        _checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        if os.getppid() != order["parent"]:
            sys.exit(1)
    os.execve(order["argv"][0], order["argv"], order["environment"])


def _stage(staging: str, sources: list[str]) -> None:
    """Make every source reachable as staging/0, staging/1, … in a mount namespace of our own.

    The sources may lie in folders the sandbox's user cannot enter (an interpreter below /root, a private data folder).
    """
    _checked(_libc.unshare(CLONE_NEWNS))
    _mount(None, "/", None, MS_REC | MS_PRIVATE, None)
    # Opened in the new namespace (others cannot be bound) and before the staging folder hides what is below it.
    handles = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in sources]
    _mount("staging", staging, "tmpfs", MS_NODEV | MS_NOSUID, "mode=0755,size=1m")
    for number, handle in enumerate(handles):
        target = f"{staging}/{number}"
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            os.mkdir(target)  # noqa: PTH102 - starts in milliseconds: pathlib is not loaded
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        _mount(f"/proc/self/fd/{handle}", target, None, MS_BIND | MS_REC, None)


_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> None:
    texts = [text if text is None else text.encode() for text in (source, target, kind, data)]
    _checked(_libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
