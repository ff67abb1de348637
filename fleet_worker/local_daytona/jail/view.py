"""What a sandbox sees: the folders of the machine it shares (read-only), its own root, and the bubblewrap
arguments for both."""

import compileall
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

USER = "daytona"
UID = 1000
HOME = f"/home/{USER}"
AGENT_AT = "/opt/fleet/agent"
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SHARED_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "ssl/certs",
    "mime.types",
    "protocols",
)
OWN_ETC = {
    "passwd": f"root:x:0:0:root:/nonexistent:/bin/sh\n{USER}:x:{UID}:{UID}::{HOME}:/bin/sh\n"
    "nobody:x:65534:65534::/nonexistent:/bin/sh\n",
    "group": f"root:x:0:\n{USER}:x:{UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "profile": "umask 022\n",
}
OWN_FOLDERS = (
    HOME,
    "/tmp",
    "/workspace",
    "/attachments",
    "/run",
    "/var/tmp",
    "/mnt",
    AGENT_AT,
    "/etc",
    "/usr",
    "/proc",
    "/dev",
)


@dataclass(frozen=True, slots=True)
class Share:
    """A folder or file of the machine and where the sandbox sees it."""

    source: Path
    target: str
    writable: bool = False


def make_etc(folder: Path) -> None:
    """Write the /etc that every sandbox shares: a user, no secrets, the loader's cache, public certificates."""
    folder.mkdir(mode=0o755)
    for name, text in OWN_ETC.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    (folder / "shells").write_text("")
    for name in SHARED_ETC:
        source = Path("/etc") / name
        if source.is_dir():
            (folder / name).mkdir(parents=True)
        elif source.exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()


def make_agent(source: Path, folder: Path) -> None:
    """Copy the agent to where sandboxes get it from: readable for every user, however this package was installed,
    and compiled."""
    folder.mkdir(mode=0o755)
    for file in source.glob("*.py"):
        shutil.copy(file, folder / file.name)
        (folder / file.name).chmod(0o644)
    compileall.compile_dir(folder, quiet=2)


def make_root(folder: Path, *, owner: int | None, places: tuple[str, ...]) -> None:
    """Create a sandbox's own root: writable by its user alone, empty but for the usual folders and mount `places`."""
    folder.mkdir(mode=0o755)
    for name in OWN_FOLDERS:
        (folder / name[1:]).mkdir(parents=True, exist_ok=True)
    for name in SYSTEM_FOLDERS:
        path = Path(name)
        if path.is_symlink():
            (folder / name[1:]).symlink_to(path.readlink())
        elif path.is_dir():
            (folder / name[1:]).mkdir()
    (folder / "tmp").chmod(0o1777)
    if owner is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
    for place in places:
        # After the change of owner: a folder on the way to a shared place can be passed, not listed.
        for parent in reversed(Path(place[1:]).parents):
            if not (folder / parent).exists():
                (folder / parent).mkdir(mode=0o711)
        (folder / place[1:]).mkdir(exist_ok=True)


def shares(*, root: Path, etc: Path, agent: Path, python: tuple[tuple[Path, str], ...]) -> list[Share]:
    """Everything of the machine that one sandbox sees, in mount order."""
    found = [Share(root, "/", writable=True), Share(Path("/usr"), "/usr")]
    found += [Share(Path(name), name) for name in SYSTEM_FOLDERS if Path(name).is_dir() and not Path(name).is_symlink()]
    found.append(Share(etc, "/etc"))
    for name in SHARED_ETC:
        if (Path("/etc") / name).exists():
            found.append(Share(Path("/etc") / name, f"/etc/{name}"))
    found.append(Share(agent, AGENT_AT))
    return found + [Share(source, place) for source, place in python]


def bubblewrap_arguments(
    bubblewrap: str, visible: list[Share], shared_memory: Path, extra: tuple[str, ...]
) -> list[str]:
    """The command line up to the program: own namespaces for everything, nothing of the host's environment.

    Shared memory lies on disk and /dev is read-only, so that nothing a sandbox writes is memory that no process is
    charged for.
    """
    arguments = [bubblewrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try", "--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox"]
    for share in visible:
        arguments += ["--bind" if share.writable else "--ro-bind", str(share.source), share.target]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--bind", str(shared_memory), "/dev/shm", "--remount-ro", "/dev"]
    arguments += ["--clearenv", "--die-with-parent", "--new-session", "--as-pid-1"]
    return [*arguments, *extra, "--chdir", HOME, "--"]
