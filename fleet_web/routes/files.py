"""/api/attachments and /api/artifacts: uploads and downloads, streamed."""

from collections.abc import Iterator
from typing import IO, Final
from urllib.parse import unquote

from flask import Blueprint, Response, request
from werkzeug.exceptions import LengthRequired, UnsupportedMediaType

from fleet_shared.contract.schemas import ArtifactSchema, AttachmentSchema
from fleet_shared.contract.validation import dump
from fleet_shared.domain.errors import InvalidInput, Malformed, TooLarge
from fleet_shared.domain.files import Artifact, Attachment
from fleet_shared.store import artifacts, attachments
from fleet_web import commands, queries
from fleet_web.parts import Parts
from fleet_web.routes.request import answer, caller, content, known_id, listing, no_arguments_but

PIECE: Final = 256 * 1024
#: Bytes that a multipart body may have around its file.
ENVELOPE: Final = 64 * 1024


def file_routes(parts: Parts) -> Blueprint:
    """The blueprint."""
    blueprint = Blueprint("files", __name__)

    @blueprint.post("/api/attachments")
    def upload() -> Response:
        limit = parts.loaded.settings.files.max_attachment_bytes
        if request.mimetype == "multipart/form-data":
            if request.content_length is None:
                raise LengthRequired
            if request.content_length > limit + ENVELOPE:
                raise TooLarge(f"An Attachment may have {limit} bytes.")
            request.max_content_length = limit + ENVELOPE
            file = request.files.get("file")
            if file is None:
                raise InvalidInput("file: The form has no field named file.", errors={"file": ["Missing."]})
            name, source = file.filename or "", file.stream
        elif request.mimetype in ("application/json", "application/x-www-form-urlencoded"):
            raise UnsupportedMediaType
        else:
            if request.content_length is not None and request.content_length > limit:
                raise TooLarge(f"An Attachment may have {limit} bytes.")
            request.max_content_length = None
            name, source = _disposition_name(request.headers.get("Content-Disposition", "")), request.stream
        attachment = commands.add_attachment(parts, caller().owner_id, name, _pieces(source))
        return answer(dump(AttachmentSchema(), attachment), 201, location=f"/api/attachments/{attachment.id}")

    @blueprint.get("/api/attachments")
    def index() -> Response:
        no_arguments_but("limit", "cursor")
        page = queries.parse_page(parts, request.args.get("limit"), request.args.get("cursor"))
        owner_id = caller().owner_id
        items, cursor = queries.listed(
            parts,
            page,
            lambda tx, limit: attachments.list_attachments(tx, owner_id, limit=limit, before=page.before),
            lambda item: (item.created_at, item.id),
        )
        return listing(dump(AttachmentSchema(many=True), items), cursor)

    @blueprint.get("/api/attachments/<attachment_id>")
    def show(attachment_id: str) -> Response:
        return answer(dump(AttachmentSchema(), _attachment(parts, attachment_id)[0]))

    @blueprint.delete("/api/attachments/<attachment_id>")
    def delete(attachment_id: str) -> Response:
        commands.remove_attachment(parts, caller().owner_id, known_id("attachment", attachment_id))
        return Response(status=204)

    @blueprint.get("/api/attachments/<attachment_id>/content")
    def attachment_content(attachment_id: str) -> Response:
        found, blob_id = _attachment(parts, attachment_id)
        return content(
            parts, blob_id, size=found.bytes, sha256=found.sha256, media_type=found.media_type, name=found.name
        )

    @blueprint.get("/api/artifacts/<artifact_id>")
    def show_artifact(artifact_id: str) -> Response:
        return answer(dump(ArtifactSchema(), _artifact(parts, artifact_id)[0]))

    @blueprint.get("/api/artifacts/<artifact_id>/content")
    def artifact_content(artifact_id: str) -> Response:
        found, blob_id = _artifact(parts, artifact_id)
        return content(
            parts, blob_id, size=found.bytes, sha256=found.sha256, media_type=found.media_type, name=found.name
        )

    return blueprint


def _attachment(parts: Parts, attachment_id: str) -> tuple[Attachment, str]:
    with parts.database.read() as tx:
        found = attachments.get_attachment(tx, caller().owner_id, known_id("attachment", attachment_id))
        return found, attachments.blob_of_attachment(tx, found.id)


def _artifact(parts: Parts, artifact_id: str) -> tuple[Artifact, str]:
    with parts.database.read() as tx:
        found = artifacts.get_artifact(tx, caller().owner_id, known_id("artifact", artifact_id))
        return found, artifacts.blob_of_artifact(tx, found.id)


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    while piece := source.read(PIECE):
        yield piece


def _disposition_name(header: str) -> str:
    """The file name of a Content-Disposition header; `filename*` (RFC 8187) wins. Raises Malformed, InvalidInput."""
    names: dict[str, str] = {}
    for part in header.split(";")[1:]:
        key, separator, value = part.partition("=")
        if separator:
            names[key.strip().lower()] = value.strip().strip('"')
    if "filename*" in names:
        charset, _, rest = names["filename*"].partition("'")
        try:
            return unquote(rest.partition("'")[2], encoding=charset or "utf-8", errors="strict")
        except (UnicodeDecodeError, LookupError):
            raise Malformed("The filename* of Content-Disposition cannot be read.") from None
    if "filename" not in names:
        message = "Send multipart/form-data with a file, or bytes with Content-Disposition: attachment; filename*=…"
        raise InvalidInput(f"file: {message}", errors={"file": [message]})
    return names["filename"]
