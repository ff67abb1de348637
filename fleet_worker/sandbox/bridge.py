"""The host's side of the stream to a supervisor: cells, tool calls and file requests over numbered lines.

Owns numbering, acknowledgement, re-attachment after a drop and the watch over silence. Knows nothing of Daytona: it is
given a function that opens a transport. All methods block their caller; they may be called from any thread.
"""

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from fleet_shared.domain.errors import SandboxLost
from fleet_worker.sandbox.driver.lines import Message, Receiver, Sender, line_of
from fleet_worker.sandbox.protocol import (
    Answer,
    BadMessage,
    CellDone,
    CellOutput,
    ToolCall,
    Welcome,
    parse,
    parse_welcome,
)

log = logging.getLogger(__name__)

#: Seconds for the answer to a hello, and of silence after which the stream counts as lost.
HELLO_S: Final = 10.0
SILENCE_S: Final = 30.0
HEARTBEAT_S: Final = 10.0
#: Tries to attach again after a drop, and the seconds they may take together.
ATTACH_TRIES: Final = 3
ATTACH_S: Final = 30.0
#: Acknowledge at the latest after this many lines.
ACK_LINES: Final = 8
ACK_DELAY_S: Final = 0.1
#: Malformed messages after which a sandbox is given up.
BAD_LIMIT: Final = 20


class Transport(Protocol):
    """A byte stream to the supervisor."""

    def send(self, data: bytes) -> None:
        """Queue bytes; never blocks for long. Errors show as a loss."""

    def close(self) -> None:
        """Detach; the supervisor lives on."""


class Attach(Protocol):
    """Opens a transport. Raises SandboxLost when the supervisor cannot be reached any more."""

    def __call__(self, *, on_data: Callable[[bytes], None], on_lost: Callable[[], None]) -> Transport: ...


class Superseded(Exception):
    """Another host with a higher (turn, attempt) has taken the sandbox."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream ended for good."""

    error: SandboxLost | Superseded


LaneMessage = CellOutput | ToolCall | CellDone | Lost


