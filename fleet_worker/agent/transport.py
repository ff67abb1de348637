"""Sockets of one Run's model calls, which any thread can abort: the only way to end a blocked read at once.

`close()` and exceptions set from other threads do not wake a blocked `recv` (measured); `shutdown` of its socket does.
Connecting and the TLS handshake have no socket to shut down yet, so they run on a helper thread that is left behind.
"""

import contextlib
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dspy._vendor.lm15.transports import ConnectError, StdlibTransport


class AbortableTransport(StdlibTransport):
    """lm15's standard transport with `abort`, and with a list of hosts it may talk to."""

    def __init__(self, *, may_reach: Callable[[str], bool], **options: Any) -> None:
        super().__init__(**options)
        self._may_reach = may_reach
        self._changed = threading.Condition()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.is_aborted = False

    def abort(self) -> None:
        """End every call under way and refuse new ones."""
        with self._changed:
            self.is_aborted = True
            for live in list(self._sockets):
                _shut(live)
            self._changed.notify_all()

    def _open(self, parsed: Any, **options: Any) -> Any:
        if not self._may_reach(parsed.host):
            raise ConnectError(f"{parsed.host} is not the address of this model")
        found: dict[str, Any] = {}

        def connect() -> None:
            try:
                found["connection"] = super(AbortableTransport, self)._open(parsed, **options)
            except BaseException as error:  # noqa: BLE001  # handed to the waiting thread as it is
                found["error"] = error
            with self._changed:
                connection = found.get("connection")
                if connection is not None:
                    self._sockets.add(connection.sock)
                    if self.is_aborted:
                        _shut(connection.sock)
                self._changed.notify_all()

        threading.Thread(target=connect, name="model-connect", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: found or self.is_aborted)
        if self.is_aborted:
            raise ConnectError("the Run was stopped")
        if "error" in found:
            raise found["error"]
        return found["connection"]


def _shut(live: socket.socket) -> None:
    with contextlib.suppress(OSError):
        live.shutdown(socket.SHUT_RDWR)
