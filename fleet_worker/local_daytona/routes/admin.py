"""The server's own endpoints, for those who start it: status, faults, sudden events, and the access log."""

import asyncio

from aiohttp import web

from fleet_worker.local_daytona.access import AccessLog
from fleet_worker.local_daytona.faults import Faults
from fleet_worker.local_daytona.jail.jail import Ground
from fleet_worker.local_daytona.lag import Link
from fleet_worker.local_daytona.routes.sockets import Sockets
from fleet_worker.local_daytona.sandbox import Sandbox
from fleet_worker.local_daytona.sandboxes import Sandboxes
from fleet_worker.local_daytona.watchdog import Watchdog


class AdminRoutes:
    """The routes below /fleet; they need the same API key."""

    def __init__(
        self,
        *,
        sandboxes: Sandboxes,
        ground: Ground | None,
        faults: Faults,
        link: Link,
        log: AccessLog,
        sockets: Sockets,
        watchdog: Watchdog,
    ) -> None:
        self._sandboxes = sandboxes
        self._ground = ground
        self._faults = faults
        self._link = link
        self._log = log
        self._sockets = sockets
        self._watchdog = watchdog

    def routes(self) -> list[web.RouteDef]:
        """The table. No fault touches these."""
        return [
            web.get("/fleet/status", self.status, name="fleet_status"),
            web.get("/fleet/faults", self.faults, name="fleet_faults"),
            web.post("/fleet/faults", self.change_faults, name="fleet_change_faults"),
            web.delete("/fleet/faults", self.reset_faults, name="fleet_reset_faults"),
            web.post("/fleet/happen", self.happen, name="fleet_happen"),
            web.get("/fleet/requests", self.requests, name="fleet_requests"),
            web.post("/fleet/requests/reset", self.reset_requests, name="fleet_reset_requests"),
        ]

    async def status(self, _request: web.Request) -> web.Response:
        """How sandboxes are isolated, and what runs."""
        isolation = "foreign" if self._ground is None else self._ground.isolation
        running = [
            {
                "id": sandbox.id,
                "name": sandbox.name,
                "state": sandbox.state,
                "pid": sandbox.jail.pid if sandbox.jail else None,
                "terminals": sorted(sandbox.terminals),
                "sessions": sorted(sandbox.sessions),
                "sockets": len(sandbox.sockets),
                "killed": self._watchdog.kills(sandbox.id),
            }
            for sandbox in self._sandboxes
        ]
        python = None if self._ground is None else self._ground.interpreter.program
        return web.json_response({"isolation": isolation, "python": python, "sandboxes": running})

    async def faults(self, _request: web.Request) -> web.Response:
        """What is wrong right now."""
        return web.json_response(self._faults.describe())

    async def change_faults(self, request: web.Request) -> web.Response:
        """Change switches and rules; see `faults.Switches` and `faults.Rule`."""
        self._faults.change(await request.json())
        self._link.latency_s = self._faults.switches.latency_ms / 1000
        return web.json_response(self._faults.describe())

    async def reset_faults(self, _request: web.Request) -> web.Response:
        """Be healthy again."""
        self._faults.reset()
        self._link.latency_s = 0.0
        self._link.inward_stalled_until = self._link.outward_stalled_until = 0.0
        for sandbox in self._sandboxes:
            sandbox.runner_lost = False
        return web.json_response(self._faults.describe())

    async def happen(self, request: web.Request) -> web.Response:
        """Let something happen once: `{"event": …, "sandbox": id or name or null for all, "seconds": …}`."""
        given = await request.json()
        event = given.get("event")
        seconds = float(given.get("seconds", 0))
        if event == "drop_sockets":
            return web.json_response({"dropped": self._sockets.cut_all()})
        if event in ("stall_replies", "stall_requests"):
            # A moment later, so that the reply to this request still leaves.
            asyncio.get_running_loop().call_later(0.02, self._link.stall, event == "stall_requests", seconds)
            return web.json_response({})
        chosen = [self._sandboxes.find(given["sandbox"])] if given.get("sandbox") else list(self._sandboxes)
        for sandbox in chosen:
            await self._strike(sandbox, str(event))
        return web.json_response({"sandboxes": [sandbox.id for sandbox in chosen]})

    async def _strike(self, sandbox: Sandbox, event: str) -> None:
        match event:
            case "destroy":
                await self._sandboxes.destroy(sandbox)
            case "stop":
                await self._sandboxes.halt(sandbox, "stopped")
            case "archive":
                await self._sandboxes.halt(sandbox, "archived")
            case "error":
                await self._sandboxes.halt(sandbox, "error")
                sandbox.error_reason = "the runner reported an error"
            case "lose_runner":
                sandbox.runner_lost = True
                sandbox.cut_sockets()
            case "find_runner":
                sandbox.runner_lost = False
            case "kill_agent" if sandbox.jail is not None:
                sandbox.cut_sockets()
                await sandbox.jail.stop()
            case _:
                raise ValueError(f"unknown event: {event}")

    async def requests(self, _request: web.Request) -> web.Response:
        """The access log and its sums."""
        return web.json_response(self._log.describe())

    async def reset_requests(self, _request: web.Request) -> web.Response:
        """Empty the access log."""
        self._log.reset()
        return web.json_response({})
