"""The scope of one Run: why and when it must stop, and who has to be told.

Everything that waits - model calls, cells, tools, retries - asks the scope before it starts and registers a callback
that ends its wait. `RunStopped` derives from BaseException on purpose: DSPy, its adapters and its callbacks catch
`Exception`, and a stop must pass through all of them (measured on DSPy 3.4.0).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum


class StopReason(StrEnum):
    """Why a Run stops before its answer."""

    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    BUDGET = "budget"
    LOST = "lost"
    HANDOVER = "handover"


class RunStopped(BaseException):
    """The Run has to stop now."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Scope:
    """One Run's stop flag and deadlines. Safe to use from any thread; times are `time.monotonic()` seconds."""

    def __init__(self, *, soft_deadline: float, hard_deadline: float) -> None:
        self._soft_deadline = soft_deadline
        self._hard_deadline = hard_deadline
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._reason: StopReason | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next_key = 0

    @classmethod
    def lasting(cls, seconds: float) -> "Scope":
        """A scope whose deadlines are both `seconds` from now."""
        end = time.monotonic() + seconds
        return cls(soft_deadline=end, hard_deadline=end)

    @property
    def reason(self) -> StopReason | None:
        """Why the Run stops, None while it goes on."""
        return self._reason

    def stop(self, reason: StopReason) -> None:
        """Stop the Run; the first reason counts. Callbacks run in the calling thread and must not block."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
            self._stopped.set()
        for callback in callbacks:
            callback()

    @contextlib.contextmanager
    def on_stop(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have `callback` called once if the Run stops inside the block, at once when it already has."""
        with self._lock:
            key = self._next_key
            self._next_key += 1
            late = self._reason is not None
            if not late:
                self._callbacks[key] = callback
        if late:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)

    def check(self) -> None:
        """Raise RunStopped when the Run was stopped or its hard deadline passed."""
        if self._reason is None and time.monotonic() >= self._hard_deadline:
            self.stop(StopReason.DEADLINE)
        if self._reason is not None:
            raise RunStopped(self._reason)

    def wait(self, seconds: float) -> None:
        """Sleep that ends early, with RunStopped, when the Run stops."""
        self._stopped.wait(max(0.0, min(seconds, self.remaining())))
        self.check()

    def remaining(self) -> float:
        """Seconds until the hard deadline, never negative."""
        return max(0.0, self._hard_deadline - time.monotonic())

    def soft_remaining(self) -> float:
        """Seconds until the loop should hand in what it has, never negative."""
        return max(0.0, self._soft_deadline - time.monotonic())
