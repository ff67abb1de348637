"""What the model is writing right now: drafts for connected readers and one bounded snapshot for those who join."""

import time
from datetime import UTC, datetime
from typing import Final

from fleet_shared.contract.frames import encode
from fleet_shared.domain.events import (
    Code,
    CodeDelta,
    Draft,
    DraftSnapshot,
    Envelope,
    Fact,
    IterationStarted,
    ReasoningDelta,
    Scope,
)
from fleet_shared.messaging.live import LivePublisher

#: Seconds between renewals of the snapshot.
RENEWAL_S: Final = 0.25
#: Characters kept of each text, well below the 64 KiB of a message.
TEXT_LIMIT: Final = 12_000


class DraftBoard:
    """The drafts of one attempt's root loop. Used by one thread at a time."""

    def __init__(self, publisher: LivePublisher, turn_id: str, attempt: int, run_id: str) -> None:
        self._publisher = publisher
        self._turn_id = turn_id
        self._attempt = attempt
        self._run_id = run_id
        self._n = 0
        self._reasoning = ""
        self._code = ""
        self._renewed = 0.0
        self._has_snapshot = False

    def show(self, draft: Draft, scope: Scope) -> None:
        """Publish a draft and keep the snapshot current."""
        self._publisher.draft(self._turn_id, draft.type, self._encode(draft, scope))
        if scope:
            return
        if isinstance(draft, ReasoningDelta | CodeDelta) and draft.n != self._n:
            self._n, self._reasoning, self._code = draft.n, "", ""
        if isinstance(draft, ReasoningDelta):
            self._reasoning = (self._reasoning + draft.text)[-TEXT_LIMIT:]
        elif isinstance(draft, CodeDelta):
            self._code = (self._code + draft.text)[-TEXT_LIMIT:]
        elif isinstance(draft, DraftSnapshot):
            self._n, self._reasoning, self._code = draft.n, draft.reasoning, draft.code
        self._renew()

    def settle(self, fact: Fact, scope: Scope) -> None:
        """The authoritative text is there: the snapshot is no longer needed."""
        if not scope and isinstance(fact, Code | IterationStarted):
            self.clear()

    def clear(self) -> None:
        """Remove the snapshot."""
        self._reasoning = self._code = ""
        if self._has_snapshot:
            self._publisher.snapshot(self._turn_id, None)
            self._has_snapshot = False

    def _renew(self) -> None:
        now = time.monotonic()
        if now - self._renewed < RENEWAL_S:
            return
        self._renewed = now
        self._has_snapshot = True
        snapshot = DraftSnapshot(self._n, self._reasoning, self._code)
        self._publisher.snapshot(self._turn_id, self._encode(snapshot, ()))

    def _encode(self, draft: Draft, scope: Scope) -> str:
        envelope = Envelope(
            turn_id=self._turn_id, at=datetime.now(UTC), run_id=self._run_id, attempt=self._attempt, scope=scope
        )
        return encode(draft, envelope)
