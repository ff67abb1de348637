"""Requests of the host about files: stage, scan, read, publish, clean."""

import base64
import os
import shutil

from baseline import Baseline
from trees import ATTACHMENTS, WORKSPACE, Tree, ensure_directory, remove, sha256_of

#: Bytes of file content that travel in one answer; the rest is downloaded, which is faster from there on.
INLINE_LIMIT = 512 * 1024


class Files:
    """The trees of one sandbox. Raises OSError, ValueError, KeyError or TypeError for what cannot be done."""

    def __init__(self, folder):
        self.folder = folder
        self.trees = {"workspace": Tree(WORKSPACE), "attachments": Tree(ATTACHMENTS)}
        self.baseline = Baseline(["/tmp", "/var/tmp", "/dev/shm", os.path.expanduser("~")], spare=folder)

    def answer(self, operation, args):
        """The result of a request."""
        operations = {
            "stage": self._stage,
            "scan": self._scan,
            "read": self._read,
            "publish": self._publish,
            "clean": self._clean,
        }
        return operations[operation](args)

    def scanned(self, args):
        """A scan whose failure is part of the result."""
        try:
            return {"ok": True, "v": self._scan(args)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            return {"ok": False, "error": "%s: %s" % (type(error).__name__, error)}

    def _stage(self, args):
        """Put files in place in `tree`; with `read_only` its files and directories cannot be written afterwards."""
        tree = self.trees[args["tree"]]
        ensure_directory(tree.root)
        tree.place(args.get("files", []), args.get("directories", []), args.get("removed", []), args.get("read_only"))
        return self._listed(tree, args)

    def _scan(self, args):
        tree = self.trees[args["tree"]]
        ensure_directory(tree.root)
        return self._listed(tree, args)

    def _listed(self, tree, args):
        """What the tree holds; only `same` when its digest is the `expected` one."""
        entries, left_out = tree.scan(args["limit"])
        if not left_out and args.get("expected") == tree.digest:
            return {"same": True, "entries": [], "left_out": []}
        return {"same": False, "entries": entries, "left_out": left_out}

    def _read(self, args):
        """The content of small files by path, base64, until INLINE_LIMIT is used up; others come back as None."""
        left, contents = INLINE_LIMIT, {}
        for path in args["paths"]:
            size = os.path.getsize(path)
            if size > left:
                contents[path] = None
                continue
            with open(path, "rb") as source:
                contents[path] = base64.b64encode(source.read(left)).decode("ascii")
            left -= size
        return contents

    def _publish(self, args):
        """A snapshot of a Workspace file: {path, snapshot, bytes, sha256}."""
        tree = self.trees["workspace"]
        asked = args["path"]
        full = os.path.realpath(os.path.join(tree.root, asked))
        if not (full + "/").startswith(tree.root + "/") or not os.path.isfile(full):
            raise ValueError("publish needs the path of a file in /workspace, and %s is none" % asked)
        size = os.path.getsize(full)
        if size > args["limit"]:
            raise ValueError("%s has %d bytes, more than the %d allowed" % (asked, size, args["limit"]))
        folder = os.path.join(self.folder, "published")
        os.makedirs(folder, exist_ok=True)
        partial = os.path.join(folder, "partial")
        shutil.copyfile(full, partial)
        digest = sha256_of(partial)
        snapshot = os.path.join(folder, digest)
        os.replace(partial, snapshot)
        relative = os.path.relpath(full, tree.root)
        return {"path": relative, "snapshot": snapshot, "bytes": os.path.getsize(snapshot), "sha256": digest}

    def _clean(self, args):
        """Bring /tmp, the home directory and their like back; the two trees are restored by staging."""
        for name in ("published", "out", "in"):
            remove(os.path.join(self.folder, name))
        self.baseline.restore()
        for tree in self.trees.values():
            tree.distrust()
        return {}
