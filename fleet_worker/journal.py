"""The journal of one attempt: answers of earlier attempts, each given out once, and new ones kept before their use."""

import threading
from collections import defaultdict, deque

from fleet_shared.messaging.event_log import LogFenced
from fleet_shared.store import Database
from fleet_shared.store.journal import JournalEntry, earlier_answers, record_answer
from fleet_worker.agent.seams import JournalKey


class TurnJournal:
    """Reads the earlier attempts' answers once, at the start. Safe to use from any thread."""

    def __init__(self, database: Database, turn_id: str, attempt: int) -> None:
        self._database = database
        self._turn_id = turn_id
        self._attempt = attempt
        self._lock = threading.Lock()
        self._kept: dict[JournalKey, deque[str]] = defaultdict(deque)
        if attempt > 1:
            for entry in database.run(lambda tx: earlier_answers(tx, turn_id, before_attempt=attempt)):
                self._kept[JournalKey(entry.scope, entry.iteration, entry.digest)].append(entry.response)

    def lookup(self, key: JournalKey) -> str | None:
        """The next answer an earlier attempt got to this request."""
        with self._lock:
            kept = self._kept.get(key)
            return kept.popleft() if kept else None

    def record(self, key: JournalKey, response: str) -> None:
        """Keep an answer. Raises LogFenced when another attempt holds the Turn."""
        entry = JournalEntry(key.scope, key.iteration, key.digest, response)
        if not self._database.run(lambda tx: record_answer(tx, self._turn_id, self._attempt, entry)):
            raise LogFenced
