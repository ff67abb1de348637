"""One sandbox as the control plane knows it: its row, its clock, and the parts of it that run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from fleet_worker.local_daytona.jail.jail import Jail
from fleet_worker.local_daytona.toolbox.session import Session
from fleet_worker.local_daytona.toolbox.terminal import Terminal

State = Literal[
    "creating", "started", "starting", "stopping", "stopped", "archived", "restoring", "destroying", "destroyed",
    "error", "build_failed",
]  # fmt: skip
PASSING: frozenset[State] = frozenset({"creating", "starting", "stopping", "restoring", "destroying"})
LANGUAGES = frozenset({"python", "typescript", "javascript"})


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True, kw_only=True, eq=False)
class Sandbox:
    """A sandbox's row. Intervals are minutes: `autostop` idle (0 never), `autodelete` after its stop (-1 never, 0
    at once)."""

    id: str
    name: str
    wanted: dict[str, Any]
    labels: dict[str, str]
    env: dict[str, str]
    autostop: float
    autopause: float
    autoarchive: float
    autodelete: float
    ttl: float
    jail: Jail | None
    state: State = "creating"
    desired: str = "started"
    error_reason: str | None = None
    public: bool = False
    network: dict[str, Any] = field(default_factory=dict)
    runner_lost: bool = False
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))
    active: datetime = field(default_factory=lambda: datetime.now(UTC))
    stopped: datetime | None = None
    preview_token: str = ""
    sockets: set[Callable[[], None]] = field(default_factory=set)
    """For each open WebSocket what cuts it."""
    terminals: dict[str, Terminal] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ephemeral(self) -> bool:
        """Whether a stop destroys it."""
        return self.autodelete == 0

    def touch(self) -> None:
        """Note activity: the idle clock starts anew."""
        self.active = datetime.now(UTC)

    def cut_sockets(self) -> None:
        """Lose every WebSocket, as when the machine behind them is gone."""
        for cut in list(self.sockets):
            cut()

    def change(self, state: State, *, desired: str | None = None) -> None:
        """Enter a state."""
        self.state = state
        self.desired = desired or self.desired
        self.updated = datetime.now(UTC)
        self.stopped = self.updated if state in ("stopped", "archived") else None

    def environment(self, path: str, more: dict[str, str] | None = None) -> dict[str, str]:
        """The variables of a process started in it."""
        assert self.jail is not None
        fixed = {"HOME": self.jail.home, "USER": "daytona", "LOGNAME": "daytona", "PATH": path, "LANG": "C.UTF-8"}
        return {**fixed, "DAYTONA_SANDBOX_ID": self.id, **self.env, **(more or {})}

    def describe(self, *, toolbox_url: str, minute_s: float) -> dict[str, Any]:
        """The API's full description."""
        network = {"networkBlockAll": bool(self.wanted.get("networkBlockAll", False)), **self.network}
        described = {
            "id": self.id,
            "organizationId": "local",
            "name": self.name,
            "user": "daytona",
            "snapshot": self.wanted.get("snapshot") or "local",
            "env": self.env,
            "labels": self.labels,
            "public": self.public,
            "kvm": False,
            "target": self.wanted.get("target") or "local",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 3,
            "state": self.state,
            "desiredState": self.desired,
            "autoStopInterval": self.autostop,
            "autoPauseInterval": self.autopause,
            "autoArchiveInterval": self.autoarchive,
            "autoDeleteInterval": self.autodelete,
            "createdAt": _text(self.created),
            "updatedAt": _text(self.updated),
            "lastActivityAt": _text(self.active),
            "daemonVersion": "local",
            "toolboxProxyUrl": toolbox_url,
            **network,
        }
        if self.error_reason is not None:
            described["errorReason"] = self.error_reason
            described["recoverable"] = False
        if self.ttl > 0:
            described["autoDestroyAt"] = _text(self.created + timedelta(seconds=self.ttl * minute_s))
        return described
