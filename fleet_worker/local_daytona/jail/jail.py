"""One sandbox's container: started, reached through its channel, ended with everything in it."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from fleet_worker.local_daytona.jail import usage, view
from fleet_worker.local_daytona.jail.channel import AgentGone, Channel
from fleet_worker.local_daytona.jail.interpreter import SYSTEM_PATH, Interpreter, candidates, failure
from fleet_worker.local_daytona.options import Limits

READY_S: Final = 30.0
GRACE_S: Final = 5.0
FIRST_UID: Final = 64000
UIDS: Final = 1000
STAGING: Final = "/mnt" if Path("/mnt").is_dir() else "/tmp"
LAUNCH: Final = Path(__file__).with_name("launch.py")
DATA_FACTOR: Final = 4
"""Private memory one process may ask for, in limits of its sandbox: far above what may be used, to stop absurd
requests at once."""
AGENT: Final = Path(__file__).parents[1] / "inside"


class NoIsolation(Exception):
    """Bubblewrap is missing or not allowed to work here; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What all sandboxes of one server stand on, found out once at its start."""

    isolation: Literal["bubblewrap", "none"]
    bubblewrap: str
    extra: tuple[str, ...]
    etc: Path
    agent: Path
    interpreter: Interpreter
    limits: Limits


def survey(data_dir: Path, limits: Limits, *, allow_unisolated: bool) -> Ground:
    """Find bubblewrap and a Python that works inside it. Raises `NoIsolation`."""
    etc = data_dir / "etc"
    view.make_etc(etc)
    agent = data_dir / "agent"
    view.make_agent(AGENT, agent)
    bubblewrap = shutil.which("bwrap")
    reason = "it is not installed"
    if bubblewrap:
        # Older versions cannot forbid further user namespaces; everything else holds without that, too.
        for extra in (("--disable-userns",), ()):
            for interpreter in candidates():
                ground = Ground("bubblewrap", bubblewrap, extra, etc, agent, interpreter, limits)
                reason = _failure(ground, data_dir / "probe") or ""
                if not reason:
                    return ground
    if not allow_unisolated:
        raise NoIsolation(
            f"bubblewrap (bwrap) does not isolate sandboxes here: {reason}; install it or pass --allow-unisolated"
        )
    path = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
    return Ground("none", "", (), etc, agent, Interpreter((), sys.executable, path, None), limits)


def _failure(ground: Ground, folder: Path) -> str | None:
    uid = FIRST_UID if os.geteuid() == 0 else None
    try:
        _make_folders(ground, folder, uid)
        enter = f"sys.path.insert(0, {str(Path(view.AGENT_AT).parent)!r}); import agent.agent"
        program = [ground.interpreter.program, "-I", "-c", f"{ground.interpreter.proof()}; {enter}"]
        return failure(_command(ground, folder, program, uid))
    finally:
        remove_tree(folder)


def _make_folders(ground: Ground, folder: Path, uid: int | None) -> None:
    folder.mkdir(mode=0o700)
    view.make_root(folder / "root", owner=uid, places=tuple(place for _, place in ground.interpreter.seen))
    (folder / "shm").mkdir(mode=0o700)
    if uid is not None:
        os.chown(folder / "shm", uid, uid)


def _command(ground: Ground, folder: Path, program: list[str], uid: int | None) -> list[str]:
    """The command that starts `program` as a sandbox's first process, through the launcher."""
    environment = {"PATH": ground.interpreter.path, "LANG": "C.UTF-8"}
    sources: list[str] = []
    if ground.isolation == "bubblewrap":
        visible = view.shares(root=folder / "root", etc=ground.etc, agent=ground.agent, python=ground.interpreter.seen)
        shared_memory = folder / "shm"
        if uid is not None:
            sources = [str(share.source) for share in visible] + [str(shared_memory)]
            visible = [
                view.Share(Path(STAGING, str(n)), share.target, share.writable) for n, share in enumerate(visible)
            ]
            shared_memory = Path(STAGING, str(len(visible)))
        set_variables = tuple(text for pair in environment.items() for text in ("--setenv", *pair))
        program = [
            *view.bubblewrap_arguments(ground.bubblewrap, visible, shared_memory, ground.extra + set_variables),
            *program,
        ]
    order = {
        "niceness": ground.limits.niceness,
        "cpus": ground.limits.cpus,
        "uid": uid,
        "staging": STAGING,
        "sources": sources,
        # An agent without a container of its own must outlive the server for a moment, to end what it started.
        "dies_with_parent": ground.isolation == "bubblewrap",
        "parent": os.getpid(),
        "argv": program,
        "environment": environment,
    }
    return [sys.executable, "-I", "-S", str(LAUNCH), json.dumps(order)]


