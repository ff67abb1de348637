"""The one signal against the current: a cancel, told to all workers at once. The row in SQL is what decides."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable

from fleet_shared.messaging.names import Names
from fleet_shared.messaging.redis import REDIS_ERRORS, RedisClient, make_subscription

log = logging.getLogger(__name__)


def tell_cancel(client: RedisClient, names: Names, turn_id: str) -> bool:
    """Tell the workers that a cancel was requested; False when Redis is away, then the lease's renewal tells."""
    with contextlib.suppress(*REDIS_ERRORS):
        client.publish(names.control_channel, json.dumps({"cancel": turn_id}))
        return True
    return False


class ControlListener:
    """Hears cancels on a thread of its own and reconnects for ever."""

    def __init__(self, client: RedisClient, names: Names, on_cancel: Callable[[str], None]) -> None:
        """`on_cancel` gets the Turn's id in the listener's thread and must not block."""
        self._client = client
        self._names = names
        self._on_cancel = on_cancel
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control-listener", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Stop within about a second."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with make_subscription(self._client) as subscription:
                    subscription.subscribe(self._names.control_channel)
                    while not self._stopping.is_set():
                        message = subscription.get_message(timeout=1.0)
                        if message is not None:
                            self._hear(message["data"])
            except REDIS_ERRORS as error:
                log.info("control.redis_away", extra={"reason": type(error).__name__})
                self._stopping.wait(0.5)

    def _hear(self, text: object) -> None:
        try:
            command = json.loads(str(text))
        except ValueError:
            return
        if isinstance(command, dict) and isinstance(command.get("cancel"), str):
            self._on_cancel(command["cancel"])
