"""Errors as HTTP: one table from the domain's errors to status codes, and problem+json as their form (RFC 9457)."""

import json
import logging
from http import HTTPStatus
from typing import Any, Final

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from fleet_shared.domain.errors import (
    Conflict,
    FleetError,
    Forbidden,
    Gone,
    InvalidInput,
    LimitReached,
    Malformed,
    NotFound,
    PreconditionFailed,
    SessionBusy,
    TooLarge,
    Unauthorized,
    Unavailable,
)

log = logging.getLogger(__name__)

_STATUSES: Final[tuple[tuple[type[FleetError], int], ...]] = (
    (Malformed, 400),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (Gone, 410),
    (PreconditionFailed, 412),
    (TooLarge, 413),
    (InvalidInput, 422),
    (LimitReached, 429),
    (Unavailable, 503),
)

#: What werkzeug finds wrong by itself: status -> (code, detail).
_HTTP_CODES: Final = {
    400: ("malformed", "The request cannot be read."),
    404: ("not_found", "There is nothing at this address."),
    405: ("method_not_allowed", "This address does not take that method."),
    406: ("not_acceptable", "None of the accepted media types can be sent."),
    408: ("request_timeout", "The request took too long to arrive."),
    411: ("length_required", "Send a Content-Length."),
    413: ("payload_too_large", "The request is larger than allowed."),
    414: ("invalid_request", "The address is too long."),
    415: ("unsupported_media_type", "Send application/json, or for an upload multipart/form-data or the bytes."),
    416: ("range_not_satisfiable", "The content has no such range."),
    431: ("headers_too_large", "The request's headers are larger than allowed."),
}


def install_errors(app: Flask) -> None:
    """Answer every error with problem+json."""
    app.register_error_handler(FleetError, _fleet_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)


def problem(status: int, code: str, detail: str, **more: Any) -> Response:
    """A problem+json response."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "request_id": getattr(g, "request_id", None),
        **more,
    }
    text = json.dumps(body, ensure_ascii=False)
    return Response(text, status=status, content_type="application/problem+json")


def status_of(error: FleetError) -> int:
    """The HTTP status of a domain error; 500 for one that callers should never see."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def _fleet_error(error: FleetError) -> Response:
    status = status_of(error)
    if status == 500:
        return _unexpected(error)
    more: dict[str, Any] = {}
    if isinstance(error, InvalidInput):
        more["errors"] = error.errors
    if isinstance(error, SessionBusy):
        more["turn_id"] = error.turn_id
    response = problem(status, error.code, error.detail, **more)
    if isinstance(error, LimitReached | Unavailable):
        response.headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _http_error(error: HTTPException) -> Response:
    status = error.code or 500
    code, detail = _HTTP_CODES.get(status, ("internal" if status >= 500 else "invalid_request", "The request failed."))
    response = problem(status, code, detail)
    for name, value in error.get_headers():
        if name.lower() in ("allow", "retry-after", "content-range"):
            response.headers[name] = value
    return response


def _unexpected(error: Exception) -> Response:
    log.error("request.failed", exc_info=error, extra={"path": request.path, "request_id": g.get("request_id")})
    return problem(500, "internal", "Something went wrong inside Fleet; the request id names it in the log.")
