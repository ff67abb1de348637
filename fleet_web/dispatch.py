"""Tells the workers of accepted and cancelled Turns, on a thread of its own: no request ever waits for Redis."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fleet_shared.domain.errors import FleetError

log = logging.getLogger(__name__)

#: Errands that may wait; beyond it they are dropped, the sweep finds what was not done.
WAITING: Final = 10_000


@dataclass(order=True, slots=True)
class _Errand:
    due: float
    number: int
    work: Callable[[], object] = field(compare=False)


class Dispatcher:
    """Runs errands in order of their time on one daemon thread."""

    def __init__(self) -> None:
        self._errands: queue.PriorityQueue[_Errand] = queue.PriorityQueue(WAITING)
        self._numbers = iter(range(1 << 62))
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name="dispatcher", daemon=True).start()

    def soon(self, work: Callable[[], object], *, after_s: float = 0.0) -> None:
        """Do `work` on the dispatcher's thread, not before `after_s` seconds."""
        with self._lock:
            errand = _Errand(time.monotonic() + after_s, next(self._numbers), work)
        try:
            self._errands.put_nowait(errand)
        except queue.Full:
            log.warning("dispatcher.full")

    def _run(self) -> None:
        while True:
            errand = self._errands.get()
            wait = errand.due - time.monotonic()
            if wait > 0:
                # Something earlier may arrive meanwhile: look again in short steps.
                self._errands.put(errand)
                time.sleep(min(wait, 0.02))
                continue
            try:
                errand.work()
            except FleetError as error:
                log.warning("dispatcher.failed", extra={"reason": error.code})
