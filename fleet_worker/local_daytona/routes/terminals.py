"""The toolbox' PTY routes: created and watched over one WebSocket, or created, listed, resized and ended over HTTP."""

import base64
import functools
import json
import os
from typing import Any, Final

from aiohttp import web

from fleet_worker.local_daytona.faults import Faults
from fleet_worker.local_daytona.refusals import DaemonRefusal
from fleet_worker.local_daytona.routes.reach import body, channel_of, environment, reach, text, working_folder
from fleet_worker.local_daytona.routes.sockets import Sockets
from fleet_worker.local_daytona.sandbox import Sandbox
from fleet_worker.local_daytona.sandboxes import Sandboxes
from fleet_worker.local_daytona.toolbox.terminal import CLIENT_FRAME_BYTES, Terminal

ENVS_PREFIX: Final = "X-Daytona-Pty-Envs~"
TERMINALS_LIMIT: Final = 100
SIDE_LIMIT: Final = 1000


class TerminalRoutes:
    """The routes below /toolbox/{sandbox}/process/pty."""

    def __init__(self, sandboxes: Sandboxes, sockets: Sockets, faults: Faults) -> None:
        self._sandboxes = sandboxes
        self._sockets = sockets
        self._faults = faults

    def routes(self) -> list[web.RouteDef]:
        """The table; a route's name is its operation."""
        pty = "/toolbox/{sandbox}/process/pty"
        return [
            web.get(f"{pty}/create-connect", self.create_connect, name="pty_create_connect"),
            web.post(pty, self.create, name="pty_create"),
            web.get(pty, self.list, name="pty_list"),
            web.get(f"{pty}/{{terminal}}/connect", self.connect, name="pty_connect"),
            web.post(f"{pty}/{{terminal}}/resize", self.resize, name="pty_resize"),
            web.get(f"{pty}/{{terminal}}", self.get, name="pty_get"),
            web.delete(f"{pty}/{{terminal}}", self.delete, name="pty_delete"),
        ]

    async def create_connect(self, request: web.Request) -> web.StreamResponse:
        """Create a PTY and connect to it in one go. A refusal comes instead of the upgrade."""
        if self._faults.switches.old_daemon:
            raise DaemonRefusal(404, "PTY session create-connect not found")
        sandbox = reach(self._sandboxes, request)
        query = request.query
        terminal = await self._open(
            sandbox,
            name=query.get("id", ""),
            cwd=query.get("cwd"),
            envs=_offered_envs(request),
            size=_size(query.get("rows", 24), query.get("cols", 80)),
        )
        return await self._serve(request, sandbox, terminal)

    async def create(self, request: web.Request) -> web.Response:
        """Create a PTY without connecting."""
        sandbox = reach(self._sandboxes, request)
        given = await body(request)
        terminal = await self._open(
            sandbox,
            name=text(given, "id"),
            cwd=given.get("cwd"),
            envs=given.get("envs") or {},
            size=_size(given.get("rows") or 24, given.get("cols") or 80),
        )
        return web.json_response({"sessionId": terminal.name}, status=201)

    async def list(self, request: web.Request) -> web.Response:
        """All PTYs that run."""
        sandbox = reach(self._sandboxes, request)
        return web.json_response({"sessions": [terminal.info() for terminal in sandbox.terminals.values()]})

    async def get(self, request: web.Request) -> web.Response:
        """One PTY."""
        return web.json_response(self._terminal(request).info())

    async def resize(self, request: web.Request) -> web.Response:
        """Change a PTY's size."""
        terminal = self._terminal(request)
        given = await body(request)
        terminal.resize(*_size(given.get("rows"), given.get("cols")))
        return web.json_response(terminal.info())

    async def delete(self, request: web.Request) -> web.Response:
        """End a PTY; its clients see exit 137."""
        await self._terminal(request).kill()
        return web.json_response({"message": "PTY session deleted"})

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Watch and type into a PTY. One that is not there is told after the upgrade."""
        sandbox = reach(self._sandboxes, request)
        name = request.match_info["terminal"]
        terminal = sandbox.terminals.get(name)
        if terminal is not None:
            return await self._serve(request, sandbox, terminal)
        async with self._sockets.accept(request, sandbox) as socket:
            reason = f"Failed to connect to PTY session: PTY session {name} not found"
            await socket.send_str(json.dumps({"type": "control", "status": "error", "error": reason}))
            await socket.close()
        return socket

    async def _serve(self, request: web.Request, sandbox: Sandbox, terminal: Terminal) -> web.StreamResponse:
        terminal.loses_output_at_exit = self._faults.switches.exit_loses_output
        # aiohttp refuses a frame as long as its limit; the daemon one that is longer.
        async with self._sockets.accept(request, sandbox, max_msg_size=CLIENT_FRAME_BYTES + 1) as socket:
            await terminal.serve(
                socket,
                offered=_offered(request),
                connected_delay_s=self._faults.switches.connected_delay_s,
                cut=socket.cut,
            )
        return socket

    async def _open(self, sandbox: Sandbox, *, name: str, cwd: Any, envs: Any, size: tuple[int, int]) -> Terminal:
        if not name or "/" in name or len(sandbox.terminals) >= TERMINALS_LIMIT:
            raise DaemonRefusal(400, "no PTY session id, or no more sessions")
        if name in sandbox.terminals:
            raise DaemonRefusal(409, f"PTY session with ID '{name}' already exists")
        folder = working_folder(sandbox, cwd)
        env = {**environment(sandbox, envs), "TERM": "xterm-256color"} | envs
        process, master = await channel_of(sandbox).terminal(env=env, cwd=folder, rows=size[0], cols=size[1])
        if name in sandbox.terminals:  # another request was faster
            await process.kill()
            os.close(master)
            raise DaemonRefusal(409, f"PTY session with ID '{name}' already exists")
        terminal = Terminal(
            name=name,
            cwd=folder,
            envs=envs,
            size=size,
            process=process,
            master=master,
            on_end=functools.partial(_forget, sandbox),
        )
        sandbox.terminals[name] = terminal
        return terminal

    def _terminal(self, request: web.Request) -> Terminal:
        name = request.match_info["terminal"]
        terminal = reach(self._sandboxes, request).terminals.get(name)
        if terminal is None:
            raise DaemonRefusal(404, f"PTY session {name} not found")
        return terminal


def _forget(sandbox: Sandbox, name: str) -> None:
    sandbox.terminals.pop(name, None)


def _offered(request: web.Request) -> list[str]:
    return [offer.strip() for offer in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]


def _offered_envs(request: web.Request) -> dict[str, str]:
    for offer in _offered(request):
        if offer.startswith(ENVS_PREFIX):
            coded = offer.removeprefix(ENVS_PREFIX)
            envs = json.loads(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))
            if not isinstance(envs, dict):
                raise DaemonRefusal(400, "envs must be an object of strings")
            return envs
    return {}


def _size(rows: Any, cols: Any) -> tuple[int, int]:
    size = int(rows), int(cols)
    if not all(1 <= side <= SIDE_LIMIT for side in size):
        raise DaemonRefusal(400, "cols and rows must be between 1 and 1000")
    return size
