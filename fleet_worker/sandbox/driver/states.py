"""The digest of a file tree's state, computed alike by the host from its records and by the supervisor from a scan."""

import hashlib
from typing import Iterable, Optional, Tuple


def digest_of(entries: Iterable[Tuple[str, Optional[str], bool]]) -> str:
    """Names a state: (path, sha256 or None for a directory, executable) of every entry, in any order."""
    total = hashlib.sha256()
    for path, digest, executable in sorted(entries, key=lambda entry: entry[0]):
        total.update(("%s\0%s\0%d\n" % (path, digest or "", bool(executable))).encode("utf-8"))
    return total.hexdigest()
