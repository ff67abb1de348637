"""The access log: a line per request of the API, each WebSocket upgrade one request, with the bytes both ways."""

import asyncio
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

from aiohttp import web

ENTRIES_LIMIT: Final = 50_000


@dataclass(slots=True)
class Entry:
    """One request. Bytes are those of bodies and frames; `status` and `ms` are None while it runs."""

    number: int
    at: float
    operation: str
    method: str
    path: str
    sandbox: str | None
    websocket: bool
    status: int | None = None
    ms: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    frames_in: int = 0
    frames_out: int = 0


ENTRY: Final = web.RequestKey("entry", Entry)


class AccessLog:
    """Requests since the start or the last reset."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.dropped = 0
        self._count = 0

    def add(self, request: web.Request) -> Entry:
        """Begin an entry for a request."""
        self._count += 1
        entry = Entry(
            number=self._count,
            at=round(time.time(), 4),
            operation=request.match_info.route.name or "unknown",
            method=request.method,
            path=request.path_qs,
            sandbox=request.match_info.get("sandbox"),
            websocket=request.headers.get("Upgrade", "").lower() == "websocket",
        )
        if len(self.entries) < ENTRIES_LIMIT:
            self.entries.append(entry)
        else:
            self.dropped += 1
        return entry

    def reset(self) -> None:
        """Forget everything so far."""
        self.entries.clear()
        self.dropped = 0

    def describe(self) -> dict[str, Any]:
        """All entries and their sums, as JSON values.

        The SDK's attempts at its event channel, which it does without, are told apart and not counted.
        """
        counted = [entry for entry in self.entries if entry.operation != "events"]
        return {
            "requests": [asdict(entry) for entry in counted],
            "count": len(counted),
            "by_operation": dict(Counter(entry.operation for entry in counted)),
            "bytes_in": sum(entry.bytes_in for entry in counted),
            "bytes_out": sum(entry.bytes_out for entry in counted),
            "dropped": self.dropped,
            "event_channel_attempts": len(self.entries) - len(counted),
        }


def access_middleware(log: AccessLog) -> Any:
    """Logs every request of the API; the server's own /fleet endpoints are not part of it."""

    @web.middleware
    async def record(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/fleet/"):
            untold: web.StreamResponse = await handler(request)
            return untold
        entry = log.add(request)
        request[ENTRY] = entry
        started = asyncio.get_running_loop().time()
        try:
            response: web.StreamResponse = await handler(request)
            entry.status = response.status
            if isinstance(response, web.Response) and isinstance(response.body, bytes):
                entry.bytes_out += len(response.body)
            return response
        finally:
            entry.ms = round((asyncio.get_running_loop().time() - started) * 1000, 2)
            if not entry.websocket:
                entry.bytes_in = request.content.total_bytes

    return record


def entry_of(request: web.Request) -> Entry:
    """The log entry of a running request."""
    return request[ENTRY]
