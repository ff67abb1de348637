"""The first schema, and the deployment's id."""

import uuid
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# In an order in which they can be dropped.
_TABLES = (
    "workspace_file",
    "turn_attachment",
    "run",
    "journal",
    "event",
    "artifact",
    "turn",
    "sandbox",
    "blob_chunk",
    "attachment",
    "token",
    "session",
    "owner_setting",
    "blob",
    "worker",
    "owner",
    "deployment",
)


def upgrade() -> None:
    _create_tables()
    on_sqlite = op.get_bind().dialect.name == "sqlite"
    now = datetime.now(UTC).replace(tzinfo=None) if on_sqlite else datetime.now(UTC)
    deployment = sa.table("deployment", sa.column("id"), sa.column("created_at", sa.DateTime(timezone=True)))
    op.bulk_insert(deployment, [{"id": str(uuid.uuid4()), "created_at": now}])


def downgrade() -> None:
    for table in _TABLES:
        op.drop_table(table)


def _create_tables() -> None:
    op.create_table(
        "deployment",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployment")),
    )
    op.create_table(
        "owner",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_owner")),
        sa.UniqueConstraint("name", name=op.f("uq_owner_name")),
    )
    op.create_table(
        "worker",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("counters", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker")),
    )
    op.create_index("ix_worker_beat_at", "worker", ["beat_at"], unique=False)
    op.create_table(
        "blob",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.id"], name=op.f("fk_blob_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blob")),
        sa.UniqueConstraint("owner_id", "sha256", name=op.f("uq_blob_owner_id_sha256")),
    )
    op.create_index("ix_blob_seen_at", "blob", ["seen_at"], unique=False)
    op.create_table(
        "owner_setting",
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("changes", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.id"], name=op.f("fk_owner_setting_owner_id")),
        sa.PrimaryKeyConstraint("owner_id", name=op.f("pk_owner_setting")),
    )
    op.create_table(
        "session",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("title", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("turn_count", sa.Integer(), nullable=False),
        sa.Column("workspace_revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("status IN ('active', 'archived')", name=op.f("ck_session_status")),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.id"], name=op.f("fk_session_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
    )
    op.create_index("ix_session_owner_updated", "session", ["owner_id", "updated_at", "id"], unique=False)
    op.create_table(
        "token",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.id"], name=op.f("fk_token_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_token")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_token_secret_sha256")),
    )
    op.create_index(
        "uq_token_live_name",
        "token",
        ["name"],
        unique=True,
        sqlite_where=sa.text("revoked_at IS NULL"),
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
    op.create_table(
        "attachment",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("blob_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("media_type", sa.String(length=255), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blob.id"], name=op.f("fk_attachment_blob_id")),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.id"], name=op.f("fk_attachment_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attachment")),
    )
    op.create_index("ix_attachment_blob", "attachment", ["blob_id"], unique=False)
    op.create_index("ix_attachment_owner", "attachment", ["owner_id", "created_at", "id"], unique=False)
    op.create_table(
        "blob_chunk",
        sa.Column("blob_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blob.id"], name=op.f("fk_blob_chunk_blob_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("blob_id", "number", name=op.f("pk_blob_chunk")),
    )
    op.create_table(
        "sandbox",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("daytona_id", sa.String(length=64), nullable=True),
        sa.Column("unclean", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("retiring_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_sandbox_session_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandbox")),
        sa.UniqueConstraint("name", name=op.f("uq_sandbox_name")),
    )
    op.create_index("ix_sandbox_used_at", "sandbox", ["used_at"], unique=False)
    op.create_index(
        "uq_sandbox_live_session",
        "sandbox",
        ["session_id"],
        unique=True,
        sqlite_where=sa.text("retiring_at IS NULL"),
        postgresql_where=sa.text("retiring_at IS NULL"),
    )
    op.create_table(
        "turn",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("effective", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("sandbox_losses", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=36), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("nudged_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("nudges", sa.Integer(), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("forced", sa.String(length=32), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("base_revision", sa.Integer(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=True),
        sa.Column("files_changed", sa.Text(), nullable=True),
        sa.Column("events_expired", sa.Boolean(), nullable=False),
        sa.Column("feedback", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'completed', 'failed', 'cancelled')", name=op.f("ck_turn_status")
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.id"], name=op.f("fk_turn_owner_id")),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_turn_session_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turn")),
        sa.UniqueConstraint("session_id", "idempotency_key", name=op.f("uq_turn_session_id_idempotency_key")),
        sa.UniqueConstraint("session_id", "sequence", name=op.f("uq_turn_session_id_sequence")),
    )
    op.create_index("ix_turn_finished_at", "turn", ["finished_at"], unique=False)
    op.create_index(
        "ix_turn_open",
        "turn",
        ["status", "nudged_at"],
        unique=False,
        sqlite_where=sa.text("status IN ('queued', 'running')"),
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_index(
        "ix_turn_owner_open",
        "turn",
        ["owner_id", "status"],
        unique=False,
        sqlite_where=sa.text("status IN ('queued', 'running')"),
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_index(
        "uq_turn_open_session",
        "turn",
        ["session_id"],
        unique=True,
        sqlite_where=sa.text("status IN ('queued', 'running')"),
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_table(
        "artifact",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("owner_id", sa.String(length=36), nullable=False),
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("turn_id", sa.String(length=36), nullable=False),
        sa.Column("blob_id", sa.String(length=36), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("title", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("media_type", sa.String(length=255), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blob.id"], name=op.f("fk_artifact_blob_id")),
        sa.ForeignKeyConstraint(["owner_id"], ["owner.id"], name=op.f("fk_artifact_owner_id")),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_artifact_session_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name=op.f("fk_artifact_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifact")),
        sa.UniqueConstraint("turn_id", "path", name=op.f("uq_artifact_turn_id_path")),
    )
    op.create_index("ix_artifact_blob", "artifact", ["blob_id"], unique=False)
    op.create_index("ix_artifact_session", "artifact", ["session_id", "created_at", "id"], unique=False)
    op.create_table(
        "event",
        sa.Column("turn_id", sa.String(length=36), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name=op.f("fk_event_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", "seq", name=op.f("pk_event")),
    )
    op.create_index(
        "uq_event_terminal",
        "event",
        ["turn_id"],
        unique=True,
        sqlite_where=sa.text("type IN ('turn.completed', 'turn.failed', 'turn.cancelled')"),
        postgresql_where=sa.text("type IN ('turn.completed', 'turn.failed', 'turn.cancelled')"),
    )
    op.create_table(
        "journal",
        sa.Column("turn_id", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("scope", sa.String(length=255), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("response", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name=op.f("fk_journal_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", "attempt", "position", name=op.f("pk_journal")),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("turn_id", sa.String(length=36), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(length=36), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name=op.f("fk_run_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("turn_id", "attempt", name=op.f("uq_run_turn_id_attempt")),
    )
    op.create_table(
        "turn_attachment",
        sa.Column("turn_id", sa.String(length=36), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("attachment_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(["attachment_id"], ["attachment.id"], name=op.f("fk_turn_attachment_attachment_id")),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name=op.f("fk_turn_attachment_turn_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("turn_id", "position", name=op.f("pk_turn_attachment")),
    )
    op.create_index("ix_turn_attachment_attachment", "turn_attachment", ["attachment_id"], unique=False)
    op.create_table(
        "workspace_file",
        sa.Column("session_id", sa.String(length=36), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("from_revision", sa.Integer(), nullable=False),
        sa.Column("to_revision", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("blob_id", sa.String(length=36), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("executable", sa.Boolean(), nullable=False),
        sa.Column("changed_by_turn_id", sa.String(length=36), nullable=True),
        sa.Column("modified_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["blob_id"], ["blob.id"], name=op.f("fk_workspace_file_blob_id")),
        sa.ForeignKeyConstraint(
            ["changed_by_turn_id"], ["turn.id"], name=op.f("fk_workspace_file_changed_by_turn_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"], ["session.id"], name=op.f("fk_workspace_file_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", "path", "from_revision", name=op.f("pk_workspace_file")),
    )
    op.create_index("ix_workspace_file_blob", "workspace_file", ["blob_id"], unique=False)
    op.create_index(
        "uq_workspace_file_current",
        "workspace_file",
        ["session_id", "path"],
        unique=True,
        sqlite_where=sa.text("to_revision IS NULL"),
        postgresql_where=sa.text("to_revision IS NULL"),
    )
    # ### end Alembic commands ###
