"""The application: parts wired together, every request identified, authorised and logged."""

import logging
import random
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from flask import Flask, Response, g, request
from werkzeug.middleware.proxy_fix import ProxyFix

from fleet_shared.domain.errors import ForbiddenOrigin
from fleet_shared.domain.ids import new_id
from fleet_shared.ledger import Ledger, Sweep
from fleet_shared.ledger.sweep import sweep_quietly
from fleet_shared.messaging.hub import Hub
from fleet_shared.messaging.live import LivePublisher
from fleet_shared.messaging.names import Names
from fleet_shared.messaging.queue import make_celery, make_nudge
from fleet_shared.messaging.redis import make_redis
from fleet_shared.settings import Process, Role, load_models, load_process, load_settings
from fleet_shared.store import Database
from fleet_shared.store.deployment import deployment_id
from fleet_shared.store.events import last_numbers
from fleet_web.auth import Tokens
from fleet_web.dispatch import Dispatcher
from fleet_web.errors import install_errors
from fleet_web.parts import Parts
from fleet_web.routes.files import file_routes
from fleet_web.routes.service import service_routes
from fleet_web.routes.sessions import session_routes
from fleet_web.routes.turns import turn_routes
from fleet_web.stream import TurnEvents

log = logging.getLogger(__name__)

#: Seconds between the passes of the sweep's cheap half.
SWEEP_S: Final = 10.0
_SANE_ID: Final = re.compile(r"[\w.:/+=-]{1,128}")
_OPEN_PATHS: Final = ("/health", "/health/ready")


def make_parts(environment: Mapping[str, str]) -> Parts:
    """The parts that the environment describes; nothing is started. Raises BadSetting, Unavailable."""
    process = load_process(environment, Role.WEB)
    loaded = load_settings(environment)
    for variable in loaded.unknown:
        log.warning("settings.unknown", extra={"variable": variable})
    database = Database(process.database_url)
    names = Names(database.run(deployment_id))
    client = make_redis(process.redis_url, max_connections=6, name="web")
    publisher = LivePublisher(make_redis(process.redis_url, max_connections=1, name="web-live"), names)
    nudge = make_nudge(make_celery(process.redis_url, names, Role.WEB), names)
    ledger = Ledger(database, publisher, nudge)
    return Parts(
        process=process,
        loaded=loaded,
        models=load_models(environment),
        names=names,
        database=database,
        redis=client,
        publisher=publisher,
        nudge=nudge,
        ledger=ledger,
        sweep=Sweep(database, ledger, nudge),
        hub=Hub(client, names, lambda ids: database.run(lambda tx: last_numbers(tx, ids))),
        dispatcher=Dispatcher(),
        tokens=Tokens(database),
    )


def create_app(parts: Parts) -> Flask:
    """The WSGI application over `parts`."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_FORM_MEMORY_SIZE"] = 64 * 1024
    web = parts.loaded.settings.web
    events = TurnEvents(
        database=parts.database,
        hub=parts.hub,
        client=parts.redis,
        max_streams=web.max_streams,
        per_owner=web.max_owner_streams,
    )
    for blueprint in (session_routes(parts), turn_routes(parts, events), file_routes(parts), service_routes(parts)):
        app.register_blueprint(blueprint)
    install_errors(app)
    _install_guards(app, parts)
    if parts.process.on_dyno:
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=1, x_proto=1)  # type: ignore[method-assign]
    return app


def start_parts(parts: Parts) -> None:
    """Begin the threads of this process."""
    parts.publisher.start()
    parts.dispatcher.start()
    parts.hub.start()
    threading.Thread(target=_sweep_for_ever, args=(parts,), name="sweep", daemon=True).start()


def _sweep_for_ever(parts: Parts) -> None:
    while not parts.hub.is_stopping:
        sweep_quietly(parts.sweep)
        time.sleep(SWEEP_S * random.uniform(0.8, 1.2))


def _install_guards(app: Flask, parts: Parts) -> None:
    @app.before_request
    def identify() -> None:
        given = request.headers.get("X-Request-ID", "")
        g.request_id = given if _SANE_ID.fullmatch(given) else new_id()
        g.began = time.monotonic()
        if parts.loaded.settings.web.local_only:
            _refuse_foreign(parts.process)
        if request.path not in _OPEN_PATHS:
            g.caller = parts.tokens.caller(request.headers.get("Authorization"))

    @app.after_request
    def finish(response: Response) -> Response:
        response.headers["X-Request-ID"] = g.get("request_id") or new_id()
        fields: dict[str, Any] = {
            "method": request.method,
            "path": request.path,
            "status": response.status_code,
            "ms": int((time.monotonic() - g.get("began", time.monotonic())) * 1000),
            "request_id": g.get("request_id"),
        }
        if request.path not in _OPEN_PATHS:
            log.info("request", extra=fields)
        return response


def _refuse_foreign(process: Process) -> None:
    """Local mode answers this machine alone: no other Host, no page of another origin."""
    allowed = {f"{host}:{process.port}" for host in ("127.0.0.1", "localhost", "[::1]")}
    origin = request.headers.get("Origin")
    if request.host not in allowed:
        raise ForbiddenOrigin
    if origin is not None and origin.partition("://")[2] not in allowed:
        raise ForbiddenOrigin
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise ForbiddenOrigin
