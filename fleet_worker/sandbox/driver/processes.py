"""The sandbox's processes as the supervisor sees them: who descends from whom, who has ended, who is killed.

Orphans count as the supervisor's children, because it is their subreaper.
"""

import os
import signal
import time

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Rounds of looking and killing: a process may fork while the list is read.
ROUNDS = 20


def table():
    """pid -> (parent, state, start in seconds since boot) of every visible process."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as source:
                fields = source.read().rpartition(b")")[2].split()
            found[int(name)] = (int(fields[1]), fields[0], int(fields[19]) / TICKS_PER_S)
        except (OSError, IndexError, ValueError):
            continue
    return found


def descendants(root, processes=None):
    """The living pids below `root`."""
    processes = table() if processes is None else processes
    children = {}
    for pid, (parent, _, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found, frontier = [], list(children.get(root, ()))
    while frontier:
        pid = frontier.pop()
        found.append(pid)
        frontier += children.get(pid, ())
    return [pid for pid in found if processes[pid][1] not in (b"Z", b"X")]


def kill_all(pid):
    """Kill a process and all below it."""
    below = descendants(pid)
    kill(pid)
    for other in below:
        kill(other)


def kill_since(pid, boot_time):
    """Kill what is below `pid` and was started after `boot_time` (seconds since boot)."""
    processes = table()
    for other in descendants(pid, processes):
        if processes[other][2] >= boot_time - 1 / TICKS_PER_S:
            kill(other)


def kill_others(keep):
    """Kill everything below this process except the pids in `keep` and all below those; how many."""
    killed = 0
    for _ in range(ROUNDS):
        processes = table()
        kept = set(keep)
        for pid in keep:
            kept.update(descendants(pid, processes))
        victims = [pid for pid in descendants(os.getpid(), processes) if pid not in kept]
        if not victims:
            break
        # Stopped first, so that a storm of forks cannot outrun the kills.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                kill(pid, number)
        killed += len(victims)
        time.sleep(0.002)
    return killed


def kill(pid, number=signal.SIGKILL):
    """Send a signal to a process that may be gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def reap():
    """Collect ended children; (pid, status) of each."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def status_of(pid, seconds=1.0):
    """The status of a child that ends now; it is killed when it does not. None when it was collected already."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            return status
        if time.monotonic() > deadline:
            kill(pid)
            deadline += 3600
        time.sleep(0.001)


def retire_older(marker):
    """Kill every other supervisor of this user and all below it: one whose command line contains `marker`."""
    mine = {os.getpid(), os.getppid()}
    for pid in table():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as source:
                words = source.read().split(b"\0")
        except OSError:
            continue
        if pid not in mine and any(marker.encode() in word for word in words[1:4]):
            kill_all(pid)
