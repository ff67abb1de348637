"""What stands in for `sys.stdout`, `sys.stderr` and `input` in a cell: text that leaves in the order it was written."""

import fcntl
import io
import os
import struct
import termios
import time

#: Seconds to wait until what was written to the other stream is taken; afterwards order gives way.
ORDER_S = 0.2


class Stream(io.TextIOBase):
    """Text to a file descriptor at once; waits until the other stream's pipe is read, which keeps their order."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, fd, other):
        super().__init__()
        self.fd = fd
        self.other = other
        self.buffer = ByteStream(self)

    def fileno(self):
        return self.fd

    def writable(self):
        return True

    def isatty(self):
        return False

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not " + type(text).__name__)
        self.write_bytes(text.encode("utf-8", "replace"))
        return len(text)

    def write_bytes(self, data):
        if _waiting(self.other):
            deadline = time.monotonic() + ORDER_S
            while _waiting(self.other) and time.monotonic() < deadline:
                time.sleep(0.0002)
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]


class ByteStream(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def writable(self):
        return True

    def fileno(self):
        return self.text.fd

    def write(self, data):
        data = bytes(data)
        self.text.write_bytes(data)
        return len(data)


def no_input(prompt=""):
    """Stands in for `input`."""
    raise EOFError("input() is not available here: there is nobody to answer")


def _waiting(fd):
    try:
        count = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return False
    return struct.unpack("i", count)[0] > 0
