"""Who may speak to a sandbox's supervisor: the newest attempt, and of one attempt its newest connection."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from fleet_shared.domain.errors import SandboxLost
from fleet_worker.sandbox import connection
from fleet_worker.sandbox.bridge import Bridge
from fleet_worker.sandbox.daytona import Account, Daytona, Machine, SandboxSpec
from fleet_worker.scope import RunStopped
from tests.fakes.daytona import LocalDaytona


@pytest.fixture(scope="module")
def machine(daytona: LocalDaytona) -> Machine:
    account = Daytona(Account(daytona.api_key, daytona.url))
    spec = SandboxSpec(name="connections", labels={"app": "tests"}, auto_stop_min=15, auto_delete_min=60)
    return account.create(spec, timeout_s=30)


@pytest.fixture
def connect(machine: Machine) -> Iterator[Callable[..., Bridge]]:
    opened: list[Bridge] = []

    def open_one(turn: int, attempt: int, *, is_new: bool = False) -> Bridge:
        one = connection.connect(machine, turn_sequence=turn, attempt=attempt, seed=1, is_new=is_new, uploads={})
        opened.append(one)
        return one

    yield open_one
    for one in opened:
        one.close()


def scan(bridge: Bridge) -> object:
    return bridge.request("scan", {"tree": "workspace", "limit": 10}, timeout_s=10)


def test_the_newest_speaks_and_the_older_are_told(connect: Callable[..., Bridge]) -> None:
    first = connect(1, 1, is_new=True)
    assert scan(first)
    same_attempt = connect(1, 1)
    assert scan(same_attempt)
    next_attempt = connect(1, 2)
    assert scan(next_attempt)
    with pytest.raises((RunStopped, SandboxLost)):
        scan(connect(1, 1))
    assert scan(next_attempt)
    next_turn = connect(2, 1)
    assert scan(next_turn)
    with contextlib.suppress(RunStopped, SandboxLost):
        next_attempt.close()
