"""Refused requests, as the three speakers of the API word them: control plane, daemon in the sandbox, proxy between."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import web

from fleet_worker.local_daytona.jail.channel import AgentGone, AgentRefused

DAEMON: Final = "DAYTONA_DAEMON"
DAEMON_CODES: Final = {
    400: "BAD_REQUEST",
    404: "NOT_FOUND",
    408: "REQUEST_TIMEOUT",
    409: "CONFLICT",
    410: "GONE",
    500: "INTERNAL_SERVER_ERROR",
}
AGENT_CODES: Final = {
    "not_found": (404, "FILE_NOT_FOUND"),
    "forbidden": (403, "FILE_ACCESS_DENIED"),
    "exists": (409, "CONFLICT"),
    "full": (507, "INTERNAL_SERVER_ERROR"),
    "invalid": (400, "BAD_REQUEST"),
}


class Refusal(Exception):
    """The control plane says no."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class DaemonRefusal(Exception):
    """The daemon in the sandbox says no."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or DAEMON_CODES.get(status, "BAD_REQUEST")


def timestamp() -> str:
    """Now, as the API writes times."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def daemon_envelope(status: int, message: str, *, code: str, path: str, method: str) -> dict[str, Any]:
    """The daemon's error body."""
    return {
        "statusCode": status,
        "message": message,
        "code": code,
        "source": DAEMON,
        "timestamp": timestamp(),
        "path": path,
        "method": method,
    }


def answer_refusal(request: web.Request, refusal: Refusal) -> web.Response:
    """The control plane's error reply."""
    response = web.json_response(
        {
            "path": request.path_qs,
            "timestamp": timestamp(),
            "statusCode": refusal.status,
            "error": web.Response(status=refusal.status).reason or "Error",
            "message": str(refusal),
        },
        status=refusal.status,
    )
    response.headers.update(refusal.headers)
    return response


def answer_daemon_refusal(request: web.Request, refusal: DaemonRefusal) -> web.Response:
    """The daemon's error reply."""
    body = daemon_envelope(refusal.status, str(refusal), code=refusal.code, path=request.path, method=request.method)
    return web.json_response(body, status=refusal.status)


def bad_gateway() -> web.Response:
    """What the proxy says when the runner or the daemon is not there: nothing."""
    return web.Response(status=502)


def from_agent(error: AgentRefused) -> DaemonRefusal:
    """The agent's refusal as the daemon words it."""
    status, code = AGENT_CODES.get(error.code, (400, "BAD_REQUEST"))
    return DaemonRefusal(status, str(error), code=code)


@web.middleware
async def answer_refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    """Turn what the routes raise into replies."""
    try:
        answered: web.StreamResponse = await handler(request)
    except Refusal as error:
        return answer_refusal(request, error)
    except DaemonRefusal as error:
        return answer_daemon_refusal(request, error)
    except AgentRefused as error:
        return answer_daemon_refusal(request, from_agent(error))
    except (AgentGone, TimeoutError):
        return bad_gateway()
    except (ValueError, KeyError) as error:  # a body or a query that is no JSON, no number, or lacks a part
        if request.path.startswith("/toolbox/"):
            return answer_daemon_refusal(request, DaemonRefusal(400, str(error), code="INVALID_REQUEST_BODY"))
        return answer_refusal(request, Refusal(400, f"Bad Request: {error}"))
    except web.HTTPNotFound:
        return answer_refusal(request, Refusal(404, f"Cannot {request.method} {request.path}"))
    return answered