class Bridge:
    """One host's connection to one supervisor, for one attempt at one Turn."""

    def __init__(self, attach: Attach, *, turn_sequence: int, attempt: int) -> None:
        self._attach = attach
        self._pair = (turn_sequence, attempt)
        self._connection = secrets.token_hex(6)
        self._lock = threading.RLock()
        self._sender = Sender(self._connection)
        self._receiver = Receiver()
        self._transport: Transport | None = None
        self._generation = 0
        self._welcomes: queue.SimpleQueue[Welcome | Superseded] = queue.SimpleQueue()
        self._lanes: dict[str, queue.SimpleQueue[LaneMessage]] = {}
        self._answers: dict[str, queue.SimpleQueue[Answer | Lost]] = {}
        self._request_number = 0
        self._acked = 0
        self._heard_at = time.monotonic()
        self._dead: Lost | None = None
        self._closed = threading.Event()
        self._reattach = threading.Event()
        self._bad = 0
        self.drops = 0

    def open(self) -> Welcome:
        """Attach and be obeyed. Raises SandboxLost or Superseded."""
        welcome = self._hello()
        threading.Thread(target=self._watch, name="bridge-watch", daemon=True).start()
        return welcome

    def close(self) -> None:
        """Detach; the supervisor, its interpreter and its cells live on."""
        self._closed.set()
        self._reattach.set()
        with self._lock:
            transport, self._transport = self._transport, None
            self._generation += 1
        if transport is not None:
            transport.close()

    def lane(self, name: str) -> "queue.SimpleQueue[LaneMessage]":
        """The queue of what a lane tells; made at the first call."""
        with self._lock:
            messages = self._lanes.setdefault(name, queue.SimpleQueue())
            if self._dead is not None:
                messages.put(self._dead)
            return messages

    def leave_lane(self, name: str) -> None:
        """End a lane's interpreter process."""
        with self._lock:
            self._lanes.pop(name, None)
        self.send({"t": "close", "lane": name})

    def send(self, message: Message) -> None:
        """Send a message reliably; it is sent again after a drop. Does nothing once the sandbox is lost."""
        with self._lock:
            if self._dead is None:
                self._sender.put(message)
                self._flush()

    def interrupt(self, lane: str) -> None:
        """Stop the lane's running cell."""
        self.send({"t": "int", "lane": lane})

    def request(self, operation: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """The result of a file operation. Raises SandboxLost, or ValueError with what the supervisor says."""
        answers: queue.SimpleQueue[Answer | Lost] = queue.SimpleQueue()
        with self._lock:
            self._request_number += 1
            request_id = f"r{self._request_number}"
            self._answers[request_id] = answers
            if self._dead is not None:
                answers.put(self._dead)
        self.send({"t": "req", "id": request_id, "op": operation, "args": args})
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            raise SandboxLost(f"The sandbox did not answer a {operation} within {timeout_s:g} s.") from None
        finally:
            with self._lock:
                self._answers.pop(request_id, None)
        if isinstance(answer, Lost):
            raise answer.error
        if not answer.ok:
            raise ValueError(answer.error)
        return answer.value

    def _hello(self) -> Welcome:
        with self._lock:
            self._generation += 1
            generation = self._generation
        transport = self._attach(
            on_data=lambda data: self._on_data(generation, data), on_lost=lambda: self._on_lost(generation)
        )
        with self._lock:
            self._transport = transport
            self._heard_at = time.monotonic()
            turn, attempt = self._pair
            hello = {"t": "hello", "turn": turn, "attempt": attempt, "c": self._connection}
            transport.send(line_of({**hello, "recv": self._receiver.received}))
        try:
            answer = self._welcomes.get(timeout=HELLO_S)
        except queue.Empty:
            transport.close()
            raise SandboxLost("The sandbox does not answer.") from None
        if isinstance(answer, Superseded):
            transport.close()
            raise answer
        with self._lock:
            self._sender.acknowledged(answer.received)
            if answer.resumed:
                for line in self._sender.again():
                    transport.send(line)
            self._flush()
        return answer

    def _on_data(self, generation: int, data: bytes) -> None:
        with self._lock:
            if generation != self._generation:
                return
            self._heard_at = time.monotonic()
            for message in self._receiver.feed(data):
                self._line(message)
            if self._receiver.received - self._acked >= ACK_LINES:
                self._acknowledge()

    def _line(self, message: Message) -> None:
        if message.get("c") != self._connection:
            return
        match message["t"]:
            case "welcome":
                self._answer_hello(message)
                return
            case "superseded":
                self._welcomes.put(Superseded())
                self._give_up(Superseded())
                return
        if isinstance(message.get("a"), int):
            self._sender.acknowledged(message["a"])
            self._flush()
        whole = self._receiver.accept(message) if message["t"] not in ("ack", "hb") else None
        if whole is not None:
            self._dispatch(whole)

    def _answer_hello(self, message: Message) -> None:
        try:
            self._welcomes.put(parse_welcome(message))
        except BadMessage:
            self._count_bad()

    def _dispatch(self, message: Message) -> None:
        try:
            told = parse(message)
        except BadMessage as error:
            log.warning("bridge.bad_message", extra={"reason": str(error)})
            self._count_bad()
            return
        match told:
            case Answer():
                waiting = self._answers.get(told.id)
                if waiting is not None:
                    waiting.put(told)
            case CellOutput() | ToolCall() | CellDone():
                lane = self._lanes.get(told.lane)
                if lane is not None:
                    lane.put(told)
            case None:
                pass

    def _count_bad(self) -> None:
        self._bad += 1
        if self._bad >= BAD_LIMIT:
            self._give_up(SandboxLost("The sandbox no longer speaks the protocol."))

    def _flush(self) -> None:
        lines = self._sender.ready(self._receiver.received)
        if lines and self._transport is not None:
            self._acked = self._receiver.received
            for line in lines:
                self._transport.send(line)

    def _acknowledge(self) -> None:
        self._acked = self._receiver.received
        if self._transport is not None:
            self._transport.send(line_of({"t": "ack", "a": self._acked, "c": self._connection}))

    def _on_lost(self, generation: int) -> None:
        if generation == self._generation and not self._closed.is_set():
            self._reattach.set()

    def _watch(self) -> None:
        """Acknowledges what is left over, beats, notices silence and attaches again."""
        beat_at = time.monotonic()
        while not self._closed.is_set() and self._dead is None:
            lost = self._reattach.wait(ACK_DELAY_S)
            if self._closed.is_set():
                return
            now = time.monotonic()
            if lost or now - self._heard_at > SILENCE_S:
                self._reattach.clear()
                self._attach_again()
                beat_at = time.monotonic()
                continue
            with self._lock:
                if self._receiver.received > self._acked or now - beat_at >= HEARTBEAT_S:
                    self._acknowledge()
                    beat_at = now

    def _attach_again(self) -> None:
        self.drops += 1
        with self._lock:
            transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        deadline = time.monotonic() + ATTACH_S
        error: SandboxLost | Superseded = SandboxLost()
        for attempt in range(ATTACH_TRIES):
            try:
                self._hello()
                log.info("bridge.attached_again", extra={"drops": self.drops})
                return
            except (SandboxLost, Superseded) as problem:
                error = problem
                if isinstance(problem, Superseded) or time.monotonic() > deadline:
                    break
            if self._closed.wait(0.3 * 2**attempt):
                return
        self._give_up(error)

    def _give_up(self, error: SandboxLost | Superseded) -> None:
        with self._lock:
            if self._dead is not None:
                return
            self._dead = Lost(error)
            for lane in self._lanes.values():
                lane.put(self._dead)
            for waiting in self._answers.values():
                waiting.put(self._dead)
