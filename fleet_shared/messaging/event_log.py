"""The writer of the event log: facts of all Turns of a process go to SQL first, grouped, and only then to Redis.

One thread per process. Each transaction takes what gathered while the last one ran. A Turn whose attempt no longer
holds it is left out, and its Run is told that it lost. A database that is away makes `append` wait: the agent pauses
within its deadline, no fact is dropped.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from fleet_shared.contract.frames import encode, split
from fleet_shared.domain.errors import FleetError
from fleet_shared.domain.events import Draft, Envelope, Fact, Scope
from fleet_shared.messaging.drafts import DraftBoard
from fleet_shared.messaging.live import LivePublisher
from fleet_shared.store import Database, Transaction
from fleet_shared.store.events import NewEvent, StoredEvent, append_fenced, lock_turns_for_append

log = logging.getLogger(__name__)

#: Facts and characters a Turn may have waiting before `append` blocks.
WAITING_FACTS: Final = 1000
WAITING_CHARACTERS: Final = 4_000_000
#: Facts of one Turn written in one transaction.
BATCH_FACTS: Final = 500
_RETRY_S: Final = 0.5


class LogFenced(FleetError):
    """Another attempt has taken the Turn; nothing of this one is stored any more."""


class TurnLog:
    """The log of one attempt at one Turn. Safe to use from any thread."""

    def __init__(
        self, writer: "EventWriter", *, turn_id: str, run_id: str, attempt: int, on_fenced: Callable[[], None]
    ) -> None:
        self.turn_id = turn_id
        self.run_id = run_id
        self.attempt = attempt
        self._writer = writer
        self._on_fenced = on_fenced
        self._waiting: list[NewEvent] = []
        self._characters = 0
        self._in_flight = 0
        self._fenced = False
        self._drafts = DraftBoard(writer.publisher, turn_id, attempt, run_id)

    def append(self, told: Fact | Draft, scope: Scope = ()) -> None:
        """Queue a fact, or show a draft. Blocks while the queue is full. Raises LogFenced."""
        if isinstance(told, Draft):
            self._drafts.show(told, scope)
            return
        self._drafts.settle(told, scope)
        envelope = self._envelope(scope)
        events = [NewEvent(part.type, encode(part, envelope)) for part in split(told)]
        self._writer.put(self, events)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is stored; False when that took longer. Raises LogFenced."""
        return self._writer.wait_stored(self, timeout_s)

    def bodies(self, facts: Sequence[Fact]) -> list[NewEvent]:
        """Facts ready to be stored by the transaction that ends the Turn."""
        envelope = self._envelope(())
        return [NewEvent(part.type, encode(part, envelope)) for fact in facts for part in split(fact)]

    def close(self) -> None:
        """Forget the Turn: its drafts vanish; what was queued has been flushed or is no longer wanted."""
        self._drafts.clear()
        self._writer.forget(self)

    def _envelope(self, scope: Scope) -> Envelope:
        return Envelope(
            turn_id=self.turn_id, at=datetime.now(UTC), run_id=self.run_id, attempt=self.attempt, scope=scope
        )