class Jail:
    """A running container. `gone` is set when its first process ended, whoever ended it."""

    def __init__(self, ground: Ground, folder: Path, number: int) -> None:
        self.ground = ground
        self.folder = folder
        self.gone = asyncio.Event()
        self._uid = FIRST_UID + number % UIDS if os.geteuid() == 0 and ground.isolation == "bubblewrap" else None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None

    @property
    def root(self) -> Path:
        """The sandbox's / on the machine. Everything in it is hostile: never follow a link from here."""
        return self.folder / "root"

    @property
    def home(self) -> str:
        """The home folder as the sandbox names it."""
        return view.HOME if self.ground.isolation == "bubblewrap" else str(self.root / view.HOME[1:])

    @property
    def pid(self) -> int | None:
        """The machine's number of the outermost process, while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def channel(self) -> Channel:
        """The talk with the agent. Raises `AgentGone` when the container does not run."""
        if self._channel is None or self.gone.is_set():
            raise AgentGone
        return self._channel

    async def start(self) -> None:
        """Start, or start again, the container on its files. Raises `AgentGone`, `TimeoutError`."""
        if not self.folder.exists():
            _make_folders(self.ground, self.folder, self._uid)
        self.gone.clear()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = self._agent_program(theirs.fileno())
            # From the main thread: the launcher asks to be killed when the thread that started it ends.
            self._process = subprocess.Popen(
                _command(self.ground, self.folder, program, self._uid),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd="/",
                env={},
            )
        self._channel = Channel(ours, self.gone.set)
        try:
            async with asyncio.timeout(READY_S):
                await self._channel.ready
        except (TimeoutError, AgentGone):
            await self.stop()
            raise

    def _agent_program(self, control: int) -> list[str]:
        isolated = self.ground.isolation == "bubblewrap"
        limits = self.ground.limits
        # An unisolated user's limit would count the processes of the whole machine.
        tasks = limits.processes if isolated else None
        where = str(Path(view.AGENT_AT).parent) if isolated else str(self.ground.agent.parent)
        enter = f"import sys; sys.path.insert(0, {where!r}); from agent.agent import main; "
        enter += f"main({control}, {tasks}, {limits.disk_bytes}, {limits.memory_bytes * DATA_FACTOR})"
        if not isolated:
            enter = f"import os; os.chdir({self.home!r}); {enter}"
        return [self.ground.interpreter.program, "-I", "-S", "-c", enter]

    async def stop(self) -> None:
        """End every process; the files stay. Returns when they are gone."""
        if self._channel is not None:
            self._channel.close()
        self.gone.set()
        process, self._process = self._process, None
        if process is None:
            return
        if self.ground.isolation == "bubblewrap":
            # The end of a first process is the end of its namespace, and bubblewrap ends after it.
            for first in usage.children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(first, signal.SIGKILL)
        # Without a container the agent ends its descendants itself, now that its socket is closed.
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, GRACE_S)
        process.kill()
        await asyncio.to_thread(process.wait)

    async def destroy(self) -> None:
        """End every process and remove the files."""
        await self.stop()
        await asyncio.to_thread(remove_tree, self.folder)


def remove_tree(folder: Path) -> None:
    """Remove a folder whatever is in it: deeper than paths are long, or without any permission.

    Raises `OSError` when something is left.
    """
    for command in (["/bin/rm", "-rf"], ["/bin/chmod", "-R", "u+rwX"], ["/bin/rm", "-rf"]):
        if not os.path.lexists(folder):
            return
        subprocess.run([*command, "--", folder], stdin=subprocess.DEVNULL, capture_output=True, check=False, env={})
    if os.path.lexists(folder):
        raise OSError(f"cannot remove {folder}")
