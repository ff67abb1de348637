"""The API as methods. Answers are the plain dicts of the contract; refusals are ApiError."""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlsplit

import requests
import urllib3

from fleet_term.client.errors import ConnectionFailed, IntegrityError, OutcomeUnknown
from fleet_term.client.stream import CONNECT_S, SILENCE_S, EventStream, Link, api_error

#: Seconds for an answer, and for a piece of an up- or download.
ANSWER_S: Final = 30.0
TRANSFER_S: Final = 120.0
PIECE: Final = 256 * 1024
Progress = Callable[[int, int], None]


class Client:
    """One server and one token. Not to be shared between threads while a request runs, except for `follow`."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {token}"
        host = urlsplit(self.url).hostname or ""
        # A proxy of the environment cannot reach the loopback, and .netrc would replace our token.
        self._session.trust_env = host not in ("127.0.0.1", "localhost", "::1")

    def copy(self) -> "Client":
        """The same with connections of its own, for another thread."""
        return Client(self.url, self._token)

    def get(self, path: str, **params: Any) -> Any:
        """The JSON of GET. Raises ApiError, ConnectionFailed."""
        given = {name: value for name, value in params.items() if value is not None}
        return self._json("GET", path, params=given)

    def send(self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Any:
        """The JSON of a request with a JSON body, None for an empty answer. Raises ApiError, OutcomeUnknown."""
        return self._json(method, path, json=body if body is not None else None, headers=headers)

    def items(self, path: str, *, limit: int | None = None, **params: Any) -> Iterator[dict[str, Any]]:
        """The items of a list, page by page, at most `limit`."""
        cursor: str | None = None
        left = limit if limit is not None else 1 << 30
        while left > 0:
            page = self.get(path, cursor=cursor, limit=min(left, 100), **params)
            yield from page["items"][:left]
            left -= len(page["items"])
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def create_session(self, title: str | None = None) -> dict[str, Any]:
        """A new Session."""
        created: dict[str, Any] = self.send("POST", "/api/sessions", {"title": title} if title else {})
        return created

    def submit(
        self,
        session_id: str,
        prompt: str,
        *,
        attachment_ids: Sequence[str] = (),
        skills: Sequence[str] = (),
        options: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """An accepted Turn. Tried again under the same idempotency key when the connection breaks."""
        body: dict[str, Any] = {"prompt": prompt}
        if attachment_ids:
            body["attachment_ids"] = list(attachment_ids)
        if skills:
            body["skills"] = list(skills)
        if options:
            body["options"] = options
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        path = f"/api/sessions/{session_id}/turns"
        try:
            turn: dict[str, Any] = self.send("POST", path, body, headers=headers)
        except OutcomeUnknown:
            turn = self.send("POST", path, body, headers=headers)
        return turn

    def turn(self, turn_id: str) -> dict[str, Any]:
        """A Turn."""
        found: dict[str, Any] = self.get(f"/api/turns/{turn_id}")
        return found

    def cancel(self, turn_id: str) -> dict[str, Any]:
        """Ask for a Turn's end."""
        found: dict[str, Any] = self.send("POST", f"/api/turns/{turn_id}/cancel")
        return found

    def follow(
        self,
        turn_id: str,
        *,
        after: int = 0,
        on_link: Callable[[Link], None] = lambda _: None,
        give_up_s: float | None = None,
    ) -> EventStream:
        """The Turn's events after a number; a connection of its own, safe to stop from another thread."""
        session = requests.Session()
        session.headers.update(self._session.headers)
        session.trust_env = self._session.trust_env

        def open_stream(last: int) -> requests.Response:
            headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-store"}
            if last:
                headers["Last-Event-ID"] = str(last)
            url = f"{self.url}/api/turns/{turn_id}/events"
            try:
                return session.get(url, headers=headers, stream=True, timeout=(CONNECT_S, SILENCE_S))
            except requests.ConnectionError as error:
                raise ConnectionFailed(f"{self.url} cannot be reached") from error

        return EventStream(open_stream, after=after, on_link=on_link, give_up_s=give_up_s)

    def upload(self, path: Path, *, on_progress: Progress = lambda *_: None) -> dict[str, Any]:
        """An Attachment made of a file, streamed."""
        with path.open("rb") as source:
            return self.upload_stream(source, path.name, path.stat().st_size, on_progress=on_progress)

    def upload_stream(
        self, source: BinaryIO, name: str, size: int | None, *, on_progress: Progress = lambda *_: None
    ) -> dict[str, Any]:
        """An Attachment made of an open binary file."""

        def pieces() -> Iterator[bytes]:
            sent = 0
            while piece := source.read(PIECE):
                sent += len(piece)
                on_progress(sent, size or sent)
                yield piece

        body: Any = _Sized(pieces(), size) if size else pieces()
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        }
        made: dict[str, Any] = self._json(
            "POST", "/api/attachments", data=body, headers=headers, timeout=(CONNECT_S, TRANSFER_S)
        )
        return made

    def download(
        self, path: str, target: Path, *, overwrite: bool = False, on_progress: Progress = lambda *_: None
    ) -> int:
        """Write content to `target`, whole and verified or not at all; its bytes.

        Raises FileExistsError, IntegrityError when length or digest differ from what the server said.
        """
        if target.exists() and not overwrite:
            raise FileExistsError(f"{target} exists already")
        response = self._request("GET", path, stream=True, timeout=(CONNECT_S, TRANSFER_S))
        expected = response.headers.get("ETag", "").strip('"')
        length = int(response.headers.get("Content-Length") or -1)
        digest, size = hashlib.sha256(), 0
        partial = target.with_name(target.name + ".part")
        try:
            with partial.open("wb") as out:
                for piece in response.iter_content(PIECE):
                    out.write(piece)
                    digest.update(piece)
                    size += len(piece)
                    on_progress(size, max(length, size))
                out.flush()
                os.fsync(out.fileno())
            if (length >= 0 and size != length) or (expected and digest.hexdigest() != expected):
                raise IntegrityError(f"{target.name}: what arrived is not what the server has")
            partial.replace(target)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise IntegrityError(f"{target.name}: the connection broke") from error
        finally:
            partial.unlink(missing_ok=True)
            response.close()
        return size

    def _json(self, method: str, path: str, **options: Any) -> Any:
        response = self._request(method, path, **options)
        return response.json() if response.content else None

    def _request(self, method: str, path: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", (CONNECT_S, ANSWER_S))
        try:
            response = self._session.request(method, self.url + path, **options)
        except (requests.ConnectTimeout, requests.exceptions.InvalidURL, requests.exceptions.MissingSchema) as error:
            raise ConnectionFailed(f"{self.url} cannot be reached") from error
        except requests.ConnectionError as error:
            refused = "NewConnectionError" in repr(error) or "NameResolutionError" in repr(error)
            if refused or method == "GET":
                raise ConnectionFailed(f"{self.url} cannot be reached") from error
            raise OutcomeUnknown("the connection broke; what became of the request is unknown") from error
        except requests.RequestException as error:
            raise OutcomeUnknown("the connection broke; what became of the request is unknown") from error
        if response.status_code >= 400:
            raise api_error(response)
        return response


class _Sized:
    """An iterable body with a length, so that requests sends a Content-Length instead of chunks."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces = pieces
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces
