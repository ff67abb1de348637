"""What routes share about requests and answers: the caller, JSON bodies, pages, content with ranges."""

import base64
import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

from flask import Response, g, request
from werkzeug.exceptions import LengthRequired, RequestedRangeNotSatisfiable, UnsupportedMediaType
from werkzeug.http import parse_range_header, unquote_etag

from fleet_shared.blobs import read_blob
from fleet_shared.domain.errors import InvalidInput, Malformed, NotFound, TooLarge
from fleet_shared.domain.ids import is_id
from fleet_web.auth import Caller
from fleet_web.parts import Parts

#: Bytes of a JSON body, and how deep it may be nested.
BODY_BYTES: Final = 2 * 1024 * 1024
BODY_DEPTH: Final = 50


def caller() -> Caller:
    """Whom the request speaks for."""
    found: Caller = g.caller
    return found


def json_body() -> Any:
    """The request's JSON. Raises Malformed, TooLarge; 411 and 415 as HTTP errors."""
    if request.mimetype != "application/json":
        raise UnsupportedMediaType
    if request.content_length is None:
        raise LengthRequired
    if request.content_length > BODY_BYTES:
        raise TooLarge(f"A JSON body may have {BODY_BYTES} bytes.")
    try:
        value = json.loads(request.get_data().decode("utf-8"), parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise Malformed("The body is not JSON in UTF-8.") from None
    if _depth(value) > BODY_DEPTH:
        raise Malformed("The body is nested too deeply.")
    return value


def no_arguments_but(*names: str) -> None:
    """Refuse query parameters nobody reads. Raises InvalidInput."""
    unknown = sorted(set(request.args) - set(names))
    if unknown:
        raise InvalidInput(
            f"{unknown[0]}: Unknown parameter.", errors={name: ["Unknown parameter."] for name in unknown}
        )


def known_id(kind: str, text: str) -> str:
    """`text` as an id. Raises NotFound for what cannot be one."""
    if not is_id(text):
        raise NotFound(kind)
    return text.lower()


def answer(data: Any, status: int = 200, *, location: str | None = None) -> Response:
    """A JSON response."""
    response = Response(json.dumps(data, ensure_ascii=False), status=status, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    if location is not None:
        response.headers["Location"] = location
    return response


def listing(items: list[Any], next_cursor: str | None) -> Response:
    """A page of a list."""
    return answer({"items": items, "next_cursor": next_cursor})


def content(parts: Parts, blob_id: str, *, size: int, sha256: str, media_type: str, name: str) -> Response:
    """Stored bytes with their digest as ETag; honours If-None-Match and one byte range. 416 as an HTTP error."""
    headers = {
        "ETag": f'"{sha256}"',
        "Accept-Ranges": "bytes",
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
        "Cache-Control": "private, no-cache",
    }
    if sha256 in [
        unquote_etag(item)[0] for item in request.headers.get("If-None-Match", "").split(",") if item.strip()
    ]:
        return Response(status=304, headers=headers)
    start, stop = 0, size
    status = 200
    wanted = parse_range_header(request.headers.get("Range"))
    if wanted is not None and len(wanted.ranges) == 1 and wanted.units == "bytes":
        found = wanted.range_for_length(size)
        if found is None:
            raise RequestedRangeNotSatisfiable(size)
        start, stop = found
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    headers["Content-Length"] = str(stop - start)
    body: Iterator[bytes] = iter(()) if request.method == "HEAD" else _pieces(parts, blob_id, start, stop)
    return Response(body, status=status, content_type=media_type, headers=headers)


def _pieces(parts: Parts, blob_id: str, start: int, stop: int) -> Iterator[bytes]:
    return read_blob(parts.database, blob_id, start=start, length=stop - start)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        if depth > BODY_DEPTH:
            break
        deeper: list[Any] = []
        for item in level:
            deeper += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        level = deeper
    return depth


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)