class EventWriter:
    """Writes for a whole process. `start` begins; `stop` writes what is queued within five seconds."""

    def __init__(self, database: Database, publisher: LivePublisher) -> None:
        self.publisher = publisher
        self._database = database
        self._condition = threading.Condition()
        self._logs: dict[str, TurnLog] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="event-writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued and end."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def open(self, *, turn_id: str, run_id: str, attempt: int, on_fenced: Callable[[], None]) -> TurnLog:
        """The log of an attempt; `on_fenced` is called once, from the writer's thread, when it lost its Turn."""
        turn_log = TurnLog(self, turn_id=turn_id, run_id=run_id, attempt=attempt, on_fenced=on_fenced)
        with self._condition:
            self._logs[run_id] = turn_log
        return turn_log

    def put(self, turn_log: TurnLog, events: Sequence[NewEvent]) -> None:
        """Queue events of a log; blocks while its queue is full. Raises LogFenced."""
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    turn_log._fenced
                    or (len(turn_log._waiting) < WAITING_FACTS and turn_log._characters < WAITING_CHARACTERS)
                )
            )
            if turn_log._fenced:
                raise LogFenced
            turn_log._waiting.extend(events)
            turn_log._characters += sum(len(item.body) for item in events)
            self._condition.notify_all()

    def wait_stored(self, turn_log: TurnLog, timeout_s: float) -> bool:
        """Whether everything queued of a log was stored within `timeout_s`. Raises LogFenced."""
        with self._condition:
            stored = self._condition.wait_for(
                lambda: turn_log._fenced or (not turn_log._waiting and not turn_log._in_flight), timeout=timeout_s
            )
            if turn_log._fenced:
                raise LogFenced
            return stored

    def forget(self, turn_log: TurnLog) -> None:
        """Drop a log and what it had queued."""
        with self._condition:
            self._logs.pop(turn_log.run_id, None)
            turn_log._waiting.clear()
            turn_log._characters = 0
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._stopping or any(item._waiting for item in self._logs.values()))
                batch = self._take()
                if not batch:
                    if self._stopping:
                        return
                    continue
            written = self._write(batch)
            if not written and self._stopping:
                return

    def _take(self) -> dict[TurnLog, list[NewEvent]]:
        batch: dict[TurnLog, list[NewEvent]] = {}
        for turn_log in self._logs.values():
            if turn_log._waiting:
                events = turn_log._waiting[:BATCH_FACTS]
                del turn_log._waiting[: len(events)]
                turn_log._in_flight += len(events)
                batch[turn_log] = events
        return batch

    def _write(self, batch: dict[TurnLog, list[NewEvent]]) -> bool:
        """Store a batch; whether the database took part of it. What was not stored goes back to its queue."""
        try:
            outcome = self._database.run(lambda tx: _append(tx, batch))
        except FleetError:
            self._settle(batch, {})
            log.warning("event_log.database_away", extra={"turns": len(batch)})
            time.sleep(_RETRY_S)
            return False
        except Exception:  # one bad Turn must not hold up the others: each is tried by itself
            log.exception("event_log.batch_failed", extra={"turns": len(batch)})
            outcome = self._write_one_by_one(batch)
        self._settle(batch, outcome)
        if not outcome:
            time.sleep(0.005)  # every row was locked by somebody else
        return True

    def _write_one_by_one(self, batch: dict[TurnLog, list[NewEvent]]) -> "dict[TurnLog, int | None]":
        outcome: dict[TurnLog, int | None] = {}
        for turn_log, events in batch.items():
            one = {turn_log: events}
            try:
                outcome.update(self._database.run(lambda tx, one=one: _append(tx, one)))  # type: ignore[misc]
            except Exception:  # what cannot be stored ends its own Run alone
                log.exception("event_log.turn_failed", extra={"turn_id": turn_log.turn_id})
                outcome[turn_log] = None
        return outcome

    def _settle(self, batch: dict[TurnLog, list[NewEvent]], outcome: "dict[TurnLog, int | None]") -> None:
        fenced: list[TurnLog] = []
        with self._condition:
            for turn_log, events in batch.items():
                turn_log._in_flight -= len(events)
                if turn_log not in outcome:
                    turn_log._waiting[:0] = events
                    continue
                turn_log._characters -= sum(len(item.body) for item in events)
                first = outcome[turn_log]
                if first is None:
                    turn_log._fenced = True
                    turn_log._waiting.clear()
                    fenced.append(turn_log)
                else:
                    stored = [StoredEvent(first + i, item.type, item.body) for i, item in enumerate(events)]
                    self.publisher.facts(turn_log.turn_id, stored)
            self._condition.notify_all()
        for turn_log in fenced:
            turn_log._on_fenced()


def _append(tx: Transaction, batch: dict[TurnLog, list[NewEvent]]) -> "dict[TurnLog, int | None]":
    """The first number of each Turn's events, None for a fenced one; Turns locked by somebody else are left out."""
    free = lock_turns_for_append(tx, [item.turn_id for item in batch])
    return {
        turn_log: append_fenced(tx, turn_log.turn_id, turn_log.attempt, events)
        for turn_log, events in sorted(batch.items(), key=lambda item: item[0].turn_id)
        if turn_log.turn_id in free
    }
