"""Puts the parts together: the application with its routes and middlewares, and the listening socket on 127.0.0.1."""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from fleet_worker.local_daytona.access import AccessLog, access_middleware
from fleet_worker.local_daytona.expiry import keep_time
from fleet_worker.local_daytona.faults import Faults, fault_middleware
from fleet_worker.local_daytona.jail.jail import Ground
from fleet_worker.local_daytona.lag import LaggedProtocol, Link
from fleet_worker.local_daytona.options import Options
from fleet_worker.local_daytona.refusals import Refusal, answer_refusal, answer_refusals
from fleet_worker.local_daytona.routes.admin import AdminRoutes
from fleet_worker.local_daytona.routes.control import ControlPlane
from fleet_worker.local_daytona.routes.files import FileRoutes
from fleet_worker.local_daytona.routes.foreign import ForeignToolbox
from fleet_worker.local_daytona.routes.places import PlaceRoutes
from fleet_worker.local_daytona.routes.process import ProcessRoutes
from fleet_worker.local_daytona.routes.sockets import Sockets
from fleet_worker.local_daytona.routes.terminals import TerminalRoutes
from fleet_worker.local_daytona.sandboxes import Sandboxes
from fleet_worker.local_daytona.watchdog import Watchdog

HOST: Final = "127.0.0.1"
UPLOAD_BYTES: Final = 1 << 40
"""Largest body; uploads are streamed, the disk is bounded by the sandbox's limit."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts requests."""

    port: int
    sandboxes: Sandboxes


@contextlib.asynccontextmanager
async def running(options: Options, ground: Ground | None, api_key: str) -> AsyncIterator[Running]:
    """Serve until the block ends; then every sandbox is removed."""
    faults, link, log = Faults(), Link(), AccessLog()
    sandboxes = Sandboxes(options, ground, faults)
    sockets = Sockets(faults)
    watchdog = Watchdog(sandboxes, options.limits)
    admin = AdminRoutes(
        sandboxes=sandboxes, ground=ground, faults=faults, link=link, log=log, sockets=sockets, watchdog=watchdog
    )
    app = web.Application(
        middlewares=[
            access_middleware(log),
            _key_middleware(api_key),
            answer_refusals,
            fault_middleware(faults, untouched=[route.kwargs["name"] for route in admin.routes()]),
        ],
        client_max_size=UPLOAD_BYTES,
    )
    app.add_routes(admin.routes())
    app.add_routes(ControlPlane(sandboxes).routes())
    toolbox = [
        *FileRoutes(sandboxes).routes(),
        *ProcessRoutes(sandboxes, sockets).routes(),
        *TerminalRoutes(sandboxes, sockets, faults).routes(),
        *PlaceRoutes(sandboxes).routes(),
    ]
    foreign = ForeignToolbox(sandboxes, sockets, options.toolbox_url, toolbox) if options.toolbox_url else None
    app.add_routes(toolbox if foreign is None else foreign.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    serve = runner.server
    assert serve is not None
    keeping: list[asyncio.Task[None]] = []
    listener = await asyncio.get_running_loop().create_server(
        lambda: LaggedProtocol(serve(), link), HOST, options.port, backlog=512
    )
    try:
        port = listener.sockets[0].getsockname()[1]
        sandboxes.base_url = f"http://{HOST}:{port}"
        keeping = [
            asyncio.create_task(keep_time(sandboxes, minute_s=options.minute_s)),
            asyncio.create_task(watchdog.watch()),
        ]
        yield Running(port, sandboxes)
    finally:
        listener.close()
        for task in keeping:
            task.cancel()
        sockets.cut_all()
        await sandboxes.close()
        if foreign is not None:
            await foreign.close()
        await runner.cleanup()


def _key_middleware(api_key: str) -> Any:
    expected = f"Bearer {api_key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, expected) and request.match_info.route.name != "events":
            return answer_refusal(request, Refusal(401, "Unauthorized"))
        answered: web.StreamResponse = await handler(request)
        return answered

    return check
