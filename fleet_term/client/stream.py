"""The events of a Turn, once each and in order, whatever happens to the connection.

Built on what was measured of requests and sseclient-py: bytes are taken with `read1` (anything else delays events or
costs quadratic time), a reader is stopped by shutting its socket down (closing blocks), and neither a clean end of the
stream nor half an event counts as anything but a broken connection.
"""

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import requests
import sseclient
import urllib3

from fleet_term.client.errors import ApiError, ConnectionFailed

#: Seconds to connect, and of silence after which the connection counts as dead (three heartbeats).
CONNECT_S: Final = 5.0
SILENCE_S: Final = 45.0
#: Longest wait between two tries, in seconds, and how long to try without any progress.
MAX_WAIT_S: Final = 15.0
_RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_BROKEN: Final = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    OSError,
    UnicodeDecodeError,
    AttributeError,  # urllib3 when a stream is shut down while it is read (measured)
)
TERMINAL: Final = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})


@dataclass(frozen=True, slots=True)
class Event:
    """A fact (`seq` is its number) or a draft (None); `data` is the message's JSON, `fields` the same as a dict."""

    type: str
    seq: int | None
    data: str
    fields: dict[str, Any]

    @property
    def is_terminal(self) -> bool:
        """Whether the Turn ends with this fact."""
        return self.seq is not None and self.type in TERMINAL


@dataclass(frozen=True, slots=True)
class Link:
    """The state of the connection, for a status line: `is_open`, or the reason and the wait before the next try."""

    is_open: bool
    reason: str = ""
    wait_s: float = 0.0
    attempt: int = 0


class EventStream:
    """Iterate it to get the events after `after` up to the terminal one. `stop` ends it from any thread at once."""

    def __init__(
        self,
        open_stream: Callable[[int], requests.Response],
        *,
        after: int = 0,
        on_link: Callable[[Link], None] = lambda _: None,
        give_up_s: float | None = None,
    ) -> None:
        """`open_stream` requests the events after a number; `give_up_s` bounds the tries while nothing comes."""
        self._open_stream = open_stream
        self._on_link = on_link
        self._give_up_s = give_up_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._response: requests.Response | None = None
        self.last = after
        self.retry_s = 1.0

    def stop(self) -> None:
        """End the iteration."""
        self._stopping.set()
        with self._lock:
            response = self._response
        if response is not None:
            _shut(response)

    def __iter__(self) -> Iterator[Event]:
        attempt, waited = 0, 0.0
        while not self._stopping.is_set():
            reason, before = "the connection broke", self.last
            try:
                response = self._open_stream(self.last)
                with self._lock:
                    self._response = response
                if response.status_code == 204:
                    return
                if response.status_code == 200:
                    self._on_link(Link(True))
                    for event in self._events(response):
                        yield event
                        if event.is_terminal:
                            return
                elif response.status_code in _RETRIED:
                    reason = f"the server answered {response.status_code}"
                else:
                    raise api_error(response)
            except _BROKEN as error:
                reason = _reason(error)
            except ConnectionFailed as error:
                reason = str(error)
            finally:
                with self._lock:
                    response_, self._response = self._response, None
                if response_ is not None:
                    response_.close()
            if self.last > before:
                attempt, waited = 0, 0.0
            wait = min(MAX_WAIT_S, self.retry_s * 2.0**attempt) * random.uniform(0.5, 1.0)
            attempt = min(attempt + 1, 6)
            if self._give_up_s is not None and waited + wait > self._give_up_s:
                raise ConnectionFailed(reason)
            waited += wait
            if self._stopping.is_set():
                return
            self._on_link(Link(False, reason, wait, attempt))
            self._stopping.wait(wait)

    def _events(self, response: requests.Response) -> Iterator[Event]:
        for message in sseclient.SSEClient(_bytes(response, self)).events():
            if self._stopping.is_set():
                return
            try:
                fields = json.loads(message.data)
            except ValueError:
                return  # half a message at the end of a broken stream
            if not isinstance(fields, dict):
                return
            seq = fields.get("seq")
            if seq is not None:
                if seq <= self.last:
                    continue
                if seq != self.last + 1:
                    return  # a gap: connect again from the last one
                self.last = seq
            yield Event(message.event, seq, message.data, fields)


def _bytes(response: requests.Response, stream: EventStream) -> Iterator[bytes]:
    """The bytes of a response as they arrive; also hears the server's `retry:`."""
    while data := response.raw.read1(65536, decode_content=True):
        start = data.find(b"retry:")
        if start >= 0:
            digits = data[start + 6 : start + 16].split(b"\n")[0].strip()
            if digits.isdigit():
                stream.retry_s = max(0.1, int(digits) / 1000)
        yield data


def api_error(response: requests.Response) -> ApiError:
    """The refusal that a response tells of."""
    try:
        problem = response.json()
    except (ValueError, *_BROKEN):
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    detail = str(problem.get("detail") or f"The server answered {response.status_code}.")
    return ApiError(response.status_code, str(problem.get("code") or "unknown"), detail, problem)


def _shut(response: requests.Response) -> None:
    try:
        response.raw.shutdown()
    except (ValueError, RuntimeError, OSError, AttributeError):
        return  # it is at its end already


def _reason(error: BaseException) -> str:
    name = type(error).__name__
    return {"ReadTimeoutError": "the server fell silent", "ConnectTimeout": "the server does not answer"}.get(
        name, "the connection broke"
    )
