"""The output of a cell: what is shown live, what goes back to the model, and the whole of it in a file."""

import codecs
import os

#: Characters kept in memory before the whole output goes to a file, and the most such a file may hold.
FILE_FROM = 8192
FILE_LIMIT = 256 * 1024 * 1024
#: Characters of one live message.
PIECE = 12_000


class HeadAndTail:
    """The first and last characters of a text of any length."""

    def __init__(self, limit):
        self.head_limit = limit * 2 // 3
        self.tail_limit = limit - self.head_limit
        self.head = ""
        self.tail = ""
        self.total = 0

    def add(self, text):
        """Take more text."""
        self.total += len(text)
        room = self.head_limit - len(self.head)
        if room > 0:
            self.head += text[:room]
            text = text[room:]
        if text:
            self.tail = (self.tail + text[-self.tail_limit :])[-self.tail_limit :]

    @property
    def omitted(self):
        """Characters between head and tail."""
        return self.total - len(self.head) - len(self.tail)


class CellOutput:
    """Collects what a cell writes. `live` gets (stream, text) within its budget: a head at once, a tail at the end."""

    def __init__(self, path, keep, budget, live):
        self.path = path
        self.kept = HeadAndTail(keep)
        self.live_left = budget * 3 // 4
        self.live_tail = HeadAndTail(budget - self.live_left)
        self.live_tail.head_limit, self.live_tail.tail_limit = 0, budget - self.live_left
        self.live = live
        self.shown = []
        self.decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("o", "e")}
        self.pending = []
        self.early = ""
        self.file = None
        self.file_size = 0

    def add(self, stream, data, final=False):
        """Take bytes of a stream (`o` or `e`)."""
        text = self.decoders[stream].decode(data, final)
        if not text:
            return
        self.kept.add(text)
        self._to_file(text)
        if self.live_left > 0:
            piece = text[: self.live_left]
            self.live_left -= len(piece)
            self._pend(stream, piece)
            text = text[len(piece) :]
        if text:
            self.live_tail.add(text)

    def flush(self):
        """Show what is pending."""
        pending, self.pending = self.pending, []
        for stream, text in pending:
            for start in range(0, len(text), PIECE):
                self.shown.append((stream, text[start : start + PIECE]))
                self.live(*self.shown[-1])

    def finish(self):
        """Show the rest: the tail, after a mark that tells what is missing."""
        for stream in ("o", "e"):
            self.add(stream, b"", True)
        self.flush()
        if self.live_tail.total:
            if self.live_tail.omitted:
                self.pending.append(("o", "\n… %d characters are not shown …\n" % self.live_tail.omitted))
            self.pending.append(("o", self.live_tail.tail))
            self.flush()
        if self.file is not None:
            self.file.close()
            self.file = None

    def show_again(self):
        """Show from the start what was shown, for a host that adopted the running cell."""
        for stream, text in self.shown:
            self.live(stream, text)

    @property
    def chars(self):
        """Characters written so far."""
        return self.kept.total

    @property
    def is_truncated(self):
        """Whether the model's text is not the whole."""
        return self.kept.omitted > 0

    @property
    def has_file(self):
        """Whether the whole output is in the file."""
        return self.file_size > 0

    def text(self):
        """What goes back to the model."""
        kept = self.kept
        if not kept.omitted:
            return kept.head + kept.tail
        where = "; the whole output is in %s" % self.path if self.has_file else ""
        mark = "\n… %d of %d characters left out%s …\n" % (kept.omitted, kept.total, where)
        return kept.head + mark + kept.tail

    def _pend(self, stream, text):
        if self.pending and self.pending[-1][0] == stream:
            self.pending[-1] = (stream, self.pending[-1][1] + text)
        else:
            self.pending.append((stream, text))

    def _to_file(self, text):
        if self.file is None and not self.has_file:
            self.early += text
            if len(self.early) <= FILE_FROM:
                return
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                self.file = open(self.path, "wb")
            except OSError:
                return
            text, self.early = self.early, ""
        if self.file is None or self.file_size > FILE_LIMIT:
            return
        data = text.encode("utf-8", "replace")
        try:
            self.file.write(data)
            self.file_size += len(data)
        except OSError:
            self.file_size = FILE_LIMIT + 1  # the disk is full: the cell goes on, the file ends here
