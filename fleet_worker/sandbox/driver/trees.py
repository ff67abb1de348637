"""File trees inside the sandbox: what changed, putting files in place, snapshots, cleaning up after a Turn."""

import base64
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import time

WORKSPACE = "/workspace"
ATTACHMENTS = "/attachments"
HASH_AGAIN_S = 1.0


def ensure_directory(path):
    """Make a directory, with sudo where the image needs it for one at the root."""
    try:
        os.makedirs(path, exist_ok=True)
        if os.access(path, os.W_OK):
            return
    except OSError:
        pass
    command = ["sudo", "-n", "install", "-d", "-o", str(os.getuid()), "-g", str(os.getgid()), path]
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        pass
    if not os.access(path, os.W_OK):
        raise OSError("the sandbox has no writable directory " + path)


class Tree:
    """One directory tree and what was known of its files at the last scan."""

    def __init__(self, root):
        self.root = root
        self.known = {}
        self.scanned_at = 0.0

    def scan(self, limit):
        """(entries, left_out): entries are [path, kind, bytes, sha256, executable, mtime]; hashes only what changed.

        Left out: symlinks, devices, sockets and names that are not UTF-8. Raises ValueError above `limit` entries.
        """
        before, began, known, entries, left_out = self.known, time.time(), {}, [], []
        for folder, folders, files in os.walk(self.root):
            folders.sort()
            relative = os.path.relpath(folder, self.root)
            prefix = "" if relative == "." else relative + "/"
            kept = []
            for name in folders:
                path = prefix + name
                if os.path.islink(os.path.join(folder, name)) or not _is_text(path):
                    left_out.append(_shown(path))
                    continue
                kept.append(name)
                info = os.lstat(os.path.join(folder, name))
                entries.append([path, "directory", 0, None, False, info.st_mtime])
            folders[:] = kept
            for name in sorted(files):
                path = prefix + name
                full = os.path.join(folder, name)
                try:
                    info = os.lstat(full)
                    if not stat.S_ISREG(info.st_mode) or not _is_text(path):
                        left_out.append(_shown(path))
                        continue
                    mark = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
                    old = before.get(path)
                    # A change within a second of the last scan may leave the same marks: hash those again.
                    fresh = info.st_ctime > self.scanned_at - HASH_AGAIN_S
                    digest = old[1] if old and old[0] == mark and not fresh else sha256_of(full)
                except OSError:
                    left_out.append(_shown(path))
                    continue
                known[path] = (mark, digest)
                entries.append([path, "file", info.st_size, digest, bool(info.st_mode & 0o100), info.st_mtime])
            if len(entries) > limit:
                raise ValueError("more than %d files and directories in %s" % (limit, self.root))
        self.known, self.scanned_at = known, began
        return entries, left_out

    def digests(self):
        """The content of every known file: path -> sha256."""
        return {path: digest for path, (_, digest) in self.known.items()}

    def place(self, files, directories, removed):
        """Make directories, then move or write files in place, after removing paths. Paths are relative."""
        for path in removed:
            remove(self.inside(path))
        for path in directories:
            full = self.inside(path)
            if not os.path.isdir(full) or os.path.islink(full):
                remove(full)
            os.makedirs(full, exist_ok=True)
        for item in files:
            self._place_file(item)

    def inside(self, path):
        """The full path of a relative one. Raises ValueError when it would leave the tree."""
        full = os.path.normpath(os.path.join(self.root, path))
        if path.startswith("/") or not full.startswith(self.root + "/"):
            raise ValueError("a path outside " + self.root)
        return full

    def _place_file(self, item):
        full = self.inside(item["path"])
        folder = os.path.dirname(full)
        if os.path.islink(folder) or not os.path.isdir(folder):
            remove(folder)
            os.makedirs(folder, exist_ok=True)
        if os.path.isdir(full) and not os.path.islink(full):
            remove(full)
        partial = full + ".fleet-partial"
        if "data" in item:
            with open(partial, "wb") as out:
                out.write(base64.b64decode(item["data"]))
        elif item.get("keep"):
            shutil.copyfile(item["from"], partial)
        else:
            shutil.move(item["from"], partial)
        os.chmod(partial, item.get("mode", 0o644))
        if item.get("mtime"):
            os.utime(partial, (item["mtime"], item["mtime"]))
        os.replace(partial, full)


def sha256_of(path):
    """The hex digest of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def remove(path):
    """Remove whatever is at `path`, also when its permissions say no."""
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, folders, _ in os.walk(path):
            for name in [".", *folders]:
                try:
                    os.chmod(os.path.join(folder, name), 0o700, follow_symlinks=True)
                except OSError:
                    pass
        shutil.rmtree(path, ignore_errors=True)
    else:
        try:
            os.unlink(path)
        except OSError:
            pass


def empty(path, keep=()):
    """Remove what a directory holds, except some names."""
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        if name not in keep:
            remove(os.path.join(path, name))


def kill_others(keep):
    """Kill every process of this sandbox's user that descends from the supervisor, except those in `keep`; how many."""
    killed = 0
    for _ in range(5):
        victims = [pid for pid in descendants(os.getpid()) if pid not in keep]
        if not victims:
            break
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except OSError:
                pass
        time.sleep(0.01)
        reap()
    return killed


def reap():
    """Collect ended children; (pid, status) of each."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def descendants(root):
    """The pids below `root`; orphans count because the supervisor is their subreaper."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as source:
                    fields = source.read().rpartition(b")")[2].split()
                parents[int(name)] = (int(fields[1]), fields[0])
            except (OSError, IndexError, ValueError):
                continue
    found, frontier = [], {root}
    while frontier:
        frontier = {pid for pid, (parent, state) in parents.items() if parent in frontier and pid not in found}
        found.extend(frontier)
    return [pid for pid in found if parents[pid][1] != b"Z"]


def _is_text(path):
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _shown(path):
    return path.encode("utf-8", "replace").decode("utf-8", "replace")[:200]
