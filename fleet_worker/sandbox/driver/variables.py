"""The values of variables as files by digest: sent once, kept for later cells and Turns of the Session."""

import collections
import os
import shutil

#: What is kept, least recently used first to go: files, and bytes together.
KEPT_FILES = 200
KEPT_BYTES = 256 * 1024 * 1024


class Variables:
    """The store of one sandbox. A file that was touched since it was written no longer counts."""

    def __init__(self, folder):
        self.folder = folder
        self.marks = collections.OrderedDict()

    def held(self):
        """The digests that need not be sent."""
        return list(self.marks)

    def take(self, bound):
        """({name: digest}, digests that have to be sent) for a cell's variables, which may bring contents along."""
        for item in bound.values():
            if "j" in item:
                self._write(item["d"], item["j"])
            elif "f" in item:
                self._move(item["d"], item["f"])
        wanted = {item["d"] for item in bound.values()}
        missing = [digest for digest in sorted(wanted) if not self._is_held(digest)]
        self._forget_old(wanted)
        return {name: item["d"] for name, item in bound.items()}, missing

    def _is_held(self, digest):
        mark = self.marks.get(digest)
        if mark is None or mark != self._mark(digest):
            self.marks.pop(digest, None)
            return False
        self.marks.move_to_end(digest)
        return True

    def _write(self, digest, text):
        os.makedirs(self.folder, exist_ok=True)
        partial = os.path.join(self.folder, "partial")
        with open(partial, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(partial, self._path(digest))
        self.marks[digest] = self._mark(digest)

    def _move(self, digest, source):
        if not os.path.exists(source):
            return  # moved by an earlier run of the same cell
        os.makedirs(self.folder, exist_ok=True)
        shutil.move(source, self._path(digest))
        self.marks[digest] = self._mark(digest)

    def _forget_old(self, wanted):
        total = sum(mark[0] for mark in self.marks.values())
        for digest in list(self.marks):
            if len(self.marks) <= KEPT_FILES and total <= KEPT_BYTES:
                return
            if digest not in wanted:
                total -= self.marks.pop(digest)[0]
                try:
                    os.unlink(self._path(digest))
                except OSError:
                    pass

    def _path(self, digest):
        return os.path.join(self.folder, digest)

    def _mark(self, digest):
        try:
            info = os.lstat(self._path(digest))
        except OSError:
            return None
        return (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
