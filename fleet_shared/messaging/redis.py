"""Redis clients with bounded waits. `REDIS_ERRORS` is what their users catch."""

from typing import Final

import redis
from redis.backoff import ExponentialBackoff
from redis.client import PubSub as PubSub
from redis.exceptions import RedisError
from redis.retry import Retry

RedisClient = redis.Redis

REDIS_ERRORS: Final = (RedisError, OSError)
#: Seconds for one command, and for a connection.
TIMEOUT_S: Final = 2.0


def make_redis(url: str, *, max_connections: int = 4, name: str) -> RedisClient:
    """A client with a small blocking pool. Every command answers or fails within a few seconds."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=TIMEOUT_S,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=TIMEOUT_S,
        health_check_interval=25,
        retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), 1),
        client_name=f"fleet-{name}",
        decode_responses=True,
        protocol=2,
    )
    return redis.Redis(connection_pool=pool)


def make_subscription(client: RedisClient) -> PubSub:
    """A pub/sub connection of its own; its `get_message(timeout=…)` returns None when nothing came."""
    subscription: PubSub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    return subscription


def is_reachable(client: RedisClient) -> bool:
    """Whether Redis answers now."""
    try:
        return bool(client.ping())
    except REDIS_ERRORS:
        return False
