"""The SQL schema as SQLAlchemy tables. Migrations create it; `db check` compares the two.

Texts that are only passed on (event bodies, options, usage) are JSON text, not jsonb: the database never looks inside.
Ids are UUID strings. Sizes are bytes. Times are aware UTC (`Instant`).
"""

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Dialect,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)

OPEN_STATUSES: Final = "status IN ('queued', 'running')"
TERMINAL_FACTS: Final = "type IN ('turn.completed', 'turn.failed', 'turn.cancelled')"


class Instant(TypeDecorator[datetime]):
    """An aware UTC time: `timestamptz` on PostgreSQL, text of fixed width on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id(name: str = "id", *constraints: Any, **options: Any) -> Column[str]:
    return Column(name, String(36), *constraints, **options)


def _partial(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


#: One row, written by the first migration. Its id is in every Redis name and Daytona label of this deployment.
deployment: Final = Table(
    "deployment",
    metadata,
    _id(primary_key=True),
    Column("created_at", Instant, nullable=False),
)

owner: Final = Table(
    "owner",
    metadata,
    _id(primary_key=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("created_at", Instant, nullable=False),
)

#: `secret_sha256` is the hex digest of the whole secret; the secret itself is never stored.
token: Final = Table(
    "token",
    metadata,
    _id(primary_key=True),
    _id("owner_id", ForeignKey("owner.id"), nullable=False),
    Column("name", String(255), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    Column("created_at", Instant, nullable=False),
    Column("revoked_at", Instant),
    Index("uq_token_live_name", "name", unique=True, **_partial("revoked_at IS NULL")),
)

#: Values an owner chose, as one JSON object, changed only with the right revision.
owner_setting: Final = Table(
    "owner_setting",
    metadata,
    _id("owner_id", ForeignKey("owner.id"), primary_key=True),
    Column("revision", Integer, nullable=False),
    Column("changes", Text, nullable=False),
)

#: Content of an owner. `sha256` is set when all chunks are there; the pair (owner, sha256) is stored once.
blob: Final = Table(
    "blob",
    metadata,
    _id(primary_key=True),
    _id("owner_id", ForeignKey("owner.id"), nullable=False),
    Column("sha256", String(64)),
    Column("bytes", BigInteger, nullable=False),
    Column("seen_at", Instant, nullable=False),
    UniqueConstraint("owner_id", "sha256"),
    Index("ix_blob_seen_at", "seen_at"),
)

blob_chunk: Final = Table(
    "blob_chunk",
    metadata,
    _id("blob_id", ForeignKey("blob.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

session: Final = Table(
    "session",
    metadata,
    _id(primary_key=True),
    _id("owner_id", ForeignKey("owner.id"), nullable=False),
    Column("title", String(255), nullable=False),
    Column("status", String(16), nullable=False),
    Column("turn_count", Integer, nullable=False),
    Column("workspace_revision", Integer, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("status IN ('active', 'archived')", name="status"),
    Index("ix_session_owner_updated", "owner_id", "updated_at", "id"),
)

#: `effective` is what acceptance copied into the Turn: settings, model names, Skills, notes; it serves all attempts.
#: `nudged_at` is when a queue message was last sent for it.
turn: Final = Table(
    "turn",
    metadata,
    _id(primary_key=True),
    _id("owner_id", ForeignKey("owner.id"), nullable=False),
    _id("session_id", ForeignKey("session.id", ondelete="CASCADE"), nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("prompt", Text, nullable=False),
    Column("effective", Text, nullable=False),
    Column("idempotency_key", String(128)),
    Column("request_sha256", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("sandbox_losses", Integer, nullable=False),
    _id("worker_id"),
    Column("lease_until", Instant),
    Column("last_seq", BigInteger, nullable=False),
    Column("nudged_at", Instant),
    Column("nudges", Integer, nullable=False),
    Column("cancel_requested_at", Instant),
    Column("created_at", Instant, nullable=False),
    Column("started_at", Instant),
    Column("finished_at", Instant),
    Column("answer", Text),
    Column("result", Text),
    Column("forced", String(32)),
    Column("error", Text),
    Column("usage", Text),
    Column("base_revision", Integer),
    Column("revision", Integer),
    Column("files_changed", Text),
    Column("events_expired", Boolean, nullable=False),
    Column("feedback", Text),
    CheckConstraint("status IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name="status"),
    UniqueConstraint("session_id", "sequence"),
    UniqueConstraint("session_id", "idempotency_key"),
    Index("uq_turn_open_session", "session_id", unique=True, **_partial(OPEN_STATUSES)),
    Index("ix_turn_open", "status", "nudged_at", **_partial(OPEN_STATUSES)),
    Index("ix_turn_owner_open", "owner_id", "status", **_partial(OPEN_STATUSES)),
    Index("ix_turn_finished_at", "finished_at"),
)

#: One attempt of a worker at a Turn. `outcome` is completed, failed, cancelled, handed_over or lost.
run: Final = Table(
    "run",
    metadata,
    _id(primary_key=True),
    _id("turn_id", ForeignKey("turn.id", ondelete="CASCADE"), nullable=False),
    Column("attempt", Integer, nullable=False),
    _id("worker_id", nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("outcome", String(16)),
    UniqueConstraint("turn_id", "attempt"),
)

#: The facts of a Turn: `seq` is 1, 2, 3 … without gaps, `body` the message's JSON without its seq.
event: Final = Table(
    "event",
    metadata,
    _id("turn_id", ForeignKey("turn.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("type", String(32), nullable=False),
    Column("body", Text, nullable=False),
    Index("uq_event_terminal", "turn_id", unique=True, **_partial(TERMINAL_FACTS)),
)

#: Model answers that were paid for, kept until the Turn ends. `position` is the order of writing within an attempt.
journal: Final = Table(
    "journal",
    metadata,
    _id("turn_id", ForeignKey("turn.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("scope", String(255), nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("response", Text, nullable=False),
)

attachment: Final = Table(
    "attachment",
    metadata,
    _id(primary_key=True),
    _id("owner_id", ForeignKey("owner.id"), nullable=False),
    _id("blob_id", ForeignKey("blob.id"), nullable=False),
    Column("name", String(255), nullable=False),
    Column("media_type", String(255), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("ix_attachment_owner", "owner_id", "created_at", "id"),
    Index("ix_attachment_blob", "blob_id"),
)

turn_attachment: Final = Table(
    "turn_attachment",
    metadata,
    _id("turn_id", ForeignKey("turn.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    _id("attachment_id", ForeignKey("attachment.id"), nullable=False),
    Index("ix_turn_attachment_attachment", "attachment_id"),
)

artifact: Final = Table(
    "artifact",
    metadata,
    _id(primary_key=True),
    _id("owner_id", ForeignKey("owner.id"), nullable=False),
    _id("session_id", ForeignKey("session.id", ondelete="CASCADE"), nullable=False),
    _id("turn_id", ForeignKey("turn.id", ondelete="CASCADE"), nullable=False),
    _id("blob_id", ForeignKey("blob.id"), nullable=False),
    Column("path", String(1024), nullable=False),
    Column("title", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    Column("media_type", String(255), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", Instant, nullable=False),
    UniqueConstraint("turn_id", "path"),
    Index("ix_artifact_session", "session_id", "created_at", "id"),
    Index("ix_artifact_blob", "blob_id"),
)

#: The Workspace manifest as ranges of revisions: a row holds from `from_revision` up to, not including, `to_revision`.
workspace_file: Final = Table(
    "workspace_file",
    metadata,
    _id("session_id", ForeignKey("session.id", ondelete="CASCADE"), primary_key=True),
    Column("path", String(1024), primary_key=True),
    Column("from_revision", Integer, primary_key=True),
    Column("to_revision", Integer),
    Column("kind", String(16), nullable=False),
    _id("blob_id", ForeignKey("blob.id")),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", String(64)),
    Column("executable", Boolean, nullable=False),
    _id("changed_by_turn_id"),
    Column("modified_at", Instant, nullable=False),
    ForeignKeyConstraint(["changed_by_turn_id"], ["turn.id"], ondelete="SET NULL"),
    Index("uq_workspace_file_current", "session_id", "path", unique=True, **_partial("to_revision IS NULL")),
    Index("ix_workspace_file_blob", "blob_id"),
)

#: A sandbox this deployment wants or has. The row is written before the provider is asked (`daytona_id` still null).
#: `unclean` means: before the next Turn every process is killed and every tree restored. `retiring_at`: to be deleted.
sandbox: Final = Table(
    "sandbox",
    metadata,
    _id(primary_key=True),
    _id("owner_id", nullable=False),
    _id("session_id", ForeignKey("session.id", ondelete="SET NULL")),
    Column("generation", Integer, nullable=False),
    Column("name", String(128), nullable=False, unique=True),
    Column("daytona_id", String(64)),
    Column("unclean", Boolean, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("used_at", Instant, nullable=False),
    Column("retiring_at", Instant),
    Index("uq_sandbox_live_session", "session_id", unique=True, **_partial("retiring_at IS NULL")),
    Index("ix_sandbox_used_at", "used_at"),
)

#: Heartbeat of a worker process; `counters` is JSON for `/metrics`.
worker: Final = Table(
    "worker",
    metadata,
    _id(primary_key=True),
    Column("name", String(255), nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("beat_at", Instant, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("counters", Text, nullable=False),
    Index("ix_worker_beat_at", "beat_at"),
)
