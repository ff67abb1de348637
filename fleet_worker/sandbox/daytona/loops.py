"""Event loops on threads of their own: one carries the frames of terminals, another all other requests.

Apart because a transfer of many megabytes must not hold up the frame that cancels a cell.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

T = TypeVar("T")


class Loop:
    """An event loop on one thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """The result of a coroutine; cancelled, with TimeoutError, when it takes longer. OSError after `stop`.

        The watchdog is ours: the SDK's own limits use signals, or cannot interrupt a request that hangs.
        """
        if self._loop.is_closed():
            work.close()
            raise OSError("the loop has ended")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout=timeout_s)
        except FutureTimeout:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the loop's thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def stop(self) -> None:
        """End the loop."""
        self.call_soon(self._loop.stop)
        self._thread.join(timeout=2)
        if not self._thread.is_alive():
            self._loop.close()
