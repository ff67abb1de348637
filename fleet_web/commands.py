"""One function per write: Sessions, Turns, cancels, Attachments. Each is one transaction and knows no HTTP."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fleet_shared.blobs import write_blob
from fleet_shared.contract.frames import encode
from fleet_shared.domain.errors import Conflict, InvalidInput, LimitReached, SessionBusy
from fleet_shared.domain.events import Envelope, TurnQueued
from fleet_shared.domain.files import Attachment, media_type_of
from fleet_shared.domain.ids import new_id
from fleet_shared.domain.session import Session, SessionStatus
from fleet_shared.domain.turn import Turn, TurnRequest, TurnStatus
from fleet_shared.ledger.sweep import CANCEL_PATIENCE_S
from fleet_shared.messaging.control import tell_cancel
from fleet_shared.settings import Settings, options
from fleet_shared.store import Transaction, attachments, database_now, sandboxes, sessions, turns
from fleet_shared.store.events import NewEvent, StoredEvent
from fleet_shared.store.preferences import get_preferences, lock_owner, save_preferences
from fleet_web.parts import Parts

#: Options of a Turn that are settings too.
_OPTION_KEYS: Final = {
    "recursion_enabled": "rlm.recursion_enabled",
    "max_iterations": "rlm.max_iterations",
    "timeout_s": "run.timeout_s",
}
_NAME_BYTES: Final = 255


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted Turn; `is_new` is False when the idempotency key had it already."""

    turn: Turn
    is_new: bool


def create_session(parts: Parts, owner_id: str, title: str) -> Session:
    """A new Session."""

    def work(tx: Transaction) -> Session:
        now = database_now(tx)
        created = Session(new_id(), owner_id, title, SessionStatus.ACTIVE, 0, 0, now, now, None)
        sessions.insert_session(tx, created)
        return created

    return parts.database.run(work)


def change_session(parts: Parts, owner_id: str, session_id: str, changes: dict[str, Any]) -> Session:
    """Rename, archive or revive a Session. Raises NotFound, SessionBusy when it is archived with an open Turn."""

    def work(tx: Transaction) -> Session:
        session = sessions.lock_session(tx, owner_id, session_id)
        if changes.get("status") == SessionStatus.ARCHIVED.value:
            _refuse_open(session)
            sandboxes.retire_of_session(tx, session_id)
        sessions.update_session(tx, session_id, updated_at=database_now(tx), **changes)
        return sessions.get_session(tx, owner_id, session_id)

    return parts.database.run(work)


def delete_session(parts: Parts, owner_id: str, session_id: str) -> None:
    """Remove a Session with everything it owns. Raises NotFound, SessionBusy."""

    def work(tx: Transaction) -> None:
        _refuse_open(sessions.lock_session(tx, owner_id, session_id))
        sandboxes.retire_of_session(tx, session_id)
        sessions.delete_session(tx, session_id)

    parts.database.run(work)


