"""One message format between the server and a sandbox's agent: a JSON packet, file descriptors beside it.

Used by both ends. A packet that is too big for the socket travels in a memory file whose descriptor comes first.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

PACKET_LIMIT = 48 * 1024
"""Bytes of JSON sent inline; below the smallest default send buffer of a Unix socket."""
BLOB_LIMIT = 64 * 1024 * 1024
"""Bytes of JSON accepted in a memory file."""
FDS_LIMIT = 8


class WireBroken(Exception):
    """The peer sent something that is no message."""


def packed(message: dict[str, Any], fds: tuple[int, ...] = ()) -> tuple[bytes, tuple[int, ...], int | None]:
    """The packet, the descriptors to send with it, and the memory file to close after sending (or None)."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) <= PACKET_LIMIT:
        return data, fds, None
    blob = os.memfd_create("message", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(blob, view) :]
    return b'{"blob":true}', (blob, *fds), blob


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one message; may raise `BlockingIOError` on a non-blocking socket, having sent nothing."""
    data, with_fds, blob = packed(message, fds)
    try:
        socket.send_fds(sock, [data], list(with_fds))
    finally:
        if blob is not None:
            os.close(blob)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One message and its descriptors (close-on-exec), or None at the end of the stream."""
    data, fds, _, _ = socket.recv_fds(sock, PACKET_LIMIT * 2, FDS_LIMIT, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    try:
        message = json.loads(data)
        if message.pop("blob", None):
            message = json.loads(_read_blob(fds.pop(0)))
    except (ValueError, AttributeError, IndexError) as error:
        for fd in fds:
            os.close(fd)
        raise WireBroken(f"not a message: {error}") from error
    return message, fds


def _read_blob(fd: int) -> bytes:
    try:
        size = min(os.fstat(fd).st_size, BLOB_LIMIT)
        parts = []
        offset = 0
        while offset < size:
            part = os.pread(fd, min(1 << 20, size - offset), offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
        return b"".join(parts)
    finally:
        os.close(fd)
