"""Delays the bytes of a server's connections, both ways, without a second connection in between. Healthy: no cost,
no copy."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

IN_FLIGHT_BYTES: Final = 4 * 1024 * 1024
"""Bytes one direction of one connection may hold back before its sender is paused, as a TCP window does."""

Bytes = bytes | bytearray | memoryview


class Link:
    """The state of all connections of one server: how long bytes travel, and until when nothing moves."""

    def __init__(self) -> None:
        self.latency_s = 0.0
        self.inward_stalled_until = 0.0
        self.outward_stalled_until = 0.0

    def stall(self, inward: bool, seconds: float) -> None:
        """Let nothing through one way (towards the server or away from it) from now on for some seconds."""
        until = asyncio.get_running_loop().time() + seconds
        if inward:
            self.inward_stalled_until = until
        else:
            self.outward_stalled_until = until


class _Line:
    """One direction of one connection: delivers steps in order, each no sooner than its time."""

    def __init__(self, link: Link, *, inward: bool) -> None:
        self._link = link
        self._inward = inward
        self._loop = asyncio.get_running_loop()
        self._steps: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.held = 0
        self.on_drained: Callable[[], None] = lambda: None

    def _stall(self) -> float:
        return self._link.inward_stalled_until if self._inward else self._link.outward_stalled_until

    @property
    def passes(self) -> bool:
        """Whether a step may happen at once."""
        return not self._steps and self._link.latency_s == 0 and self._stall() <= self._loop.time()

    def put(self, size: int, step: Callable[[], None]) -> None:
        self._steps.append((self._loop.time() + self._link.latency_s, size, step))
        self.held += size
        if self._timer is None:
            self._arm()

    def clear(self) -> None:
        self._steps.clear()
        self.held = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due = max(self._steps[0][0], self._stall())
        self._timer = self._loop.call_at(due, self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        now = self._loop.time() + 0.0005  # timers fire up to half a millisecond early
        while self._steps and max(self._steps[0][0], self._stall()) <= now:
            _, size, step = self._steps.popleft()
            self.held -= size
            step()
        if self._steps:
            self._arm()
        self.on_drained()


class LaggedTransport(asyncio.Transport):
    """What the server writes to: the true transport, after the delay."""

    def __init__(self, transport: asyncio.Transport, inner: asyncio.Protocol, link: Link) -> None:
        super().__init__()
        self._transport = transport
        self._inner = inner
        self._line = _Line(link, inward=False)
        self._line.on_drained = self._drained
        self._closing = False
        self._paused = False
        self._inner_reads = True
        self._holds_back = False

    def write(self, data: Bytes) -> None:
        if self._line.passes:
            self._transport.write(data)
            return
        kept = bytes(data)
        self._line.put(len(kept), lambda: self._transport.write(kept))
        if self._line.held > IN_FLIGHT_BYTES and not self._paused:
            self._paused = True
            self._inner.pause_writing()

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        self.write(b"".join(list_of_data))

    def _drained(self) -> None:
        if self._paused and self._line.held < IN_FLIGHT_BYTES // 2:
            self._paused = False
            self._inner.resume_writing()

    def write_eof(self) -> None:
        self._line.put(0, self._transport.write_eof)

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def close(self) -> None:
        self._closing = True
        if self._line.passes:
            self._transport.close()
        else:
            self._line.put(0, self._transport.close)

    def abort(self) -> None:
        self._closing = True
        self._line.clear()
        self._transport.abort()

    def lost(self) -> None:
        """The connection is gone; nothing more can be delivered."""
        self._closing = True
        self._line.clear()

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._line.held + self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._inner_reads = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._inner_reads = True
        if not self._holds_back:
            self._transport.resume_reading()

    def hold_back(self, held: bool) -> None:
        """Take no more from the client while the line towards the server is full."""
        self._holds_back = held
        if held:
            self._transport.pause_reading()
        elif self._inner_reads and not self._transport.is_closing():
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        raise NotImplementedError("a delayed connection keeps its protocol")

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner


class LaggedProtocol(asyncio.Protocol):
    """Stands between a connection and the server's own protocol for it."""

    def __init__(self, inner: asyncio.Protocol, link: Link) -> None:
        self._inner = inner
        self._link = link
        self._line = _Line(link, inward=True)
        self._line.on_drained = self._drained
        self._transport: asyncio.Transport | None = None
        self._outward: LaggedTransport | None = None
        self._held_back = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outward = LaggedTransport(self._transport, self._inner, self._link)
        self._inner.connection_made(self._outward)

    def data_received(self, data: bytes) -> None:
        if self._line.passes:
            self._inner.data_received(data)
            return
        self._line.put(len(data), lambda: self._inner.data_received(data))
        if self._line.held > IN_FLIGHT_BYTES and not self._held_back and self._outward is not None:
            self._held_back = True
            self._outward.hold_back(True)

    def _drained(self) -> None:
        if self._held_back and self._line.held < IN_FLIGHT_BYTES // 2 and self._outward is not None:
            self._held_back = False
            self._outward.hold_back(False)

    def eof_received(self) -> bool | None:
        if self._line.passes:
            return self._inner.eof_received()
        self._line.put(0, self._end_input)
        return True

    def _end_input(self) -> None:
        if not self._inner.eof_received() and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._line.clear()
        if self._outward is not None:
            self._outward.lost()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
