"""The control plane: sandboxes are created, listed, looked up, changed and deleted here."""

import base64
import json
from typing import Any, Final

from aiohttp import web

from fleet_worker.local_daytona.refusals import Refusal
from fleet_worker.local_daytona.sandbox import PASSING, Sandbox
from fleet_worker.local_daytona.sandboxes import Sandboxes

PAGE: Final = 100
PAGE_LIMIT: Final = 200
INTERVALS: Final = frozenset({"autostop", "autopause", "autoarchive", "autodelete"})
NETWORK_KEYS: Final = frozenset({"networkBlockAll", "networkAllowList", "domainAllowList"})


class ControlPlane:
    """The routes below /api."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def routes(self) -> list[web.RouteDef]:
        """The table; a route's name is its operation in the access log and the fault rules."""
        one = "/api/sandbox/{sandbox}"
        return [
            web.post("/api/sandbox", self.create, name="create"),
            web.get("/api/sandbox", self.list, name="list"),
            web.get(one, self.get, name="get"),
            web.delete(one, self.delete, name="delete"),
            web.post(f"{one}/start", self.start, name="start"),
            web.post(f"{one}/stop", self.stop, name="stop"),
            web.post(f"{one}/recover", self.start, name="recover"),
            web.post(f"{one}/archive", self.archive, name="archive"),
            web.put(f"{one}/labels", self.labels, name="labels"),
            web.post(f"{one}/last-activity", self.touch, name="last_activity"),
            web.post(f"{one}/network-settings", self.network, name="network_settings"),
            web.post(f"{one}/public/{{public}}", self.public, name="public"),
            web.post(f"{one}/ttl/{{minutes}}", self.ttl, name="ttl"),
            web.get(f"{one}/toolbox-proxy-url", self.toolbox_url, name="toolbox_url"),
            web.get(f"{one}/ports/{{port}}/preview-url", self.preview, name="preview_url"),
            web.get(f"{one}/ports/{{port}}/signed-preview-url", self.preview, name="signed_preview_url"),
            web.post(
                f"{one}/{{interval:autostop|autopause|autoarchive|autodelete}}/{{minutes}}",
                self.interval,
                name="interval",
            ),
            web.get("/api/config", self.config, name="config"),
            web.get("/api/socket.io/", self.events, name="events"),
        ]

    async def create(self, request: web.Request) -> web.Response:
        """Make and start a sandbox."""
        wanted = await request.json()
        if not isinstance(wanted, dict):
            raise Refusal(400, "body must be an object")
        return self._described(await self._sandboxes.create(wanted))

    async def list(self, request: web.Request) -> web.Response:
        """A page of sandboxes, filtered by labels (containment), id and name (prefix) and states."""
        query = request.query
        labels = json.loads(query.get("labels") or "{}")
        states = {state for given in query.getall("states", []) for state in given.split(",")}
        limit = int(query.get("limit") or PAGE)
        if not 1 <= limit <= PAGE_LIMIT:
            raise Refusal(400, f"limit must be between 1 and {PAGE_LIMIT}")
        found = [
            row
            for row in self._sandboxes.listed()
            if labels.items() <= row["labels"].items()
            and row["id"].startswith(query.get("id", ""))
            and row["name"].startswith(query.get("name", ""))
            and (not states or row["state"] in states)
        ]
        after = base64.urlsafe_b64decode(query["cursor"]).decode() if query.get("cursor") else ""
        found = [row for row in found if _position(row) > after]
        page = found[:limit]
        more = base64.urlsafe_b64encode(_position(page[-1]).encode()).decode() if len(found) > limit else None
        return web.json_response(
            {"items": [{k: v for k, v in row.items() if k != "env"} for row in page], "nextCursor": more}
        )

    async def get(self, request: web.Request) -> web.Response:
        """One sandbox by id or name."""
        return self._described(self._found(request))

    async def delete(self, request: web.Request) -> web.Response:
        """Destroy a sandbox. A conflict while its state changes."""
        sandbox = self._found(request)
        if sandbox.state in PASSING:
            raise Refusal(409, "Sandbox state change in progress")
        await self._sandboxes.destroy(sandbox)
        return self._described(sandbox)

    async def start(self, request: web.Request) -> web.Response:
        """Start a stopped or archived sandbox."""
        sandbox = self._found(request)
        await self._sandboxes.start(sandbox)
        return self._described(sandbox)

    async def stop(self, request: web.Request) -> web.Response:
        """Stop a running sandbox."""
        sandbox = self._found(request)
        await self._sandboxes.stop(sandbox)
        return self._described(sandbox)

    async def archive(self, request: web.Request) -> web.Response:
        """Put a stopped sandbox away."""
        sandbox = self._found(request)
        if sandbox.state != "stopped":
            raise Refusal(400, "Sandbox is not stopped")
        sandbox.change("archived", desired="archived")
        return self._described(sandbox)

    async def labels(self, request: web.Request) -> web.Response:
        """Replace the labels."""
        sandbox = self._found(request)
        labels = (await request.json())["labels"]
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise Refusal(400, "labels must be an object of strings")
        sandbox.labels = labels
        return web.json_response({"labels": labels})

    async def interval(self, request: web.Request) -> web.Response:
        """Set one of the automatic intervals, in minutes."""
        sandbox = self._found(request)
        minutes = float(request.match_info["minutes"])
        name = request.match_info["interval"]
        if minutes < 0 and name != "autodelete":
            raise Refusal(400, "interval must be a non-negative number")
        setattr(sandbox, name, int(minutes) if minutes.is_integer() else minutes)
        return self._described(sandbox)

    async def ttl(self, request: web.Request) -> web.Response:
        """Set the wall-clock life, in minutes from creation."""
        sandbox = self._found(request)
        sandbox.ttl = float(request.match_info["minutes"])
        return self._described(sandbox)

    async def touch(self, request: web.Request) -> web.Response:
        """Note activity."""
        self._found(request).touch()
        return web.Response(status=201)

    async def network(self, request: web.Request) -> web.Response:
        """Record network settings. No sandbox of this server has a network, whatever they say."""
        sandbox = self._found(request)
        wanted = await request.json()
        sandbox.network |= {key: value for key, value in wanted.items() if key in NETWORK_KEYS and value is not None}
        return self._described(sandbox)

    async def public(self, request: web.Request) -> web.Response:
        """Record whether previews need a token."""
        sandbox = self._found(request)
        sandbox.public = request.match_info["public"] == "true"
        return self._described(sandbox)

    async def toolbox_url(self, request: web.Request) -> web.Response:
        """Where the toolbox is."""
        self._found(request)
        return web.json_response({"url": self._sandboxes.toolbox_url})

    async def preview(self, request: web.Request) -> web.Response:
        """A loopback address that names a port. Nothing answers there: these sandboxes have no network."""
        sandbox = self._found(request)
        port = int(request.match_info["port"])
        if not 1 <= port <= 65535:
            raise Refusal(400, "Invalid port")
        url = f"{self._sandboxes.base_url}/preview/{sandbox.id}/{port}"
        return web.json_response({"sandboxId": sandbox.id, "port": port, "url": url, "token": sandbox.preview_token})

    async def config(self, _request: web.Request) -> web.Response:
        """The deployment's description."""
        base = self._sandboxes.base_url
        return web.json_response(
            {
                "version": "local",
                "oidc": {"issuer": base, "clientId": "local", "audience": "local"},
                "linkedAccountsEnabled": False,
                "announcements": {},
                "proxyTemplateUrl": base + "/preview/{{sandboxId}}/{{PORT}}",
                "proxyToolboxUrl": self._sandboxes.toolbox_url,
                "defaultSnapshot": "local",
                "dashboardUrl": base,
                "maxAutoArchiveInterval": 43200,
                "maintananceMode": False,
                "environment": "local",
            }
        )

    async def events(self, _request: web.Request) -> web.Response:
        """There is no event channel; the SDK polls without one."""
        raise Refusal(404, "Cannot GET /api/socket.io/")

    def _found(self, request: web.Request) -> Sandbox:
        return self._sandboxes.find(request.match_info["sandbox"])

    def _described(self, sandbox: Sandbox) -> web.Response:
        return web.json_response(self._sandboxes.describe(sandbox))


def _position(row: dict[str, Any]) -> str:
    return f"{row['createdAt']} {row['id']}"