def accept_turn(
    parts: Parts, owner_id: str, session_id: str, request: TurnRequest, *, idempotency_key: str | None
) -> Accepted:
    """Accept a Turn: its row and first fact are committed, a worker is told soon, Redis is not waited for.

    Raises NotFound, InvalidInput naming the field, Conflict (idempotency_mismatch, session_archived), SessionBusy,
    LimitReached (owner_limit).
    """
    digest = hashlib.sha256(json.dumps(asdict(request), sort_keys=True).encode()).hexdigest()

    def work(tx: Transaction) -> tuple[str, list[NewEvent]]:
        lock_owner(tx, owner_id)
        session = sessions.lock_session(tx, owner_id, session_id)
        known = turns.find_by_key(tx, session_id, idempotency_key) if idempotency_key is not None else None
        if known is not None:
            if known.request_sha256 != digest:
                raise Conflict("idempotency_mismatch", "This Idempotency-Key was used for another request.")
            return known.turn_id, []
        if session.status is SessionStatus.ARCHIVED:
            raise Conflict("session_archived", "The Session is archived; make it active again first.")
        _refuse_open(session)
        settings = _effective(parts, tx, owner_id, request)
        _check_attachments(parts, tx, owner_id, request)
        if turns.count_open(tx, owner_id, TurnStatus.QUEUED) >= settings.owner.max_queued:
            raise LimitReached("owner_limit", "Too many Turns are waiting; let some of them end.", retry_after_s=5)
        now = database_now(tx)
        turn_id = new_id()
        queued = TurnQueued(session_id)
        events = [NewEvent(queued.type, encode(queued, Envelope(turn_id, now)))]
        turns.insert_turn(
            tx,
            turns.NewTurn(
                id=turn_id,
                owner_id=owner_id,
                session_id=session_id,
                sequence=session.turn_count + 1,
                prompt=request.prompt,
                effective=_copied(parts, settings, request),
                idempotency_key=idempotency_key,
                request_sha256=digest,
                attachment_ids=request.attachment_ids,
                base_revision=session.workspace_revision,
                created_at=now,
            ),
            events,
        )
        sessions.update_session(tx, session_id, updated_at=now, turn_count=session.turn_count + 1)
        return turn_id, events

    turn_id, events = parts.database.run(work)
    if events:
        parts.dispatcher.soon(lambda: parts.nudge(turn_id))
        parts.publisher.facts(turn_id, [StoredEvent(1 + n, item.type, item.body) for n, item in enumerate(events)])
    return Accepted(parts.database.run(lambda tx: turns.get_turn(tx, owner_id, turn_id)), bool(events))


def cancel_turn(parts: Parts, owner_id: str, turn_id: str) -> Turn:
    """Ask for the end of a Turn; the worker is told at once, and ended from here when it does not react in time."""
    parts.database.run(lambda tx: turns.get_turn(tx, owner_id, turn_id))
    state = parts.ledger.request_cancel(turn_id)
    if not state.status.is_terminal:
        parts.dispatcher.soon(lambda: tell_cancel(parts.redis, parts.names, turn_id))
        parts.dispatcher.soon(lambda: parts.sweep.end_cancelled(turn_id), after_s=CANCEL_PATIENCE_S + 0.05)
    return parts.database.run(lambda tx: turns.get_turn(tx, owner_id, turn_id))


def add_attachment(parts: Parts, owner_id: str, name: str, source: Iterable[bytes]) -> Attachment:
    """Store an uploaded file. Raises InvalidInput for an empty one or an impossible name, TooLarge."""
    clean_name = clean_file_name(name)
    limit = parts.loaded.settings.files.max_attachment_bytes
    blob = write_blob(parts.database, owner_id, source, limit=limit)
    if blob.bytes == 0:
        raise InvalidInput("The file is empty.", errors={"file": ["The file is empty."]})
    attachment = Attachment(
        id=new_id(),
        owner_id=owner_id,
        name=clean_name,
        media_type=media_type_of(clean_name),
        bytes=blob.bytes,
        sha256=blob.sha256,
        created_at=datetime.now(UTC),
    )
    parts.database.run(lambda tx: attachments.insert_attachment(tx, attachment, blob_id=blob.id))
    return attachment


def remove_attachment(parts: Parts, owner_id: str, attachment_id: str) -> None:
    """Remove an Attachment. Raises NotFound, Conflict (attachment_in_use)."""

    def work(tx: Transaction) -> None:
        attachments.get_attachment(tx, owner_id, attachment_id)
        if attachments.is_used(tx, attachment_id):
            raise Conflict("attachment_in_use", "A Turn refers to this Attachment.")
        attachments.delete_attachment(tx, attachment_id)

    parts.database.run(work)


def give_feedback(parts: Parts, owner_id: str, turn_id: str, feedback: dict[str, Any]) -> None:
    """Keep the owner's opinion of a Turn; the last one counts."""

    def work(tx: Transaction) -> None:
        turns.get_turn(tx, owner_id, turn_id)
        turns.set_feedback(tx, turn_id, feedback)

    parts.database.run(work)


def clean_file_name(name: str) -> str:
    """A file name without directories and without what no file system takes. Raises InvalidInput."""
    base = name.replace("\\", "/").rpartition("/")[2]
    kept = "".join(
        character for character in base if character.isprintable() and not 0xD800 <= ord(character) <= 0xDFFF
    )
    kept = kept.strip()
    while len(kept.encode("utf-8")) > _NAME_BYTES:
        stem, dot, suffix = kept.rpartition(".")
        kept = f"{stem[:-1]}.{suffix}" if dot and len(stem) > 1 else kept[:-1]
    if kept in ("", ".", ".."):
        raise InvalidInput("The file needs a name.", errors={"file": ["The file needs a name."]})
    return kept


