"""Numbered and acknowledged JSON lines over a byte stream that may break and come back.

A line is 0x1e, JSON in ASCII, newline. Reliable lines carry `n`; every line carries `a`, the highest number received
without a gap, and `c`, the logical connection it belongs to: a line of another connection is ignored. Long messages
travel as `part` lines. At most WINDOW_LINES lines and WINDOW_BYTES bytes are unacknowledged.
"""

from __future__ import annotations

import collections
import json
from typing import Any, Deque, Dict, List, Optional, Tuple

MARK = b"\x1e"
PART_CHARACTERS = 20_000
WINDOW_LINES = 64
WINDOW_BYTES = 256 * 1024
#: Longest line accepted, and longest message put together from parts.
LINE_LIMIT = 64 * 1024
MESSAGE_LIMIT = 16 * 1024 * 1024


Message = Dict[str, Any]


class Sender:
    """Outgoing reliable lines: waits for window, keeps what is unacknowledged for a resend."""

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.next_n = 1
        self.unacked: Deque[Tuple[int, bytes]] = collections.deque()
        self.unacked_bytes = 0
        self.waiting: Deque[Message] = collections.deque()
        self.part_id = 0

    def put(self, message: Message) -> None:
        """Queue a message, cut into parts when it is long."""
        text = json.dumps(message, separators=(",", ":"))
        if len(text) <= PART_CHARACTERS:
            self.waiting.append(message)
            return
        self.part_id += 1
        count = (len(text) + PART_CHARACTERS - 1) // PART_CHARACTERS
        for i in range(count):
            piece = text[i * PART_CHARACTERS : (i + 1) * PART_CHARACTERS]
            self.waiting.append({"t": "part", "id": self.part_id, "i": i, "of": count, "d": piece})

    def acknowledged(self, n: int) -> None:
        """The other side has everything up to number `n`."""
        while self.unacked and self.unacked[0][0] <= n:
            self.unacked_bytes -= len(self.unacked.popleft()[1])

    def ready(self, ack: int) -> List[bytes]:
        """The lines that may be sent now."""
        lines = []
        while self.waiting and len(self.unacked) < WINDOW_LINES and self.unacked_bytes < WINDOW_BYTES:
            message = dict(self.waiting.popleft(), n=self.next_n, a=ack, c=self.connection)
            line = line_of(message)
            self.unacked.append((self.next_n, line))
            self.unacked_bytes += len(line)
            self.next_n += 1
            lines.append(line)
        return lines

    def again(self) -> List[bytes]:
        """Every unacknowledged line, for a stream that came back."""
        return [line for _, line in self.unacked]


class Receiver:
    """Incoming lines: finds them in a dirty byte stream, drops repeats, puts parts together."""

    def __init__(self) -> None:
        self.received = 0
        self.buffer = b""
        self.parts: List[str] = []

    def feed(self, data: bytes) -> List[Message]:
        """The messages (dicts) completed by `data`; repeats and anything that is no line are dropped."""
        self.buffer += data
        if b"\n" not in data:
            if len(self.buffer) > LINE_LIMIT:
                self.buffer = b""
            return []
        *lines, self.buffer = self.buffer.split(b"\n")
        messages = []
        for line in lines:
            start = line.rfind(MARK)
            if start < 0 or len(line) > LINE_LIMIT:
                continue
            try:
                message = json.loads(line[start + 1 :])
            except (ValueError, RecursionError):
                continue
            if isinstance(message, dict) and isinstance(message.get("t"), str):
                messages.append(message)
        return messages

    def accept(self, message: Message) -> Optional[Message]:
        """The whole message when this reliable line completes one, else None; a gap or a repeat gives None too."""
        n = message.get("n")
        if n is None:
            return message
        if n != self.received + 1:
            return None
        self.received = n
        if message["t"] != "part":
            return message
        if message.get("i") == 0:
            self.parts = []
        self.parts.append(str(message.get("d")))
        if len(self.parts) != message.get("of") or sum(map(len, self.parts)) > MESSAGE_LIMIT:
            return None
        text, self.parts = "".join(self.parts), []
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return whole if isinstance(whole, dict) and isinstance(whole.get("t"), str) else None


def line_of(message: Message) -> bytes:
    """A message as a line."""
    return MARK + json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
