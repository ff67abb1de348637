"""Live messages for the streams of one web process: one pub/sub connection, however many readers there are.

A reader never relies on it: numbers tell it of gaps, and a look at `last_seq` of all streams in one query, every two
seconds or four times a second while Redis is away, tells it of what it was not told.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fleet_shared.domain.errors import FleetError
from fleet_shared.messaging.names import Names
from fleet_shared.messaging.redis import REDIS_ERRORS, PubSub, RedisClient, make_subscription

log = logging.getLogger(__name__)

#: Messages and characters a reader may have waiting before it reads from SQL instead.
WAITING_MESSAGES: Final = 400
WAITING_CHARACTERS: Final = 1_000_000
#: Seconds between looks at the database, while Redis answers and while it does not.
LOOK_S: Final = 2.0
LOOK_AWAY_S: Final = 0.25
_KEEP_OPEN: Final = "hub"

LastNumbers = Callable[[Iterable[str]], dict[str, int]]


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """A fact (`seq` is its number) or a draft (None) as it goes to readers."""

    type: str
    seq: int | None
    data: str


class Reader:
    """One stream's place in the hub."""

    def __init__(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self.known_seq = 0
        self._condition = threading.Condition()
        self._waiting: deque[LiveMessage] = deque()
        self._characters = 0
        self._missed = False
        self._woken = False

    def put(self, message: LiveMessage) -> None:
        """Hand over a message; a reader that is too slow misses it and reads from SQL."""
        with self._condition:
            if len(self._waiting) >= WAITING_MESSAGES or self._characters >= WAITING_CHARACTERS:
                self._waiting.clear()
                self._characters, self._missed = 0, True
            if not self._missed:
                self._waiting.append(message)
                self._characters += len(message.data)
            self._condition.notify()

    def wake(self) -> None:
        """Have the reader look around."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def take(self, timeout_s: float) -> tuple[list[LiveMessage], bool]:
        """What arrived within `timeout_s`, and whether something was missed."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting or self._missed or self._woken, timeout_s)
            messages, missed = list(self._waiting), self._missed
            self._waiting.clear()
            self._characters, self._missed, self._woken = 0, False, False
            return messages, missed


class Hub:
    """Fans live messages out to readers. `start` begins its threads."""

    def __init__(self, client: RedisClient, names: Names, last_numbers: LastNumbers) -> None:
        self._client = client
        self._names = names
        self._last_numbers = last_numbers
        self._lock = threading.Lock()
        self._readers: dict[str, set[Reader]] = {}
        self._subscription: PubSub | None = None
        self._stopping = threading.Event()
        self.is_away = False

    def start(self) -> None:
        """Begin to listen and to look."""
        threading.Thread(target=self._listen, name="hub-listen", daemon=True).start()
        threading.Thread(target=self._look, name="hub-look", daemon=True).start()

    def stop(self) -> None:
        """Stop, and wake every reader so that it can end."""
        self._stopping.set()
        for reader in self._all():
            reader.wake()

    @property
    def is_stopping(self) -> bool:
        """Whether streams should end so that clients connect elsewhere."""
        return self._stopping.is_set()

    def join(self, turn_id: str) -> Reader:
        """A new reader of a Turn."""
        reader = Reader(turn_id)
        with self._lock:
            readers = self._readers.setdefault(turn_id, set())
            readers.add(reader)
            if len(readers) == 1:
                self._tell("subscribe", turn_id)
        return reader

    def leave(self, reader: Reader) -> None:
        """The reader is gone."""
        with self._lock:
            readers = self._readers.get(reader.turn_id, set())
            readers.discard(reader)
            if not readers:
                self._readers.pop(reader.turn_id, None)
                self._tell("unsubscribe", reader.turn_id)

    def draft(self, turn_id: str) -> str | None:
        """The snapshot of what the model is writing, for a reader that joins."""
        try:
            found = self._client.get(self._names.draft_key(turn_id))
        except REDIS_ERRORS:
            return None
        return str(found) if found is not None else None

    def _tell(self, command: str, turn_id: str) -> None:
        if self._subscription is None:
            return
        channel = self._names.turn_channel(turn_id)
        try:
            getattr(self._subscription, command)(channel)
        except REDIS_ERRORS:
            self.is_away = True  # the listener connects again and subscribes to everything

    def _listen(self) -> None:
        prefix = self._names.turn_channel("")
        while not self._stopping.is_set():
            try:
                with make_subscription(self._client) as subscription:
                    with self._lock:
                        channels = [self._names.turn_channel(turn_id) for turn_id in self._readers]
                        subscription.subscribe(prefix + _KEEP_OPEN, *channels)
                        self._subscription = subscription
                    self.is_away = False
                    for reader in self._all():
                        reader.wake()
                    while not self._stopping.is_set():
                        message = subscription.get_message(timeout=1.0)
                        if message is not None and message["type"] == "message":
                            self._pass_on(str(message["channel"]).removeprefix(prefix), message["data"])
            except REDIS_ERRORS as error:
                if not self.is_away:
                    log.warning("hub.redis_away", extra={"reason": type(error).__name__})
                self.is_away = True
                with self._lock:
                    self._subscription = None
                self._stopping.wait(0.5)

    def _pass_on(self, turn_id: str, text: str) -> None:
        try:
            message = json.loads(text)
            seq = int(message["id"]) if message.get("id") is not None else None
            live = LiveMessage(str(message["type"]), seq, str(message["data"]))
        except (ValueError, KeyError, TypeError):
            return
        with self._lock:
            readers = list(self._readers.get(turn_id, ()))
        for reader in readers:
            reader.put(live)

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_AWAY_S if self.is_away else LOOK_S):
            with self._lock:
                turn_ids = list(self._readers)
            if not turn_ids:
                continue
            try:
                numbers = self._last_numbers(turn_ids)
            except FleetError:
                continue
            for reader in self._all():
                last = numbers.get(reader.turn_id, 0)
                if last > reader.known_seq:
                    reader.known_seq = last
                    reader.wake()

    def _all(self) -> list[Reader]:
        with self._lock:
            return [reader for readers in self._readers.values() for reader in readers]
