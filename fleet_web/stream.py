"""The event stream of a Turn: a Flask-SSE blueprint over the event log. Facts come from SQL, live copies save the read.

A reader emits number n+1 only; whatever is missing is read from SQL, so losing Redis costs latency and nothing else.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from flask import Response, request
from flask_sse import Message, ServerSentEventsBlueprint

from fleet_shared.contract.frames import message_json, sse_message
from fleet_shared.domain.errors import Gone, InvalidInput, LimitReached
from fleet_shared.domain.events import TERMINAL_TYPES, DraftSnapshot
from fleet_shared.domain.turn import Turn
from fleet_shared.messaging.hub import Hub
from fleet_shared.messaging.redis import RedisClient
from fleet_shared.store import Database
from fleet_shared.store.events import read_events
from fleet_shared.store.owners import live_token_ids
from fleet_web.auth import Caller

log = logging.getLogger(__name__)

#: Seconds of silence after which a comment is sent, and between looks whether the token is still good.
HEARTBEAT_S: Final = 15.0
TOKEN_LOOK_S: Final = 5.0
BATCH: Final = 200
_SEQ_DIGITS: Final = 15
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventMessage(Message):  # type: ignore[misc]  # flask_sse has no types
    """A message whose data is already one line of JSON."""

    def __str__(self) -> str:
        return sse_message(self.type, self.data, int(self.id) if self.id is not None else None)


class TurnEvents(ServerSentEventsBlueprint):  # type: ignore[misc]  # flask_sse has no types
    """Streams Turns. `messages` and `stream` take a Turn instead of a channel anybody could name."""

    def __init__(self, *, database: Database, hub: Hub, client: RedisClient, max_streams: int, per_owner: int) -> None:
        super().__init__("events", __name__)
        self._database = database
        self._hub = hub
        self._client = client
        self._max_streams = max_streams
        self._per_owner = per_owner
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    @property
    def redis(self) -> RedisClient:
        """The shared client; the blueprint's own would connect anew for every message."""
        return self._client

    @property
    def open_streams(self) -> int:
        """Streams that are open now."""
        return self._open.total()

    def messages(self, turn_id: str, after: int = 0, caller: Caller | None = None) -> Iterator[EventMessage | None]:
        """The facts after number `after` up to the terminal one, with drafts between; None after silence."""
        reader = self._hub.join(turn_id)
        last, missed, joined = after, True, False
        heard = looked = time.monotonic()
        try:
            while not self._hub.is_stopping:
                while missed:
                    with self._database.read() as tx:
                        stored = read_events(tx, turn_id, after=last, limit=BATCH)
                    for item in stored:
                        last = item.seq
                        yield EventMessage(message_json(item.body, item.seq), type=item.type, id=item.seq)
                        if item.type in TERMINAL_TYPES:
                            return
                    heard = time.monotonic() if stored else heard
                    missed = len(stored) == BATCH
                if not joined:
                    joined = True
                    snapshot = self._hub.draft(turn_id)
                    if snapshot is not None:
                        yield EventMessage(snapshot, type=DraftSnapshot.type)
                live, missed = reader.take(1.0)
                for message in live:
                    if message.seq is None:
                        yield EventMessage(message.data, type=message.type)
                    elif message.seq == last + 1:
                        last = message.seq
                        yield EventMessage(message.data, type=message.type, id=message.seq)
                        if message.type in TERMINAL_TYPES:
                            return
                    elif message.seq > last:
                        missed = True
                        break
                missed = missed or reader.known_seq > last
                now = time.monotonic()
                heard = now if live else heard
                if now - heard >= HEARTBEAT_S:
                    heard = now
                    yield None
                if caller is not None and now - looked >= TOKEN_LOOK_S:
                    looked = now
                    if not self._is_live(caller):
                        return
        finally:
            self._hub.leave(reader)

    def stream(self, turn: Turn, after: int, caller: Caller, *, expired: bool) -> Response:
        """The response of GET /api/turns/{turn_id}/events. Raises Gone, LimitReached."""
        if turn.status.is_terminal and after >= turn.last_event_seq:
            return Response(status=204)
        if expired:
            raise Gone("The events of this Turn are no longer kept; the Turn itself is: GET /api/turns/" + turn.id)
        self._enter(caller.owner_id)

        def body() -> Iterator[str]:
            yield ": open\nretry: 1000\n\n"
            for message in self.messages(turn.id, after, caller):
                yield ": still here\n\n" if message is None else str(message)

        response = Response(body(), mimetype="text/event-stream", headers=HEADERS)
        # Called by the server in every case, also when the client is gone before the first byte.
        response.call_on_close(lambda: self._leave(caller.owner_id))
        return response

    def _enter(self, owner_id: str) -> None:
        with self._lock:
            if self._open.total() >= self._max_streams or self._open[owner_id] >= self._per_owner:
                raise LimitReached("too_many_streams", "Too many streams are open; close some.", retry_after_s=2)
            self._open[owner_id] += 1

    def _leave(self, owner_id: str) -> None:
        with self._lock:
            self._open[owner_id] -= 1

    def _is_live(self, caller: Caller) -> bool:
        with self._database.read() as tx:
            return bool(live_token_ids(tx, {caller.token_id}))


def parse_after() -> int:
    """Where a stream or a page of events begins: `Last-Event-ID`, else `?after=`, else 0. Raises InvalidInput."""
    for name, text in (("Last-Event-ID", request.headers.get("Last-Event-ID")), ("after", request.args.get("after"))):
        if text is None:
            continue
        if not text.isascii() or not text.isdecimal() or len(text) > _SEQ_DIGITS:
            message = "Must be the number of an event."
            raise InvalidInput(f"{name}: {message}", errors={name: [message]})
        return int(text)
    return 0


def prefers_json() -> bool:
    """Whether the request wants a page of events rather than a stream."""
    best: Any = request.accept_mimetypes.best_match(["text/event-stream", "application/json"])
    return bool(best == "application/json")
