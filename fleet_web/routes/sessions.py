"""/api/sessions: Sessions, their Turns and their files."""

from flask import Blueprint, Response, request

from fleet_shared.contract.schemas import (
    ArtifactSchema,
    AttachmentSchema,
    FileEntrySchema,
    SessionChangeSchema,
    SessionRequestSchema,
    SessionSchema,
    TurnRequestSchema,
    TurnSchema,
)
from fleet_shared.contract.validation import dump, load
from fleet_shared.domain.errors import InvalidInput
from fleet_shared.domain.session import Session, SessionStatus
from fleet_shared.store import artifacts, attachments, sessions, turns
from fleet_web import commands, queries
from fleet_web.parts import Parts
from fleet_web.routes.request import answer, caller, content, json_body, known_id, listing, no_arguments_but

#: Bytes at which the prompt and answer of a listed Turn are cut.
LISTED_BYTES = 4096


def session_routes(parts: Parts) -> Blueprint:
    """The blueprint."""
    blueprint = Blueprint("sessions", __name__)

    @blueprint.post("/api/sessions")
    def create() -> Response:
        title = load(SessionRequestSchema(), json_body())["title"]
        session = commands.create_session(parts, caller().owner_id, title)
        return answer(dump(SessionSchema(), session), 201, location=f"/api/sessions/{session.id}")

    @blueprint.get("/api/sessions")
    def index() -> Response:
        no_arguments_but("status", "search", "limit", "cursor")
        page = queries.parse_page(parts, request.args.get("limit"), request.args.get("cursor"))
        status, search = _status(request.args.get("status")), request.args.get("search")
        owner_id = caller().owner_id
        items, cursor = queries.listed(
            parts,
            page,
            lambda tx, limit: sessions.list_sessions(
                tx, owner_id, limit=limit, status=status, search=search, before=page.before
            ),
            lambda item: (item.updated_at, item.id),
        )
        return listing(dump(SessionSchema(many=True), items), cursor)

    @blueprint.get("/api/sessions/<session_id>")
    def show(session_id: str) -> Response:
        return answer(dump(SessionSchema(), _get(parts, session_id)))

    @blueprint.patch("/api/sessions/<session_id>")
    def change(session_id: str) -> Response:
        changes = load(SessionChangeSchema(), json_body())
        session = commands.change_session(parts, caller().owner_id, known_id("session", session_id), changes)
        return answer(dump(SessionSchema(), session))

    @blueprint.delete("/api/sessions/<session_id>")
    def delete(session_id: str) -> Response:
        commands.delete_session(parts, caller().owner_id, known_id("session", session_id))
        return Response(status=204)

    @blueprint.post("/api/sessions/<session_id>/turns")
    def submit(session_id: str) -> Response:
        key = _idempotency_key(request.headers.get("Idempotency-Key"))
        turn_request = load(TurnRequestSchema(), json_body())
        accepted = commands.accept_turn(
            parts, caller().owner_id, known_id("session", session_id), turn_request, idempotency_key=key
        )
        status = 202 if accepted.is_new else 200
        return answer(dump(TurnSchema(), accepted.turn), status, location=f"/api/turns/{accepted.turn.id}")

    @blueprint.get("/api/sessions/<session_id>/turns")
    def list_turns(session_id: str) -> Response:
        no_arguments_but("after", "before", "order", "limit")
        session = _get(parts, session_id)
        limit = queries.parse_limit(request.args.get("limit"))
        order = request.args.get("order", "asc")
        if order not in ("asc", "desc"):
            raise InvalidInput("order: Must be asc or desc.", errors={"order": ["Must be asc or desc."]})
        after, before = _sequence("after"), _sequence("before")
        with parts.database.read() as tx:
            found = turns.list_turns(
                tx, session.id, limit=limit, after=after, before=before, descending=order == "desc"
            )
        return listing([_shortened(dump(TurnSchema(), item)) for item in found], None)

    @blueprint.get("/api/sessions/<session_id>/artifacts")
    def list_artifacts(session_id: str) -> Response:
        no_arguments_but("limit", "cursor")
        session = _get(parts, session_id)
        page = queries.parse_page(parts, request.args.get("limit"), request.args.get("cursor"))
        items, cursor = queries.listed(
            parts,
            page,
            lambda tx, limit: artifacts.list_artifacts(tx, session.id, limit=limit, before=page.before),
            lambda item: (item.created_at, item.id),
        )
        return listing(dump(ArtifactSchema(many=True), items), cursor)

    @blueprint.get("/api/sessions/<session_id>/attachments")
    def list_attachments(session_id: str) -> Response:
        no_arguments_but("limit", "cursor")
        session = _get(parts, session_id)
        page = queries.parse_page(parts, request.args.get("limit"), request.args.get("cursor"))
        items, cursor = queries.listed(
            parts,
            page,
            lambda tx, limit: attachments.list_attachments(
                tx, session.owner_id, limit=limit, session_id=session.id, before=page.before
            ),
            lambda item: (item.created_at, item.id),
        )
        return listing(dump(AttachmentSchema(many=True), items), cursor)

    @blueprint.get("/api/sessions/<session_id>/files")
    def list_files(session_id: str) -> Response:
        no_arguments_but("path", "recursive")
        recursive = request.args.get("recursive", "false")
        if recursive not in ("true", "false"):
            raise InvalidInput("recursive: Must be true or false.", errors={"recursive": ["Must be true or false."]})
        entries = queries.list_files(
            parts,
            caller().owner_id,
            known_id("session", session_id),
            path=request.args.get("path"),
            recursive=recursive == "true",
        )
        return listing(dump(FileEntrySchema(many=True), entries), None)

    @blueprint.get("/api/sessions/<session_id>/files/content")
    def file_content(session_id: str) -> Response:
        no_arguments_but("path")
        stored = queries.get_file(
            parts, caller().owner_id, known_id("session", session_id), request.args.get("path", "")
        )
        entry = stored.entry
        assert stored.blob_id is not None and entry.sha256 is not None
        return content(
            parts,
            stored.blob_id,
            size=entry.bytes,
            sha256=entry.sha256,
            media_type=entry.media_type or "application/octet-stream",
            name=entry.path.rpartition("/")[2],
        )

    return blueprint


