"""Finds the sandbox a toolbox request is for, and refuses as the proxy does when it cannot be reached."""

from pathlib import PurePosixPath
from typing import Any

from aiohttp import web

from fleet_worker.local_daytona.jail.channel import AgentGone, Channel
from fleet_worker.local_daytona.refusals import DaemonRefusal
from fleet_worker.local_daytona.sandbox import Sandbox
from fleet_worker.local_daytona.sandboxes import Sandboxes


def reach(sandboxes: Sandboxes, request: web.Request) -> Sandbox:
    """The running sandbox of a request, whose idle clock starts anew. Raises `DaemonRefusal` 404 or 400,
    `AgentGone`."""
    sandbox = sandboxes.by_id(request.match_info["sandbox"])
    if sandbox is None:
        raise DaemonRefusal(404, "sandbox container not found")
    if sandbox.runner_lost:
        raise AgentGone
    if sandbox.state != "started":
        raise DaemonRefusal(400, "failed to resolve container IP: no IP address found. Is the Sandbox started?")
    if request.headers.get("X-Daytona-Skip-Last-Activity-Update") != "true":
        sandbox.touch()
    return sandbox


def channel_of(sandbox: Sandbox) -> Channel:
    """The talk with a sandbox's agent. Raises `AgentGone`."""
    if sandbox.jail is None:
        raise AgentGone
    return sandbox.jail.channel


def environment(sandbox: Sandbox, more: Any = None) -> dict[str, str]:
    """The variables of a process of a sandbox. Raises `DaemonRefusal` when `more` are not texts."""
    if more is not None and not (isinstance(more, dict) and all(isinstance(value, str) for value in more.values())):
        raise DaemonRefusal(400, "envs must be an object of strings", code="INVALID_REQUEST_BODY")
    assert sandbox.jail is not None
    return sandbox.environment(sandbox.jail.ground.interpreter.path, more)


def working_folder(sandbox: Sandbox, cwd: object) -> str:
    """A given working folder, seen from the sandbox's home; the home without one."""
    assert sandbox.jail is not None
    return str(PurePosixPath(sandbox.jail.home, str(cwd or "")))


async def body(request: web.Request) -> dict[str, Any]:
    """A request's JSON object. Raises `DaemonRefusal`."""
    given = await request.json()
    if not isinstance(given, dict):
        raise DaemonRefusal(400, "body must be an object", code="INVALID_REQUEST_BODY")
    return given


def text(given: dict[str, Any], key: str) -> str:
    """A required text of a body. Raises `DaemonRefusal`."""
    value = given.get(key)
    if not isinstance(value, str) or not value:
        raise DaemonRefusal(400, f"{key} is required", code="INVALID_REQUEST_BODY")
    return value
