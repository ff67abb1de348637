"""Health, meta, models and settings."""

from flask import Blueprint, Response

from fleet_shared import __version__
from fleet_shared.contract.schemas import SettingsChangeSchema
from fleet_shared.contract.validation import load
from fleet_shared.domain.errors import FleetError
from fleet_shared.domain.session import TITLE_LIMIT
from fleet_shared.domain.turn import PROMPT_LIMIT
from fleet_shared.messaging.redis import is_reachable
from fleet_shared.store import schema, workers
from fleet_web import commands, queries
from fleet_web.parts import Parts
from fleet_web.routes.request import answer, caller, json_body


def service_routes(parts: Parts) -> Blueprint:
    """The blueprint."""
    blueprint = Blueprint("service", __name__)

    @blueprint.get("/health")
    def health() -> Response:
        return answer({"status": "ok", "version": __version__})

    @blueprint.get("/health/ready")
    def ready() -> Response:
        state = _readiness(parts)
        return answer(state, 200 if state["database"] and state["migrations"] else 503)

    @blueprint.get("/api/meta")
    def meta() -> Response:
        files = parts.loaded.settings.files
        limits = {
            "prompt_chars": PROMPT_LIMIT,
            "title_chars": TITLE_LIMIT,
            "attachment_bytes": files.max_attachment_bytes,
            "attachments_per_turn": 32,
            "skills_per_turn": 8,
            "workspace_bytes": files.max_workspace_bytes,
            "workspace_files": files.max_workspace_files,
        }
        return answer({"version": __version__, "limits": limits, "capabilities": ["events", "files", "artifacts"]})

    @blueprint.get("/api/models")
    def models() -> Response:
        names = sorted(parts.models.choices)
        items = [{"name": name, "model": parts.models.choices[name].endpoint.model} for name in names]
        return answer({"items": items, "default": parts.models.default, "default_sub": parts.models.default_sub})

    @blueprint.get("/api/settings")
    def settings() -> Response:
        return answer(queries.describe_settings(parts, caller().owner_id))

    @blueprint.patch("/api/settings")
    def change_settings() -> Response:
        asked = load(SettingsChangeSchema(), json_body())
        commands.change_settings(parts, caller().owner_id, revision=asked["revision"], changes=asked["changes"])
        return answer(queries.describe_settings(parts, caller().owner_id))

    return blueprint


def _readiness(parts: Parts) -> dict[str, bool | int]:
    state: dict[str, bool | int] = {"database": False, "redis": is_reachable(parts.redis), "migrations": False}
    try:
        state["migrations"] = schema.current(parts.database) == schema.head()
        state["database"] = True
        with parts.database.read() as tx:
            state["workers"] = workers.count_alive(tx)
    except FleetError:
        state.setdefault("workers", 0)
    state["degraded"] = not (state["database"] and state["redis"] and state["migrations"] and state.get("workers"))
    return state
