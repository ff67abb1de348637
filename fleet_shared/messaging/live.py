"""The live copy: facts and drafts published through Redis for readers that are connected now.

A message on a Turn's channel is the JSON object Flask-SSE reads: `data` (one line of JSON), `type`, and `id` for facts.
Publishing happens on a thread of its own with a bounded queue: a slow or lost Redis costs latency, never a fact.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fleet_shared.contract.frames import message_json
from fleet_shared.messaging.names import DRAFT_TTL_S, Names
from fleet_shared.messaging.redis import REDIS_ERRORS, RedisClient
from fleet_shared.store.events import StoredEvent

log = logging.getLogger(__name__)

#: Characters waiting to be published; beyond it the oldest messages are dropped, SQL has the facts.
QUEUE_CHARACTERS: Final = 8_000_000
_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class _Publication:
    channel: str
    text: str


@dataclass(frozen=True, slots=True)
class _Snapshot:
    key: str
    text: str | None


class LivePublisher:
    """Publishes for a whole process. `start` begins, `stop` sends what is left within a second."""

    def __init__(self, client: RedisClient, names: Names) -> None:
        self._client = client
        self._names = names
        self._condition = threading.Condition()
        self._waiting: deque[_Publication | _Snapshot] = deque()
        self._characters = 0
        self._stopping = False
        self._away = False
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="live-publisher", daemon=True)

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left and end."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def facts(self, turn_id: str, events: Sequence[StoredEvent]) -> None:
        """Publish stored facts."""
        channel = self._names.turn_channel(turn_id)
        for stored in events:
            data = message_json(stored.body, stored.seq)
            message = {"data": data, "type": stored.type, "id": str(stored.seq)}
            self._put(_Publication(channel, json.dumps(message, ensure_ascii=False)))

    def draft(self, turn_id: str, type_: str, body: str) -> None:
        """Publish a draft."""
        message = {"data": body, "type": type_}
        self._put(_Publication(self._names.turn_channel(turn_id), json.dumps(message, ensure_ascii=False)))

    def snapshot(self, turn_id: str, body: str | None) -> None:
        """Keep the draft so far for readers that join, or remove it."""
        self._put(_Snapshot(self._names.draft_key(turn_id), body))

    def _put(self, item: _Publication | _Snapshot) -> None:
        with self._condition:
            self._waiting.append(item)
            self._characters += len(item.text or "")
            while self._characters > QUEUE_CHARACTERS and self._waiting:
                oldest = self._waiting.popleft()
                self._characters -= len(oldest.text or "")
                self.dropped += 1
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
                self._characters -= sum(len(item.text or "") for item in batch)
                last_chance = self._stopping
            if not self._send(batch) and last_chance:
                return

    def _send(self, batch: Sequence[_Publication | _Snapshot]) -> bool:
        pipeline = self._client.pipeline(transaction=False)
        for item in batch:
            if isinstance(item, _Publication):
                pipeline.publish(item.channel, item.text)
            elif item.text is None:
                pipeline.delete(item.key)
            else:
                pipeline.set(item.key, item.text, ex=DRAFT_TTL_S)
        try:
            pipeline.execute()
        except REDIS_ERRORS as error:
            self.dropped += len(batch)
            if not self._away:
                log.warning("redis.away", extra={"reason": type(error).__name__})
            self._away = True
            return False
        if self._away:
            log.info("redis.back")
        self._away = False
        return True