def _get(parts: Parts, session_id: str) -> Session:
    with parts.database.read() as tx:
        return sessions.get_session(tx, caller().owner_id, known_id("session", session_id))


def _status(text: str | None) -> SessionStatus | None:
    if text is None:
        return None
    try:
        return SessionStatus(text)
    except ValueError:
        message = "Must be active or archived."
        raise InvalidInput(f"status: {message}", errors={"status": [message]}) from None


def _sequence(name: str) -> int | None:
    text = request.args.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        message = "Must be the sequence of a Turn."
        raise InvalidInput(f"{name}: {message}", errors={name: [message]})
    return int(text)


def _idempotency_key(text: str | None) -> str | None:
    if text is None:
        return None
    if not 1 <= len(text) <= 128 or not all("!" <= character <= "~" for character in text):
        message = "Must be 1 to 128 visible ASCII characters."
        raise InvalidInput(f"Idempotency-Key: {message}", errors={"Idempotency-Key": [message]})
    return text


def _shortened(turn: dict[str, object]) -> dict[str, object]:
    """A listed Turn with prompt and answer cut at 4 KiB, and `truncated` when one was."""
    truncated = False
    for name in ("prompt", "answer"):
        text = turn[name]
        if isinstance(text, str) and len(text.encode("utf-8")) > LISTED_BYTES:
            turn[name] = text.encode("utf-8")[:LISTED_BYTES].decode("utf-8", "ignore")
            truncated = True
    return {**turn, "truncated": True} if truncated else turn
