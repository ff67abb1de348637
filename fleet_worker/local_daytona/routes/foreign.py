"""Serves the toolbox of every sandbox from one foreign address, HTTP and WebSockets alike."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from aiohttp import (
    ClientConnectionError,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    WSMsgType,
    WSServerHandshakeError,
    web,
)

from fleet_worker.local_daytona.access import entry_of
from fleet_worker.local_daytona.refusals import bad_gateway
from fleet_worker.local_daytona.routes.reach import reach
from fleet_worker.local_daytona.routes.sockets import CountedSocket, Sockets
from fleet_worker.local_daytona.sandboxes import Sandboxes

HOP_BY_HOP: Final = frozenset(
    [
        "connection",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "authorization",
    ]
)
CHUNK: Final = 64 * 1024


class ForeignToolbox:
    """The routes below /toolbox/{sandbox}, forwarded to `url`. Ours alone: authorization, states, faults, the log."""

    def __init__(self, sandboxes: Sandboxes, sockets: Sockets, url: str, known: Iterable[web.RouteDef]) -> None:
        self._sandboxes = sandboxes
        self._sockets = sockets
        self._url = url
        self._known = list(known)
        self._session: ClientSession | None = None

    def routes(self) -> list[web.RouteDef]:
        """The same table as our own toolbox, so that operations keep their names, and everything else."""
        named = [web.route(known.method, known.path, self.forward, **known.kwargs) for known in self._known]
        return [*named, web.route("*", "/toolbox/{sandbox}/{tail:.*}", self.forward, name="toolbox_other")]

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on and its answer back."""
        reach(self._sandboxes, request)
        if self._session is None:
            self._session = ClientSession(auto_decompress=False, timeout=ClientTimeout(total=None, sock_connect=10))
        tail = request.rel_url.raw_path.split("/", 3)[3]
        url = f"{self._url}/{tail}" + (
            f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        )
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._forward_socket(request, self._session, url)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        data = request.content.iter_chunked(CHUNK) if request.body_exists else None
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=data, allow_redirects=False
            ) as answer:
                response = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP_BY_HOP:
                        response.headers.add(name, value)
                await response.prepare(request)
                async for chunk in answer.content.iter_chunked(CHUNK):
                    entry_of(request).bytes_out += len(chunk)
                    await response.write(chunk)
                await response.write_eof()
                return response
        except ClientConnectionError:
            return bad_gateway()

    async def _forward_socket(self, request: web.Request, session: ClientSession, url: str) -> web.StreamResponse:
        protocols = [
            offer.strip() for offer in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if offer.strip()
        ]
        kept = {
            name: value
            for name, value in request.headers.items()
            if name.lower().startswith(("x-daytona", "user-agent"))
        }
        try:
            connecting = session.ws_connect(url, protocols=protocols, headers=kept, max_msg_size=0, autoclose=False)
            async with connecting as upstream:
                sandbox = reach(self._sandboxes, request)
                async with self._sockets.accept(request, sandbox) as socket:
                    await _join(socket, upstream)
                return socket
        except WSServerHandshakeError as error:
            return web.Response(status=error.status)
        except ClientConnectionError:
            return bad_gateway()


async def _join(ours: CountedSocket, upstream: ClientWebSocketResponse) -> None:
    """Pass frames both ways until one side closes, then close the other side alike."""
    pumps = [asyncio.create_task(_to_upstream(ours, upstream)), asyncio.create_task(_to_client(upstream, ours))]
    _, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    for pump in left:
        pump.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await pump


async def _to_upstream(ours: CountedSocket, upstream: ClientWebSocketResponse) -> None:
    async for message in ours:
        if message.type is WSMsgType.TEXT:
            await upstream.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await upstream.send_bytes(message.data)
    await upstream.close()


async def _to_client(upstream: ClientWebSocketResponse, ours: CountedSocket) -> None:
    while True:
        message = await upstream.receive()
        if message.type is WSMsgType.TEXT:
            await ours.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await ours.send_bytes(message.data)
        else:
            reason = message.extra.encode() if isinstance(message.extra, str) else b""
            await ours.close(code=upstream.close_code or 1011, message=reason)
            return
