"""Keeps every sandbox within its memory, process and disk limits by killing what breaks them, as an out-of-memory
killer does.

It prefers processes that raised their `oom_score_adj`, never takes the agent, and stops the sandbox when killing
does not help.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from fleet_worker.local_daytona.jail import usage
from fleet_worker.local_daytona.jail.channel import AgentGone, AgentRefused
from fleet_worker.local_daytona.jail.jail import Jail
from fleet_worker.local_daytona.jail.usage import Seen
from fleet_worker.local_daytona.options import Limits
from fleet_worker.local_daytona.sandbox import Sandbox
from fleet_worker.local_daytona.sandboxes import Sandboxes

log = logging.getLogger(__name__)

Limit = Literal["memory", "processes", "disk"]
KILLS_TOLD: Final = 20

QUIET_S: Final = 1.0
BUSY_S: Final = 0.25
NEAR_LIMIT_S: Final = 0.05
DISK_S: Final = 1.0
DISK_QUIET_S: Final = 10.0
ANSWER_S: Final = 2.0
NEAR: Final = 0.5
DISK_SLACK: Final = 1024**3
"""This far above its limit a sandbox is stopped: killing came too late, or it is filled from outside."""
DISK_SHARE: Final = 20
"""The disk is measured at most for one part in so many of the time, however many files there are."""
BURST: Final = 0.1
"""Written since the last look at the disk, as a part of the limit, this is reason to look again."""
ROUNDS_UNTIL_STOP: Final = 200
"""Looks in a row that find a sandbox over its memory or processes before it is stopped as a whole."""


@dataclass(slots=True)
class Watch:
    """What is remembered about one sandbox between two looks."""

    ticks: int = 0
    disk_ticks: int = -1
    disk_at: float = 0.0
    disk_took: float = 0.0
    disk: int = 0
    disk_grew: bool = False
    memory_files: int = 0
    written_in_all: int = 0
    written: dict[int, int] = field(default_factory=dict)
    over: int = 0
    dying: frozenset[int] = frozenset()
    kills: list[dict[str, object]] = field(default_factory=list)


class Watchdog:
    """Looks at all running sandboxes again and again; `watch()` runs until cancelled."""

    def __init__(self, sandboxes: Sandboxes, limits: Limits) -> None:
        self._sandboxes = sandboxes
        self._limits = limits
        self._watches: dict[str, Watch] = {}

    def kills(self, sandbox_id: str) -> list[dict[str, object]]:
        """The last kills in a sandbox."""
        watch = self._watches.get(sandbox_id)
        return list(watch.kills) if watch else []

    async def watch(self) -> None:
        """Look, more often the nearer a sandbox is to a limit."""
        while True:
            running = [(row, row.jail, row.jail.pid) for row in self._sandboxes if row.state == "started" and row.jail]
            pause = QUIET_S
            if running:
                processes = await asyncio.to_thread(usage.all_processes)
                for sandbox, jail, pid in running:
                    with contextlib.suppress(OSError):  # its files are gone: deleted since the loop began
                        if pid is not None:
                            pause = min(pause, await self._look(sandbox, jail, pid, processes))
            known = {row.id for row in self._sandboxes}
            self._watches = {number: watch for number, watch in self._watches.items() if number in known}
            await asyncio.sleep(pause)

    async def _look(self, sandbox: Sandbox, jail: Jail, outermost: int, processes: dict[int, Seen]) -> float:
        """Look at one sandbox; how long the next look may wait."""
        watch = self._watches.setdefault(sandbox.id, Watch())
        generations = usage.descendants(processes, outermost)
        if jail.ground.isolation == "bubblewrap":
            generations = generations[1:]  # the first is the agent
        mine = [seen for generation in generations for seen in generation]
        ticks = sum(seen.cpu_ticks for seen in mine) + len(mine)
        busy = ticks != watch.ticks
        watch.ticks = ticks
        await self._measure_disk(jail, mine, watch)
        broken = await self._broken_limit(mine, watch)
        if broken is None:
            watch.over = 0
            near = sum(seen.resident for seen in mine) > self._limits.memory_bytes * NEAR
            return NEAR_LIMIT_S if near and busy else BUSY_S if busy else QUIET_S
        watch.over += 1
        # Memory of a process that is being torn down is still counted: wait for it before taking another.
        watch.dying = frozenset(seen.pid for seen in mine if seen.pid in watch.dying and seen.resident)
        if not watch.dying:
            self._kill(sandbox, mine, watch, broken)
        if (broken != "disk" and (watch.over > ROUNDS_UNTIL_STOP or not mine)) or (
            broken == "disk" and watch.disk > self._limits.disk_bytes + DISK_SLACK
        ):
            log.warning("sandbox.stopped_over_limit", extra={"sandbox": sandbox.id, "limit": broken})
            await self._sandboxes.halt(sandbox, "stopped")
        return NEAR_LIMIT_S

    async def _broken_limit(self, mine: list[Seen], watch: Watch) -> Limit | None:
        if len(mine) > self._limits.processes:
            return "processes"
        if watch.disk > self._limits.disk_bytes and watch.disk_grew:
            return "disk"
        if sum(seen.resident for seen in mine) + watch.memory_files > self._limits.memory_bytes:
            exact = await asyncio.to_thread(_exact_memory, mine)
            if exact + watch.memory_files > self._limits.memory_bytes:
                return "memory"
        return None

    async def _measure_disk(self, jail: Jail, mine: list[Seen], watch: Watch) -> None:
        """Measure when something ran since; often when the limit is near, rarely when nothing moves."""
        now = asyncio.get_running_loop().time()
        near = watch.disk + watch.memory_files > min(self._limits.disk_bytes, self._limits.memory_bytes) * NEAR
        moved = watch.ticks != watch.disk_ticks
        written = sum(usage.written_bytes(seen.pid) for seen in mine) if moved else watch.written_in_all
        burst = abs(written - watch.written_in_all) > self._limits.disk_bytes * BURST
        pause = 0.0 if burst else BUSY_S if near and moved else DISK_S if moved else DISK_QUIET_S
        if now - watch.disk_at < max(pause, DISK_SHARE * watch.disk_took):
            watch.disk_grew = False
            return
        watch.disk_at, watch.disk_ticks, watch.written_in_all = now, watch.ticks, written
        tree, nameless, memory_files = await asyncio.to_thread(_disk_use, jail, [seen.pid for seen in mine])
        watch.disk_took = asyncio.get_running_loop().time() - now
        watch.disk_grew = tree + nameless > watch.disk
        watch.disk = tree + nameless
        watch.memory_files = memory_files
        with contextlib.suppress(AgentGone, AgentRefused, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                watch.memory_files += int((await jail.channel.request("segments")).fields["bytes"])

    def _kill(self, sandbox: Sandbox, mine: list[Seen], watch: Watch, broken: Limit) -> None:
        written = {seen.pid: usage.written_bytes(seen.pid) for seen in mine} if broken == "disk" else {}
        grown = {pid: size - watch.written.get(pid, 0) for pid, size in written.items()}
        watch.written = written
        for seen in _victims(mine, broken, grown):
            told = {"limit": broken, "victim": seen.name, "resident": seen.resident}
            log.warning("sandbox.process_killed", extra={"sandbox": sandbox.id, "pid": seen.pid, **told})
            watch.kills = [*watch.kills[1 - KILLS_TOLD :], told]
            watch.dying |= {seen.pid}
            _kill_process(seen)


def _victims(mine: list[Seen], broken: Limit, grown: dict[int, int]) -> list[Seen]:
    """Whom to kill now: the biggest process for memory, the busiest writer for disk, the largest session for
    processes."""
    if not mine:
        return []
    offered = {seen.pid: usage.oom_score_adjustment(seen.pid) for seen in mine}
    most = max(offered.values())
    willing = [seen for seen in mine if offered[seen.pid] == most]
    match broken:
        case "processes":
            worst, _ = Counter(seen.session for seen in willing).most_common(1)[0]
            return [seen for seen in willing if seen.session == worst]
        case "disk":
            return [max(mine, key=lambda seen: grown[seen.pid])]
        case "memory":
            return [max(willing, key=lambda seen: seen.resident)]


def _kill_process(seen: Seen) -> None:
    """Kill a process if it is still the one that was seen (its number may have been given away since)."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(seen.pid)
        try:
            still = usage.process(seen.pid)
            if still is not None and still.name == seen.name and still.session == seen.session:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _exact_memory(mine: list[Seen]) -> int:
    total = 0
    for seen in mine:
        exact = usage.proportional_memory(seen.pid)
        total += seen.resident if exact is None else exact
    return total


def _disk_use(jail: Jail, pids: list[int]) -> tuple[int, int, int]:
    nameless, memory_files = usage.nameless_bytes(pids, jail.folder.stat().st_dev)
    return usage.tree_bytes(jail.folder), nameless, memory_files
