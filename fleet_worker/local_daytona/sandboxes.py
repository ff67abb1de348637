"""All sandboxes of the server and every change of their state. Routes ask; this alone starts, stops and destroys."""

import asyncio
import contextlib
import secrets
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fleet_worker.local_daytona.faults import Faults, quota_refusal
from fleet_worker.local_daytona.jail.channel import AgentGone
from fleet_worker.local_daytona.jail.jail import Ground, Jail, remove_tree
from fleet_worker.local_daytona.options import Options
from fleet_worker.local_daytona.refusals import Refusal
from fleet_worker.local_daytona.sandbox import LANGUAGES, PASSING, Sandbox, State

DEFAULT_AUTOSTOP: Final = 15
DEFAULT_AUTOARCHIVE: Final = 7 * 24 * 60
REMEMBERED_S: Final = 60.0
"""How long a destroyed sandbox is kept for a list that lags."""


class Sandboxes:
    """The sandboxes by id. `ground` is None when a foreign toolbox serves them all."""

    def __init__(self, options: Options, ground: Ground | None, faults: Faults) -> None:
        self._options = options
        self._ground = ground
        self._faults = faults
        self._folder = options.data_dir / "sandboxes"
        self._rows: dict[str, Sandbox] = {}
        self._destroyed: list[tuple[datetime, dict[str, Any]]] = []
        self._started_jails = 0
        self.base_url = ""
        remove_tree(self._folder)
        self._folder.mkdir(mode=0o700)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(list(self._rows.values()))

    @property
    def toolbox_url(self) -> str:
        """Where clients find the toolbox of a sandbox, without its id."""
        return f"{self.base_url}/toolbox"

    def find(self, id_or_name: str) -> Sandbox:
        """A sandbox by id or name. Raises `Refusal` 404."""
        found = self._rows.get(id_or_name) or next((row for row in self if row.name == id_or_name), None)
        if found is None:
            raise Refusal(404, f"Sandbox with ID or name {id_or_name} not found")
        return found

    def by_id(self, number: str) -> Sandbox | None:
        """A sandbox by id, or None."""
        return self._rows.get(number)

    def describe(self, sandbox: Sandbox) -> dict[str, Any]:
        """The API's description of a sandbox."""
        return sandbox.describe(toolbox_url=self.toolbox_url, minute_s=self._options.minute_s)

    def listed(self) -> list[dict[str, Any]]:
        """Descriptions for list, oldest first; with a lag, new sandboxes are missing and destroyed ones still there."""
        lag = self._faults.switches.list_lag_s
        now = datetime.now(UTC)
        shown = [self.describe(row) for row in self if (now - row.created).total_seconds() >= lag]
        shown += [row for gone, row in self._destroyed if (now - gone).total_seconds() < lag]
        return sorted(shown, key=lambda row: (str(row["createdAt"]), str(row["id"])))

    async def create(self, wanted: dict[str, Any]) -> Sandbox:
        """Make a sandbox and start it; returns when it runs, or after `create_hold_s`. Raises `Refusal`."""
        sandbox = self._new_row(wanted)
        switches = self._faults.switches
        starting = asyncio.create_task(
            self._bring_up(sandbox, delay_s=switches.create_delay_s, then=switches.create_state)
        )
        sandbox_started = asyncio.shield(starting)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(switches.create_hold_s):
                await sandbox_started
        if switches.create_hang_s:
            await asyncio.sleep(switches.create_hang_s)
        return sandbox

    def _new_row(self, wanted: dict[str, Any]) -> Sandbox:
        number = str(uuid.uuid4())
        name = wanted.get("name") or number
        labels = _texts(wanted.get("labels"), "labels")
        if labels.get("code-toolbox-language", "python") not in LANGUAGES:
            raise Refusal(400, f"Invalid code-toolbox-language: {labels['code-toolbox-language']}")
        if wanted.get("snapshot") and any(wanted.get(key) for key in ("cpu", "memory", "disk", "gpu")):
            raise Refusal(400, "Cannot specify Sandbox resources when using a snapshot")
        if any(row.name == name for row in self):
            raise Refusal(409, f"Sandbox with name {name} already exists")
        quota = self._faults.switches.quota_sandboxes
        if quota and sum(row.state in ("started", "starting", "creating") for row in self) >= quota:
            raise quota_refusal(quota)
        jail = None
        if self._ground is not None:
            self._started_jails += 1
            jail = Jail(self._ground, self._folder / number, self._started_jails)
        sandbox = Sandbox(
            id=number,
            name=name,
            wanted=wanted,
            labels=labels,
            env=_texts(wanted.get("env"), "env"),
            autostop=wanted.get("autoStopInterval", DEFAULT_AUTOSTOP),
            autopause=wanted.get("autoPauseInterval", 0),
            autoarchive=wanted.get("autoArchiveInterval", DEFAULT_AUTOARCHIVE),
            autodelete=wanted.get("autoDeleteInterval", -1),
            ttl=wanted.get("ttlMinutes") or 0,
            public=bool(wanted.get("public")),
            jail=jail,
            preview_token=secrets.token_urlsafe(16),
        )
        self._rows[number] = sandbox
        return sandbox

    async def _bring_up(self, sandbox: Sandbox, *, delay_s: float, then: State = "started") -> None:
        if then == "creating":
            return
        async with sandbox.changing:
            if delay_s:
                await asyncio.sleep(delay_s)
            if sandbox.id not in self._rows:
                return
            if then == "started" and sandbox.jail is not None:
                try:
                    await sandbox.jail.start()
                except (AgentGone, TimeoutError, OSError) as error:
                    sandbox.error_reason = f"sandbox did not start: {error or type(error).__name__}"
                    sandbox.change("error")
                    return
            if then in ("error", "build_failed"):
                sandbox.error_reason = "no runner could start the sandbox"
            sandbox.change(then)
            sandbox.touch()

    async def start(self, sandbox: Sandbox) -> None:
        """Start a stopped or archived sandbox. Raises `Refusal` 409 in transition, 400 in another state."""
        _refuse_passing(sandbox)
        if sandbox.state not in ("stopped", "archived", "error"):
            raise Refusal(400, "Sandbox is not in valid state")
        sandbox.change("restoring" if sandbox.state == "archived" else "starting", desired="started")
        sandbox.error_reason = None
        await self._bring_up(sandbox, delay_s=0)

    async def stop(self, sandbox: Sandbox) -> None:
        """Stop a running sandbox; an ephemeral one is destroyed. Raises `Refusal` 409 in transition, 400 in
        another state."""
        _refuse_passing(sandbox)
        if sandbox.state != "started":
            raise Refusal(400, "Sandbox is not started")
        await self.halt(sandbox, "stopped")
        if sandbox.ephemeral:
            await self.destroy(sandbox)

    async def halt(self, sandbox: Sandbox, state: State) -> None:
        """End everything that runs in a sandbox and leave it in `state`, whatever it was in."""
        async with sandbox.changing:
            sandbox.change("stopping", desired="archived" if state == "archived" else "stopped")
            _forget_running(sandbox)
            if sandbox.jail is not None:
                await sandbox.jail.stop()
            sandbox.change(state)

    async def destroy(self, sandbox: Sandbox, *, wait: bool = True) -> None:
        """Remove a sandbox, its processes and its files. Returns when all is gone, unless told not to `wait`."""
        sandbox.change("destroying", desired="destroyed")
        removing = asyncio.create_task(self._remove(sandbox, self._faults.switches.delete_delay_s))
        if wait:
            await asyncio.shield(removing)

    async def _remove(self, sandbox: Sandbox, delay_s: float) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        async with sandbox.changing:
            self._rows.pop(sandbox.id, None)
            _forget_running(sandbox)
            if sandbox.jail is not None:
                await sandbox.jail.destroy()
            now = datetime.now(UTC)
            self._destroyed = [kept for kept in self._destroyed if (now - kept[0]).total_seconds() < REMEMBERED_S]
            self._destroyed.append((now, self.describe(sandbox)))
            sandbox.change("destroyed")

    async def close(self) -> None:
        """Remove every sandbox."""
        await asyncio.gather(*(self.destroy(row) for row in self), return_exceptions=True)
        await asyncio.to_thread(remove_tree, self._folder)

    @property
    def folder(self) -> Path:
        """Where the sandboxes' files lie."""
        return self._folder


def _forget_running(sandbox: Sandbox) -> None:
    sandbox.cut_sockets()
    sandbox.terminals.clear()
    for session in sandbox.sessions.values():
        session.abandon()
    sandbox.sessions.clear()


def _refuse_passing(sandbox: Sandbox) -> None:
    if sandbox.state in PASSING:
        raise Refusal(409, "Sandbox state change in progress")


def _texts(given: Any, what: str) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise Refusal(400, f"{what} must be an object of strings")
    return dict(given)
