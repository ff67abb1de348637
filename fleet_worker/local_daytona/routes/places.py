"""Small facts of a sandbox's daemon: its folders, version, ports and load."""

import shutil
import time

from aiohttp import web

from fleet_worker.local_daytona.refusals import timestamp
from fleet_worker.local_daytona.routes.reach import body, channel_of, environment, reach
from fleet_worker.local_daytona.sandboxes import Sandboxes


class PlaceRoutes:
    """The routes directly below /toolbox/{sandbox}."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def routes(self) -> list[web.RouteDef]:
        """The table; a route's name is its operation."""
        here = "/toolbox/{sandbox}"
        return [
            web.get(f"{here}/user-home-dir", self.home, name="user_home_dir"),
            web.get(f"{here}/work-dir", self.home, name="work_dir"),
            web.get(f"{here}/version", self.version, name="version"),
            web.get(f"{here}/port", self.ports, name="ports"),
            web.post(f"{here}/env", self.env, name="env"),
            web.get(f"{here}/system/metrics", self.metrics, name="system_metrics"),
        ]

    async def home(self, request: web.Request) -> web.Response:
        """The home folder, which is also the working folder."""
        sandbox = reach(self._sandboxes, request)
        channel_of(sandbox)
        assert sandbox.jail is not None
        return web.json_response({"dir": sandbox.jail.home})

    async def version(self, request: web.Request) -> web.Response:
        """The daemon's version."""
        reach(self._sandboxes, request)
        return web.json_response({"version": "local"})

    async def ports(self, request: web.Request) -> web.Response:
        """Ports in use; not looked at."""
        reach(self._sandboxes, request)
        return web.json_response({"ports": []})

    async def env(self, request: web.Request) -> web.Response:
        """Add variables for processes started from now on."""
        sandbox = reach(self._sandboxes, request)
        given = (await body(request)).get("env") or {}
        environment(sandbox, given)
        sandbox.env |= given
        return web.json_response({})

    async def metrics(self, request: web.Request) -> web.Response:
        """The disk the sandboxes lie on."""
        reach(self._sandboxes, request)
        disk = shutil.disk_usage(self._sandboxes.folder)
        return web.json_response(
            {
                "cpuCount": 1,
                "diskTotal": disk.total,
                "diskUsed": disk.used,
                "diskFree": disk.free,
                "timestamp": timestamp(),
                "timestampUnix": int(time.time()),
            }
        )
