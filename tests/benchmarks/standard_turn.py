"""What the standard Turn costs: two iterations and one `llm_query`, with a scripted model that answers at once.

    python -m tests.benchmarks.standard_turn [--turns N] [--latency MS]

Requests are lines of the sandbox server's access log; a WebSocket counts once. Wall goes from the POST to the terminal
event at the client. Own overhead is the wall without the time in which the model server was answering; the running time
of cells and the start of the driver are counted in. CPU is that of web and worker with all their processes.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.daytona import LocalDaytona, start_local_daytona
from tests.fakes.model_server import ModelServer, model_server, steps
from tests.fakes.redis import redis_server
from tests.fakes.stack import Stack, running

SCRIPT = steps("part = llm_query('name a colour')\nprint(part)", "SUBMIT(f'the colour is {part}')")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """One Turn: seconds, requests, CPU seconds."""

    wall_s: float
    own_s: float
    cpu_s: float
    requests: int
    operations: dict[str, int]


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description="What the standard Turn costs.")
    parser.add_argument("--turns", type=int, default=30, help="warm Turns to measure")
    parser.add_argument("--latency", type=float, default=37.5, help="delay of each direction to the sandboxes, in ms")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        daytona = start_local_daytona(Path(folder))
        try:
            with redis_server(Path(folder)) as redis, model_server(SCRIPT) as model:
                environment = {
                    "DATABASE_URL": f"sqlite:///{folder}/fleet.db",
                    "REDIS_URL": redis.url,
                    **daytona.environment(),
                    **model.environment(),
                }
                with running(Stack(Path(folder), environment)) as stack:
                    _measure(stack, daytona, model, chosen.turns, chosen.latency)
        finally:
            daytona.stop()
    return 0


def _measure(stack: Stack, daytona: LocalDaytona, model: ModelServer, turns: int, latency_ms: float) -> None:
    first = _turn(stack, daytona, model, stack.client.create_session()["id"])
    session = stack.client.create_session()["id"]
    cold = _turn(stack, daytona, model, session)
    warm = [_turn(stack, daytona, model, session) for _ in range(turns)]
    daytona.faults(latency_ms=latency_ms)
    far = [_turn(stack, daytona, model, session) for _ in range(max(3, turns // 6))]
    daytona.heal()
    _print("first of a process", [first])
    _print("cold (new Session)", [cold])
    _print(f"warm, median of {len(warm)}", warm)
    _print(f"warm, {2 * latency_ms:g} ms per round trip", far)
    ratio = statistics.median(item.wall_s for item in warm) / cold.wall_s
    print(f"warm / cold wall: {ratio:.2f}")
    print(f"requests, cold: {cold.operations}")
    print(f"requests, warm: {warm[-1].operations}")
    for name in stack.processes:
        print(f"memory of {name}: {_memory_mb(stack.processes[name].pid):.0f} MB")


def _turn(stack: Stack, daytona: LocalDaytona, model: ModelServer, session: str) -> Cost:
    time.sleep(0.3)  # what the Turn before left to do is not this one's
    daytona.reset_requests()
    cpu, began = _cpu_s(stack), time.monotonic()
    client = stack.client
    turn = client.submit(session, "Name a colour.")
    last = ""
    for event in client.follow(turn["id"], give_up_s=60):
        last = event.type
    wall = time.monotonic() - began
    if last != "turn.completed":
        raise SystemExit(f"the Turn ended with {last}: {client.turn(turn['id'])}")
    own = wall - model.busy_s(since=began)
    time.sleep(0.2)  # what it does after its end is counted too
    log = daytona.requests()
    return Cost(wall, own, _cpu_s(stack) - cpu, log["count"], log["by_operation"])


def _print(name: str, costs: Sequence[Cost]) -> None:
    def median(values: Any) -> float:
        return float(statistics.median(values))

    wall, own = median(item.wall_s for item in costs), median(item.own_s for item in costs)
    cpu, requests = median(item.cpu_s for item in costs), median(item.requests for item in costs)
    print(
        f"{name:32} wall {wall * 1000:6.0f} ms   own {own * 1000:6.0f} ms ({own / wall:.0%})   "
        f"CPU {cpu * 1000:5.0f} ms   {requests:g} requests"
    )


def _members(stack: Stack) -> list[Path]:
    """The /proc folders of web and worker with their children: each was started as a session of its own."""
    leaders = {process.pid for process in stack.processes.values()}
    return [folder for folder in Path("/proc").glob("[0-9]*") if _fields(folder)[3:4] in [[str(i)] for i in leaders]]


def _fields(folder: Path) -> list[str]:
    """What follows the name in /proc/PID/stat; empty when the process is gone."""
    try:
        return (folder / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _cpu_s(stack: Stack) -> float:
    """CPU seconds of web and worker so far."""
    return sum(sum(map(int, _fields(folder)[11:13])) for folder in _members(stack)) / TICKS_PER_S


def _memory_mb(leader: int) -> float:
    """Resident memory of a process and its children, MB."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(folder)
        if fields[3:4] == [str(leader)]:
            total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total / 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