def _refuse_open(session: Session) -> None:
    if session.open_turn_id is not None:
        raise SessionBusy(session.open_turn_id)


def _effective(parts: Parts, tx: Transaction, owner_id: str, request: TurnRequest) -> Settings:
    """The owner's settings with the Turn's options, each within its bounds and the operator's cap."""
    settings = parts.loaded.for_owner(get_preferences(tx, owner_id).changes)
    declared, chosen, errors = options(), {}, {}
    for name, key in _OPTION_KEYS.items():
        value = getattr(request.options, name)
        if value is None:
            continue
        try:
            declared[key].check(value)
        except ValueError as error:
            errors[f"options.{name}"] = [str(error)]
            continue
        cap = parts.loaded.caps.get(key)
        if cap is not None and value > cap:
            errors[f"options.{name}"] = [f"must be at most {cap}"]
        chosen[key] = value
    for name in ("model", "sub_model"):
        asked = getattr(request.options, name)
        if asked is not None and parts.models.named(asked) is None:
            errors[f"options.{name}"] = [f"there is no model named {asked}; GET /api/models lists them"]
    for skill in request.skills:
        errors.setdefault("skills", []).append(f"there is no Skill named {skill}")
    if errors:
        field, messages = next(iter(errors.items()))
        raise InvalidInput(f"{field}: {messages[0]}", errors=errors)
    return settings.with_values(chosen)


def _check_attachments(parts: Parts, tx: Transaction, owner_id: str, request: TurnRequest) -> None:
    found = attachments.find_attachments(tx, owner_id, request.attachment_ids)
    missing = set(request.attachment_ids) - {item.id for item in found}
    if missing:
        message = f"there is no Attachment {min(missing)}"
        raise InvalidInput(f"attachment_ids: {message}", errors={"attachment_ids": [message]})
    limit = parts.loaded.settings.files.max_turn_attachment_bytes
    if sum(item.bytes for item in found) > limit:
        message = f"together more than {limit} bytes"
        raise InvalidInput(f"attachment_ids: {message}", errors={"attachment_ids": [message]})


def _copied(parts: Parts, settings: Settings, request: TurnRequest) -> dict[str, Any]:
    """What serves all attempts of the Turn, whatever is changed meanwhile."""
    root = request.options.model or parts.models.default
    sub = request.options.sub_model or (root if request.options.model else parts.models.default_sub)
    return {
        "settings": {key: settings.value(key) for key in options()},
        "options": {
            "model": root,
            "sub_model": sub,
            "recursion_enabled": settings.rlm.recursion_enabled,
            "max_iterations": settings.rlm.max_iterations,
            "timeout_s": settings.run.timeout_s,
        },
        "models": {"root": root, "sub": sub},
        "skills": [],
        "notes": [],
    }


def change_settings(parts: Parts, owner_id: str, *, revision: int, changes: dict[str, Any]) -> None:
    """Set the owner's values; None goes back to the default. Raises InvalidInput, Conflict (revision_conflict)."""
    declared, errors = options(), {}
    for key, value in changes.items():
        option = declared.get(key)
        if option is None:
            errors[key] = ["There is no such setting."]
        elif option.scope != "owner":
            errors[key] = ["Only the operator can change it."]
        elif value is not None:
            try:
                option.check(value)
            except ValueError as error:
                errors[key] = [str(error)]
                continue
            cap = parts.loaded.caps.get(key)
            if cap is not None and value > cap:
                errors[key] = [f"must be at most {cap}"]
    if errors:
        key, messages = next(iter(errors.items()))
        raise InvalidInput(f"{key}: {messages[0]}", errors=errors)

    def work(tx: Transaction) -> None:
        present = get_preferences(tx, owner_id).changes
        kept = {key: value for key, value in {**present, **changes}.items() if value is not None}
        save_preferences(tx, owner_id, revision=revision, changes=kept)

    parts.database.run(work)
