"""The toolbox' file routes. Paths are the sandbox's: its agent opens them, this moves the bytes."""

import asyncio
import json
import mimetypes
import os
import urllib.parse
from typing import BinaryIO, Final

from aiohttp import BodyPartReader, web

from fleet_worker.local_daytona.access import entry_of
from fleet_worker.local_daytona.jail.channel import AgentRefused, Channel
from fleet_worker.local_daytona.refusals import DaemonRefusal, daemon_envelope, from_agent
from fleet_worker.local_daytona.routes.reach import body, channel_of, reach
from fleet_worker.local_daytona.sandboxes import Sandboxes

CHUNK: Final = 256 * 1024
BOUNDARY: Final = "DAYTONA-FILE-BOUNDARY"
FILES_LIMIT: Final = 10_000
PATH_LIMIT: Final = 4096


class FileRoutes:
    """The routes below /toolbox/{sandbox}/files."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def routes(self) -> list[web.RouteDef]:
        """The table; a route's name is its operation."""
        files = "/toolbox/{sandbox}/files"
        return [
            web.post(f"{files}/bulk-upload", self.upload, name="upload"),
            web.post(f"{files}/bulk-download", self.download, name="download"),
            web.get(files, self.list, name="list_files"),
            web.delete(files, self.remove, name="delete_file"),
            web.get(f"{files}/info", self.info, name="file_info"),
            web.post(f"{files}/folder", self.folder, name="create_folder"),
            web.post(f"{files}/move", self.move, name="move_files"),
            web.post(f"{files}/permissions", self.permissions, name="file_permissions"),
            web.get(f"{files}/search", self.search, name="search_files"),
            web.get(f"{files}/find", self.find, name="find_in_files"),
            web.post(f"{files}/replace", self.replace, name="replace_in_files"),
        ]

    def _channel(self, request: web.Request) -> Channel:
        return channel_of(reach(self._sandboxes, request))

    async def upload(self, request: web.Request) -> web.Response:
        """Write each `files[i].file` part to the path of the `files[i].path` part before it, as it arrives."""
        channel = self._channel(request)
        paths: dict[str, str] = {}
        files: list[dict[str, object]] = []
        errors: list[str] = []
        if request.content_type != "multipart/form-data":
            raise DaemonRefusal(400, "multipart/form-data expected", code="INVALID_REQUEST_BODY")
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            name = getattr(part, "name", None) or ""
            if not isinstance(part, BodyPartReader) or not name.startswith("files["):
                continue
            index, _, kind = name.removeprefix("files[").partition("].")
            if kind == "path":
                paths[index] = (await part.read()).decode()[:PATH_LIMIT].strip()
            elif kind == "file" and index not in paths:
                errors.append(f"file[{index}]: missing .path metadata")
            elif kind == "file":
                try:
                    files.append({"path": paths[index], "bytes": await _store(channel, paths[index], part)})
                except AgentRefused as error:
                    errors.append(f"{paths[index]}: {error}")
                except OSError as error:
                    errors.append(f"{paths[index]}: {error.strerror}")
        return web.json_response(
            {"errors": errors, "files": files} if errors else {"files": files}, status=400 if errors else 200
        )

    async def download(self, request: web.Request) -> web.StreamResponse:
        """Send the asked files as one multipart body, an error part for each that cannot be read."""
        channel = self._channel(request)
        paths = (await body(request)).get("paths")
        if (
            not isinstance(paths, list)
            or not 0 < len(paths) <= FILES_LIMIT
            or not all(isinstance(path, str) for path in paths)
        ):
            raise DaemonRefusal(400, "request body must be {'paths': [...]} and non-empty", code="INVALID_REQUEST_BODY")
        response = web.StreamResponse(headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"})
        await response.prepare(request)
        entry = entry_of(request)
        for path in paths:
            try:
                fd, size = await channel.open_file(path, write=False)
            except AgentRefused as error:
                refusal = from_agent(error)
                envelope = daemon_envelope(refusal.status, f"{error}", code=refusal.code, path=path, method="POST")
                head = _part_head("error", path, "application/json; charset=utf-8")
                await response.write(head + json.dumps(envelope).encode() + b"\r\n")
                continue
            with os.fdopen(fd, "rb") as stream:
                kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
                await response.write(_part_head("file", path, kind, size))
                entry.bytes_out += await _copy_out(stream, size, response)
            await response.write(b"\r\n")
        await response.write(f"--{BOUNDARY}--\r\n".encode())
        await response.write_eof()
        return response

    async def list(self, request: web.Request) -> web.Response:
        """The entries of a folder."""
        depth = int(request.query.get("depth") or 1)
        answer = await self._channel(request).request("list", path=request.query.get("path") or ".", depth=depth)
        return web.json_response(answer.fields["entries"])

    async def info(self, request: web.Request) -> web.Response:
        """One path."""
        answer = await self._channel(request).request("info", path=_path(request, "path"))
        return web.json_response(answer.fields["info"])

    async def folder(self, request: web.Request) -> web.Response:
        """Create a folder with its parents."""
        mode = request.query.get("mode", "755")
        await self._channel(request).request("folder", path=_path(request, "path"), mode=mode)
        return web.Response(status=201)

    async def remove(self, request: web.Request) -> web.Response:
        """Delete a file, or recursively a folder."""
        recursive = request.query.get("recursive", "").lower() == "true"
        await self._channel(request).request("remove", path=_path(request, "path"), recursive=recursive)
        return web.Response(status=204)

    async def move(self, request: web.Request) -> web.Response:
        """Rename a file or folder."""
        source, destination = _path(request, "source"), _path(request, "destination")
        await self._channel(request).request("move", source=source, destination=destination)
        return web.Response(status=200)

    async def permissions(self, request: web.Request) -> web.Response:
        """Change mode, owner, group."""
        mode, owner, group = (request.query.get(key, "") for key in ("mode", "owner", "group"))
        path = _path(request, "path")
        await self._channel(request).request("permissions", path=path, mode=mode, owner=owner, group=group)
        return web.Response(status=200)

    async def search(self, request: web.Request) -> web.Response:
        """Files by name."""
        path, pattern = _path(request, "path"), _path(request, "pattern")
        answer = await self._channel(request).request("search", path=path, pattern=pattern)
        return web.json_response({"files": answer.fields["files"]})

    async def find(self, request: web.Request) -> web.Response:
        """Lines by text."""
        path, pattern = _path(request, "path"), _path(request, "pattern")
        answer = await self._channel(request).request("find", path=path, pattern=pattern)
        return web.json_response(answer.fields["matches"])

    async def replace(self, request: web.Request) -> web.Response:
        """Replace a text in files."""
        given = await body(request)
        answer = await self._channel(request).request(
            "replace", files=given["files"], pattern=given["pattern"], text=given["newValue"]
        )
        return web.json_response(answer.fields["results"])


def _path(request: web.Request, key: str) -> str:
    value = request.query.get(key, "")
    if not value or "\0" in value:
        raise DaemonRefusal(400, f"{key} is required")
    return value


async def _store(channel: Channel, path: str, part: BodyPartReader) -> int:
    if not path or "\0" in path:
        raise AgentRefused("invalid", "path is empty")
    fd, _ = await channel.open_file(path, write=True)
    stored = 0
    with os.fdopen(fd, "wb", buffering=0) as stream:
        while chunk := await part.read_chunk(CHUNK):
            # Disk writes land in the page cache; a thread per large chunk keeps terminals fluent when they do not.
            stored += (
                await asyncio.to_thread(_write_all, stream, chunk)
                if len(chunk) > 1 << 16
                else _write_all(stream, chunk)
            )
    return stored


def _write_all(stream: BinaryIO, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) or 0 :]
    return len(data)


async def _copy_out(stream: BinaryIO, size: int, response: web.StreamResponse) -> int:
    left = size
    while left:
        wanted = min(CHUNK, left)
        data = await asyncio.to_thread(stream.read, wanted) if wanted > 1 << 16 else stream.read(wanted)
        # A file that shrinks while it is sent is filled up: the part's length is already out.
        data = data or b"\0" * wanted
        await response.write(data)
        left -= len(data)
    return size


def _part_head(kind: str, path: str, content_type: str, size: int | None = None) -> bytes:
    plain = path.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "%0D").replace("\n", "%0A")
    quoted = urllib.parse.quote(path, safe="")
    length = "" if size is None else f"Content-Length: {size}\r\n"
    disposition = f'form-data; name="{kind}"; filename="{plain}"; filename*=utf-8\'\'{quoted}'
    head = f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n{length}Content-Type: {content_type}\r\n\r\n"
    return head.encode()
