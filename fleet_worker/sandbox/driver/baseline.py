"""What a sandbox looked like when its supervisor started, outside of the trees, and the way back to it."""

import os
import stat

from trees import remove

#: A larger home directory is not watched, which makes its sandbox one that cannot be cleaned.
ENTRIES_LIMIT = 20_000
#: Small files whose content is kept: bytes of one, and of all together.
CONTENT_BYTES = 64 * 1024
CONTENT_TOTAL = 4 * 1024 * 1024
#: The provider's own records in the home directory.
FOREIGN = (".daytona",)


class Baseline:
    """The entries of some directories at the time of creation; nothing below `spare` counts."""

    def __init__(self, places, spare):
        self.spare = os.path.realpath(spare)
        self.places = []
        for place in map(os.path.realpath, places):
            if os.path.isdir(place) and place != "/" and place not in self.places:
                self.places.append(place)
        self.marks = {}
        self.contents = {}
        self.is_complete = True
        for path, info in self._walk():
            if len(self.marks) >= ENTRIES_LIMIT:
                self.is_complete = False
                break
            self.marks[path] = _mark(info)
        self._keep_small()

    def restore(self):
        """Remove what is new, put back what is known. Raises ValueError when something cannot be brought back."""
        if not self.is_complete:
            raise ValueError("the sandbox has too many files outside of its trees")
        found = {}
        for path, info in list(self._walk()):
            if path not in self.marks or stat.S_IFMT(self.marks[path][0]) != stat.S_IFMT(info.st_mode):
                remove(path)
            else:
                found[path] = _mark(info)
        for path in sorted(self.marks):
            if found.get(path) != self.marks[path]:
                self._restore(path)

    def _restore(self, path):
        mode = self.marks[path][0]
        if stat.S_ISDIR(mode):
            os.makedirs(path, exist_ok=True)
            if stat.S_IMODE(os.lstat(path).st_mode) != stat.S_IMODE(mode):
                os.chmod(path, stat.S_IMODE(mode))
        elif path in self.contents:
            remove(path)
            with open(path, "wb") as out:
                out.write(self.contents[path])
            os.chmod(path, stat.S_IMODE(mode))
        else:
            raise ValueError("%s was changed and cannot be brought back" % path)
        self.marks[path] = _mark(os.lstat(path))

    def _keep_small(self):
        left = CONTENT_TOTAL
        for path, mark in self.marks.items():
            if not stat.S_ISREG(mark[0]) or mark[1] > min(CONTENT_BYTES, left):
                continue
            try:
                with open(path, "rb") as source:
                    self.contents[path] = source.read()
            except OSError:
                continue
            left -= mark[1]

    def _walk(self):
        for place in self.places:
            for folder, folders, files in os.walk(place):
                folders[:] = [name for name in folders if not self._is_spared(os.path.join(folder, name), place)]
                for name in [*folders, *files]:
                    path = os.path.join(folder, name)
                    try:
                        yield path, os.lstat(path)
                    except OSError:
                        continue

    def _is_spared(self, path, place):
        return path == self.spare or path in self.places or os.path.relpath(path, place) in FOREIGN


def _mark(info):
    """What tells whether an entry is as it was: a directory by its mode alone."""
    if stat.S_ISDIR(info.st_mode):
        return (info.st_mode,)
    return (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
