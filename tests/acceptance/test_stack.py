"""The deployment the tests share is whole again after a test that broke it."""

import signal

from tests.fakes.redis import RedisServer
from tests.fakes.stack import Stack


def test_what_a_test_breaks_is_repaired(stack: Stack, redis: RedisServer) -> None:
    stack.start_worker("worker2")
    stack.kill("web")
    stack.signal("worker", signal.SIGSTOP)
    redis.freeze()
    redis.repair()
    stack.repair()
    assert sorted(stack.processes) == ["web", "worker"]
    assert "**4**" in stack.ask("What is 2 + 2?")["answer"]
