"""What the sandbox costs by itself: connecting, cells, tool calls, output, cancel, and requests to the provider.

python -m tests.benchmarks.sandbox [--latency MS]
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet_worker.sandbox.daytona import Daytona
from fleet_worker.sandbox.interpreter import CellLimits
from fleet_worker.scope import RunStopped, Scope, StopReason
from tests.fakes.daytona import LocalDaytona, local_daytona
from tests.fakes.sandboxes import Host, account_of

CALLS = 1000
CALLS_BY_THREADS = f"""
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    print(list(pool.map(echo, range({CALLS}))) == list(range({CALLS})))
"""
CALLS_IN_A_ROW = f"print([echo(n) for n in range({CALLS // 4})] == list(range({CALLS // 4})))"
OUTPUTS = {
    "20,000 lines": "for n in range(20_000): print('line', n)",
    "3 MB without a break": "print('x' * 3_000_000)",
    "100 MB": "import sys\nfor _ in range(100): sys.stdout.write('y' * 1_000_000)",
}


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description="What the sandbox costs by itself.")
    parser.add_argument("--latency", type=float, default=37.5, help="delay of each direction, in ms")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, local_daytona(Path(folder)) as server:
        daytona = Daytona(account_of(server))
        try:
            host = Host(daytona)
            _cold(host, server)
            _measure(host, server, 20)
            server.faults(latency_ms=chosen.latency)
            print(f"-- {2 * chosen.latency:g} ms per round trip")
            _measure(host, server, 5)
        finally:
            daytona.close()
    return 0


def _cold(host: Host, server: LocalDaytona) -> None:
    server.reset_requests()
    began = time.monotonic()
    with host.turn() as (interpreter, _):
        interpreter.execute("1")
        _print("create, start, first cell", time.monotonic() - began)
    print(f"   requests: {server.requests()['by_operation']}")


def _measure(host: Host, server: LocalDaytona, times: int) -> None:
    connects, firsts = [], []
    server.reset_requests()
    for _ in range(times):
        began = time.monotonic()
        with host.turn() as (interpreter, _):
            connects.append(time.monotonic() - began)
            began = time.monotonic()
            interpreter.execute("1")
            firsts.append(time.monotonic() - began)
    print(f"   requests of {times} Turns: {server.requests()['by_operation']}")
    _print("connect", statistics.median(connects))
    _print("first cell of a Turn", statistics.median(firsts))
    with host.turn({"echo": lambda n: n}) as (interpreter, _):
        interpreter.execute("1")
        _print("cell", statistics.median(_time(lambda: interpreter.execute("1 + 1")) for _ in range(times)))
        one = _time(lambda: interpreter.execute("echo(1)"))
        _print("cell with a tool call", one)
        for name, code, count in (("8 threads", CALLS_BY_THREADS, CALLS), ("in a row", CALLS_IN_A_ROW, CALLS // 4)):
            began = time.monotonic()
            assert interpreter.execute(code) == "True"
            print(f"{f'tool calls, {name}':<34}{count / (time.monotonic() - began):>8.0f} /s")
        for name, code in OUTPUTS.items():
            _print(name, _time(lambda code=code: interpreter.execute(code)))  # type: ignore[misc]
    _print("cancel of a sleeping cell", _cancel(host, "import time\ntime.sleep(60)"))
    _print("cancel of one that catches all", _cancel(host, STUBBORN))


STUBBORN = """
import time
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


def _cancel(host: Host, code: str) -> float:
    scope = Scope.lasting(60)
    with host.turn(scope=scope, limits=CellLimits(timeout_s=60)) as (interpreter, _):
        interpreter.execute("1")
        stopped: list[float] = []

        def stop() -> None:
            stopped.append(time.monotonic())
            scope.stop(StopReason.CANCELLED)

        timer = threading.Timer(0.3, stop)
        timer.start()
        try:
            interpreter.execute(code)
        except RunStopped:
            return time.monotonic() - stopped[0]
    raise AssertionError("the cell was not stopped")


def _time(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _print(name: str, seconds: float) -> None:
    print(f"{name:<34}{seconds * 1000:>8.1f} ms")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
