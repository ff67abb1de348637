"""The JSON of requests and responses as marshmallow schemas: plain data on one side, domain values on the other."""

from datetime import datetime
from typing import Any, Final

from marshmallow import EXCLUDE, RAISE, Schema, ValidationError, fields, post_dump, post_load, pre_load, validate

from fleet_shared.contract.frames import format_time
from fleet_shared.domain.session import DEFAULT_TITLE, TITLE_LIMIT
from fleet_shared.domain.turn import PROMPT_LIMIT, TurnOptions, TurnRequest

COMMENT_LIMIT: Final = 2000


class Instant(fields.Field[datetime]):
    """A time as RFC 3339 in UTC with `Z`."""

    def _serialize(self, value: datetime | None, attr: str | None, obj: Any, **kwargs: Any) -> str | None:
        return format_time(value) if value is not None else None


def _is_clean(text: str) -> None:
    """Refuse NUL and lone surrogates."""
    if "\0" in text:
        raise ValidationError("Must not contain NUL.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValidationError("Must be valid Unicode.") from None


def _is_not_blank(text: str) -> None:
    if not text.strip():
        raise ValidationError("Must not be blank.")


class _Request(Schema):
    class Meta:
        unknown = RAISE

    @pre_load
    def _is_object(self, data: Any, **_: Any) -> Any:
        if not isinstance(data, dict):
            raise ValidationError("Must be an object.")
        return data


class SessionRequestSchema(_Request):
    """POST /api/sessions."""

    title = fields.String(load_default=DEFAULT_TITLE, validate=[validate.Length(max=TITLE_LIMIT), _is_clean])

    @post_load
    def _trim(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {"title": data["title"].strip() or DEFAULT_TITLE}


class SessionChangeSchema(_Request):
    """PATCH /api/sessions/{session_id}."""

    title = fields.String(validate=[validate.Length(min=1, max=TITLE_LIMIT), _is_not_blank, _is_clean])
    status = fields.String(validate=validate.OneOf(["active", "archived"]))

    @post_load
    def _trim(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        if not data:
            raise ValidationError("Give a title or a status.")
        if "title" in data:
            data["title"] = data["title"].strip()
        return data


class TurnOptionsSchema(_Request):
    """`options` of a Turn."""

    model = fields.String(load_default=None, validate=[validate.Length(min=1, max=255), _is_clean])
    sub_model = fields.String(load_default=None, validate=[validate.Length(min=1, max=255), _is_clean])
    recursion_enabled = fields.Boolean(load_default=None, truthy={True}, falsy={False})
    max_iterations = fields.Integer(load_default=None, strict=True, validate=validate.Range(min=1))
    timeout_s = fields.Integer(load_default=None, strict=True, validate=validate.Range(min=1))

    @post_load
    def _make(self, data: dict[str, Any], **_: Any) -> TurnOptions:
        return TurnOptions(**data)


class TurnRequestSchema(_Request):
    """POST /api/sessions/{session_id}/turns."""

    prompt = fields.String(required=True, validate=[validate.Length(min=1, max=PROMPT_LIMIT), _is_not_blank, _is_clean])
    attachment_ids = fields.List(fields.UUID(), load_default=list, validate=validate.Length(max=32))
    skills = fields.List(
        fields.String(validate=[validate.Length(min=1, max=255), _is_clean]),
        load_default=list,
        validate=validate.Length(max=8),
    )
    options = fields.Nested(TurnOptionsSchema, load_default=TurnOptions)

    @post_load
    def _make(self, data: dict[str, Any], **_: Any) -> TurnRequest:
        ids = [str(item) for item in data["attachment_ids"]]
        if len(set(ids)) != len(ids):
            raise ValidationError("Must be unique.", "attachment_ids")
        return TurnRequest(
            prompt=data["prompt"],
            attachment_ids=tuple(ids),
            skills=tuple(data["skills"]),
            options=data["options"],
        )


class FeedbackSchema(_Request):
    """POST /api/turns/{turn_id}/feedback."""

    rating = fields.String(required=True, validate=validate.OneOf(["up", "down"]))
    comment = fields.String(
        load_default=None, allow_none=True, validate=[validate.Length(max=COMMENT_LIMIT), _is_clean]
    )


class SettingsChangeSchema(_Request):
    """PATCH /api/settings."""

    revision = fields.Integer(required=True, strict=True, validate=validate.Range(min=0))
    changes = fields.Dict(keys=fields.String(), values=fields.Raw(allow_none=True), required=True)


class _Response(Schema):
    class Meta:
        unknown = EXCLUDE


class SessionSchema(_Response):
    """A Session."""

    id = fields.String()
    title = fields.String()
    status = fields.String()
    turn_count = fields.Integer()
    workspace_revision = fields.Integer()
    created_at = Instant()
    updated_at = Instant()
    open_turn_id = fields.String(allow_none=True)


class AttachmentSchema(_Response):
    """An Attachment."""

    id = fields.String()
    name = fields.String()
    media_type = fields.String()
    bytes = fields.Integer()
    sha256 = fields.String()
    created_at = Instant()


class ArtifactSchema(AttachmentSchema):
    """An Artifact."""

    session_id = fields.String()
    turn_id = fields.String()
    path = fields.String()
    title = fields.String()


class FileEntrySchema(_Response):
    """An entry of a Workspace."""

    path = fields.String()
    kind = fields.String()
    bytes = fields.Integer()
    sha256 = fields.String(allow_none=True)
    media_type = fields.String(allow_none=True)
    executable = fields.Boolean()
    changed_by_turn_id = fields.String(allow_none=True)
    modified_at = Instant()


class FileChangeSchema(_Response):
    """A file a Turn changed."""

    path = fields.String()
    change = fields.String()
    bytes = fields.Integer()


class ModelUsageSchema(_Response):
    """What the calls to one model came to."""

    calls = fields.Integer()
    input_tokens = fields.Integer()
    output_tokens = fields.Integer()
    cost_usd = fields.Float(allow_none=True)


class UsageSchema(_Response):
    """What a Turn used."""

    iterations = fields.Integer()
    lm_calls = fields.Integer()
    sub_lm_calls = fields.Integer()
    replayed_calls = fields.Integer()
    children = fields.Integer()
    tool_calls = fields.Integer()
    input_tokens = fields.Integer()
    output_tokens = fields.Integer()
    cost_usd = fields.Float(allow_none=True)
    estimated = fields.Boolean()
    duration_ms = fields.Integer()
    queue_ms = fields.Integer()
    sandbox_ms = fields.Integer()
    by_model = fields.Dict(keys=fields.String(), values=fields.Nested(ModelUsageSchema))


class SkillRefSchema(_Response):
    """A Skill version a Turn was given."""

    name = fields.String()
    version = fields.String()


class TurnErrorSchema(_Response):
    """Why a Turn failed."""

    code = fields.String()
    message = fields.String()
    retryable = fields.Boolean()


class TurnSchema(_Response):
    """A Turn."""

    id = fields.String()
    session_id = fields.String()
    sequence = fields.Integer()
    status = fields.String()
    prompt = fields.String()
    attachments = fields.List(fields.Nested(AttachmentSchema))
    skills = fields.List(fields.Nested(SkillRefSchema))
    options = fields.Dict()
    attempt = fields.Integer()
    losses = fields.Integer()
    answer = fields.String(allow_none=True)
    result = fields.Dict(allow_none=True)
    forced = fields.Method("_forced")
    artifacts = fields.List(fields.Nested(ArtifactSchema))
    files_changed = fields.List(fields.Nested(FileChangeSchema))
    usage = fields.Nested(UsageSchema, allow_none=True)
    error = fields.Nested(TurnErrorSchema, allow_none=True)
    last_event_seq = fields.Integer()
    cancel_requested_at = Instant()
    created_at = Instant()
    started_at = Instant()
    finished_at = Instant()

    def _forced(self, turn: Any) -> dict[str, str] | None:
        return {"reason": turn.forced.value} if turn.forced is not None else None

    @post_dump
    def _links(self, data: dict[str, Any], **_: Any) -> dict[str, Any]:
        turn = f"/api/turns/{data['id']}"
        links = {"self": turn, "events": f"{turn}/events", "cancel": f"{turn}/cancel"}
        return {**data, "links": {**links, "session": f"/api/sessions/{data['session_id']}"}}
