"""What can go wrong between the client and the server."""

from typing import Any


class ClientError(Exception):
    """The base of the client's errors; the message is one line for a person."""


class ConnectionFailed(ClientError):
    """The server cannot be reached."""


class OutcomeUnknown(ClientError):
    """The connection broke after the request was sent; what became of it is unknown."""


class IntegrityError(ClientError):
    """What arrived is not what the server described: its length or digest differs."""


class ApiError(ClientError):
    """The server refused the request."""

    def __init__(self, status: int, code: str, detail: str, problem: dict[str, Any]) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = problem

    @property
    def request_id(self) -> str | None:
        """The id that names the request in the server's log."""
        found = self.problem.get("request_id")
        return str(found) if found else None
