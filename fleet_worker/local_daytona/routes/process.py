"""The toolbox' process routes: single commands, code runs, and sessions with their commands, input and logs."""

import asyncio
import os
from typing import Any, Final

from aiohttp import web

from fleet_worker.local_daytona.refusals import DaemonRefusal
from fleet_worker.local_daytona.routes.reach import body, channel_of, environment, reach, text, working_folder
from fleet_worker.local_daytona.routes.sockets import CountedSocket, Sockets
from fleet_worker.local_daytona.sandbox import Sandbox
from fleet_worker.local_daytona.sandboxes import Sandboxes
from fleet_worker.local_daytona.toolbox import command as commands
from fleet_worker.local_daytona.toolbox.session import Command, Session, split_log

FRAME: Final = 1024
LOG_POLL_S: Final = 0.02
POLLS_PER_CHECK: Final = 50
SESSIONS_LIMIT: Final = 100


class ProcessRoutes:
    """The routes below /toolbox/{sandbox}/process, without the PTYs."""

    def __init__(self, sandboxes: Sandboxes, sockets: Sockets) -> None:
        self._sandboxes = sandboxes
        self._sockets = sockets

    def routes(self) -> list[web.RouteDef]:
        """The table; a route's name is its operation."""
        process = "/toolbox/{sandbox}/process"
        session = f"{process}/session/{{session}}"
        return [
            web.post(f"{process}/execute", self.execute, name="execute"),
            web.post(f"{process}/code-run", self.code_run, name="code_run"),
            web.post(f"{process}/session", self.open, name="session_create"),
            web.get(f"{process}/session", self.list, name="session_list"),
            web.get(session, self.get, name="session_get"),
            web.delete(session, self.close, name="session_delete"),
            web.post(f"{session}/exec", self.run, name="session_exec"),
            web.get(f"{session}/command/{{command}}", self.command, name="session_command"),
            web.post(f"{session}/command/{{command}}/input", self.input, name="session_input"),
            web.get(f"{session}/command/{{command}}/logs", self.logs, name="session_logs"),
        ]

    async def execute(self, request: web.Request) -> web.Response:
        """Run a command in a shell of its own and wait for it."""
        sandbox = reach(self._sandboxes, request)
        given = await body(request)
        return await _ran(sandbox, given, argv=None, program=text(given, "command"))

    async def code_run(self, request: web.Request) -> web.Response:
        """Run Python code in a fresh interpreter and wait for it."""
        sandbox = reach(self._sandboxes, request)
        given = await body(request)
        if given.get("language") not in (None, "", "python"):
            raise DaemonRefusal(400, f"unsupported language: {given['language']}")
        argv = ["python3", "-u", "-", *map(str, given.get("argv") or [])]
        return await _ran(sandbox, given, argv=argv, program=text(given, "code"))

    async def open(self, request: web.Request) -> web.Response:
        """Start a session."""
        sandbox = reach(self._sandboxes, request)
        name = text(await body(request), "sessionId")
        if name in sandbox.sessions:
            raise DaemonRefusal(409, "session already exists")
        if len(sandbox.sessions) >= SESSIONS_LIMIT or "/" in name:
            raise DaemonRefusal(400, "no more sessions, or not a session name")
        assert sandbox.jail is not None
        sandbox.sessions[name] = await Session.open(
            name=name,
            folder=f"{sandbox.jail.home}/.daytona/sessions/{name}",
            channel=channel_of(sandbox),
            env=environment(sandbox),
            cwd=sandbox.jail.home,
        )
        return web.Response(status=201)

    async def list(self, request: web.Request) -> web.Response:
        """All sessions."""
        sandbox = reach(self._sandboxes, request)
        return web.json_response([await session.info() for session in list(sandbox.sessions.values())])

    async def get(self, request: web.Request) -> web.Response:
        """One session."""
        return web.json_response(await self._session(request).info())

    async def close(self, request: web.Request) -> web.Response:
        """End a session, its processes and logs."""
        sandbox = reach(self._sandboxes, request)
        session = self._session(request)
        sandbox.sessions.pop(session.name, None)
        await session.close()
        return web.Response(status=204)

    async def run(self, request: web.Request) -> web.Response:
        """Queue a command in a session; wait for it unless it is to run on."""
        session = self._session(request)
        given = await body(request)
        runs_on = bool(given.get("runAsync") or given.get("async"))
        try:
            command = await session.execute(
                text(given, "command"), runs_on=runs_on, echoes_input=not given.get("suppressInputEcho")
            )
        except BrokenPipeError as error:
            raise DaemonRefusal(410, "session has ended", code="SESSION_ENDED") from error
        if runs_on:
            return web.json_response({"cmdId": command.id}, status=202)
        exit_code = await session.wait(command)
        return web.json_response({"cmdId": command.id, "exitCode": exit_code, **await _log(session, command)})

    async def command(self, request: web.Request) -> web.Response:
        """One command."""
        session, command = self._command(request)
        await session.refresh(command)
        return web.json_response(command.info())

    async def input(self, request: web.Request) -> web.Response:
        """Give a running command a line."""
        session, command = self._command(request)
        given = await body(request)
        if await session.refresh(command) is not None:
            raise DaemonRefusal(410, "command has already completed", code="COMMAND_ALREADY_COMPLETED")
        await session.type(command, str(given.get("data", "")))
        return web.Response(status=204)

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """A command's log: as JSON, or followed over a WebSocket from its first byte."""
        session, command = self._command(request)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return web.json_response(await _log(session, command))
        sandbox = reach(self._sandboxes, request)
        follow = request.query.get("follow") == "true"
        async with self._sockets.accept(request, sandbox) as socket:
            await _follow(socket, session, command, follow=follow)
        return socket

    def _session(self, request: web.Request) -> Session:
        session = reach(self._sandboxes, request).sessions.get(request.match_info["session"])
        if session is None:
            raise DaemonRefusal(404, "session not found")
        return session

    def _command(self, request: web.Request) -> tuple[Session, Command]:
        session = self._session(request)
        command = session.commands.get(request.match_info["command"])
        if command is None:
            raise DaemonRefusal(404, "command not found")
        return session, command


async def _ran(sandbox: Sandbox, given: dict[str, Any], *, argv: list[str] | None, program: str) -> web.Response:
    try:
        ran = await commands.run(
            channel_of(sandbox),
            argv=argv,
            text=program.encode(),
            env=environment(sandbox, given.get("envs")),
            cwd=working_folder(sandbox, given.get("cwd")),
            timeout_s=float(given.get("timeout") or 0) or None,
        )
    except commands.TimedOut as error:
        raise DaemonRefusal(408, "command execution timeout", code="PROCESS_EXECUTION_TIMEOUT") from error
    return web.json_response({"exitCode": ran.exit_code, "result": ran.output})


async def _log(session: Session, command: Command) -> dict[str, str]:
    log = await session.read(f"{command.folder}/output.log")
    out, err = split_log(log)
    texts = {"output": log, "stdout": out, "stderr": err}
    return {key: value.decode("utf-8", "replace") for key, value in texts.items()}


async def _follow(socket: CountedSocket, session: Session, command: Command, *, follow: bool) -> None:
    """Send the log in frames of at most 1 KiB; at its end look for more every 20 ms, for the command's end every
    second."""
    with os.fdopen(await session.open_log(command), "rb", buffering=4096) as log:
        listening = asyncio.create_task(_listen(socket))
        quiet = 0
        try:
            while not listening.done():
                data = log.read(FRAME)
                if data:
                    quiet = 0
                    await socket.send_bytes(data)
                    continue
                if not follow:
                    break
                quiet += 1
                if quiet >= POLLS_PER_CHECK:
                    if await session.refresh(command) is not None and log.tell() >= os.fstat(log.fileno()).st_size:
                        break
                    quiet = 0
                await asyncio.sleep(LOG_POLL_S)
        finally:
            listening.cancel()
    await socket.close()


async def _listen(socket: CountedSocket) -> None:
    async for _ in socket:
        pass
