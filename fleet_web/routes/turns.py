"""/api/turns: a Turn, its events, cancel and feedback."""

from flask import Blueprint, Response, request

from fleet_shared.contract.frames import message_json
from fleet_shared.contract.schemas import FeedbackSchema, TurnSchema
from fleet_shared.contract.validation import dump, load
from fleet_shared.domain.errors import Gone
from fleet_shared.domain.turn import Turn
from fleet_shared.store import turns
from fleet_shared.store.events import read_events
from fleet_web import commands
from fleet_web.parts import Parts
from fleet_web.queries import parse_limit
from fleet_web.routes.request import answer, caller, json_body, known_id, no_arguments_but
from fleet_web.stream import TurnEvents, parse_after, prefers_json

EVENTS_LIMIT = 1000


def turn_routes(parts: Parts, events: TurnEvents) -> Blueprint:
    """The blueprint; `events` streams."""
    blueprint = Blueprint("turns", __name__)

    @blueprint.get("/api/turns/<turn_id>")
    def show(turn_id: str) -> Response:
        return answer(dump(TurnSchema(), _get(parts, turn_id)))

    @blueprint.get("/api/turns/<turn_id>/events")
    def follow(turn_id: str) -> Response:
        no_arguments_but("after", "limit")
        turn = _get(parts, turn_id)
        after = parse_after()
        expired = _is_expired(parts, turn)
        if prefers_json():
            return _page(parts, turn, after, expired=expired)
        return events.stream(turn, after, caller(), expired=expired)

    @blueprint.post("/api/turns/<turn_id>/cancel")
    def cancel(turn_id: str) -> Response:
        turn = commands.cancel_turn(parts, caller().owner_id, known_id("turn", turn_id))
        return answer(dump(TurnSchema(), turn), 200 if turn.status.is_terminal else 202)

    @blueprint.post("/api/turns/<turn_id>/feedback")
    def feedback(turn_id: str) -> Response:
        given = load(FeedbackSchema(), json_body())
        commands.give_feedback(parts, caller().owner_id, known_id("turn", turn_id), given)
        return Response(status=204)

    return blueprint


def _get(parts: Parts, turn_id: str) -> Turn:
    with parts.database.read() as tx:
        return turns.get_turn(tx, caller().owner_id, known_id("turn", turn_id))


def _is_expired(parts: Parts, turn: Turn) -> bool:
    with parts.database.read() as tx:
        return turns.events_are_expired(tx, turn.id)


def _page(parts: Parts, turn: Turn, after: int, *, expired: bool) -> Response:
    if expired:
        raise Gone("The events of this Turn are no longer kept; the Turn itself is: GET /api/turns/" + turn.id)
    limit = parse_limit(request.args.get("limit"), default=EVENTS_LIMIT, maximum=EVENTS_LIMIT)
    with parts.database.read() as tx:
        stored = read_events(tx, turn.id, after=after, limit=limit)
    items = ",".join(message_json(item.body, item.seq) for item in stored)
    next_after = stored[-1].seq if stored else after
    complete = "true" if turn.status.is_terminal and next_after >= turn.last_event_seq else "false"
    body = f'{{"items":[{items}],"next_after":{next_after},"complete":{complete}}}'
    return Response(body, content_type="application/json", headers={"Cache-Control": "no-store"})
