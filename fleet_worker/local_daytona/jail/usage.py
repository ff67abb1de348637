"""Measures what the processes of a sandbox use, read from /proc and the disk. Decides nothing.

The numbers are approximate where exact ones are dear: resident memory counts shared pages once per process, so the
exact proportional sizes are read only when the cheap sum is too high.
"""

import contextlib
import os
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
PROC: Final = Path("/proc")
DU_S: Final = 30
ENTRY_BYTES: Final = 1024
"""What an entry of a folder costs beside its content, so that empty files are not free."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process at one moment. `cpu_ticks` grows with the time it ran; `session` is its leader's pid as the
    machine counts."""

    pid: int
    parent: int
    session: int
    name: str
    threads: int
    resident: int
    cpu_ticks: int


def all_processes() -> dict[int, Seen]:
    """Every process of the machine; about 20 µs each."""
    numbers = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return {pid: seen for pid in numbers if (seen := process(pid)) is not None}


def process(pid: int) -> Seen | None:
    """One process, or None when there is none of that number."""
    try:
        return _parse((PROC / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def _parse(line: str) -> Seen:
    head, _, rest = line.rpartition(")")
    number, _, name = head.partition(" (")
    fields = rest.split()
    return Seen(
        pid=int(number),
        parent=int(fields[1]),
        session=int(fields[3]),
        name=name,
        threads=int(fields[17]),
        resident=int(fields[21]) * PAGE,
        cpu_ticks=int(fields[11]) + int(fields[12]),
    )


def children(pid: int) -> list[int]:
    """The direct children of a process that has one thread."""
    try:
        return [int(child) for child in (PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except OSError:  # gone, or a kernel without this file
        return [seen.pid for seen in all_processes().values() if seen.parent == pid]


def descendants(processes: dict[int, Seen], root: int) -> list[list[Seen]]:
    """The processes below `root`, generation by generation, nearest first; without `root` itself."""
    children: dict[int, list[Seen]] = {}
    for seen in processes.values():
        children.setdefault(seen.parent, []).append(seen)
    generations = []
    level = children.get(root, [])
    while level:
        generations.append(level)
        level = [child for seen in level for child in children.get(seen.pid, [])]
    return generations


def proportional_memory(pid: int) -> int | None:
    """Memory of a process in bytes, shared pages divided among their users; None when it is gone or cannot be read."""
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def oom_score_adjustment(pid: int) -> int:
    """How much a process offers itself to the out-of-memory killer; -1000…1000."""
    try:
        return int((PROC / str(pid) / "oom_score_adj").read_text())
    except (OSError, ValueError):
        return 0


def written_bytes(pid: int) -> int:
    """What a process has written: to disk, or where the file system does not account that, with any write."""
    counts = dict.fromkeys(("write_bytes", "wchar"), 0)
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "io").read_text().splitlines():
            name, _, count = line.partition(":")
            counts[name] = int(count)
    return counts["write_bytes"] or counts["wchar"]


def nameless_bytes(pids: Iterable[int], disk: int) -> tuple[int, int]:
    """Bytes of files without a name that processes hold open: on the device `disk`, and in memory (memory files)."""
    on_disk: dict[int, int] = {}
    in_memory: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(PROC / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    found = entry.stat()
                    if not stat.S_ISREG(found.st_mode) or found.st_nlink:
                        continue
                    size = found.st_blocks * 512
                    if found.st_dev == disk:
                        on_disk[found.st_ino] = size
                    else:
                        in_memory[found.st_dev, found.st_ino] = size
    return sum(on_disk.values()), sum(in_memory.values())


def tree_bytes(folder: Path) -> int:
    """Disk space of everything below a folder, on its device, with a price for each entry.

    Measured by a program of its own: a hostile tree may be deeper than paths are long, and a walk here would hold
    up the server.
    Zero when it cannot be measured; may take seconds for a hundred thousand files.
    """
    kilobytes, entries = _du("-k", folder), _du("--inodes", folder)
    return kilobytes * 1024 + entries * ENTRY_BYTES


def _du(unit: str, folder: Path) -> int:
    command = ["/usr/bin/du", "-sx", unit, "--", str(folder)]
    try:
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DU_S, check=False, env={})
        return int(told.stdout.split()[0])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return 0
