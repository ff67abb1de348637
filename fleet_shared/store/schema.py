"""The schema's version: applied by `db upgrade` under a lock, verified by every process at its start."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from fleet_shared.domain.errors import FleetError
from fleet_shared.store.engine import Database
from fleet_shared.store.tables import metadata

#: Any number, the same in every release: two `db upgrade` at once wait for each other on PostgreSQL.
_LOCK: Final = 4_071_305


class OldSchema(FleetError):
    """The database schema does not fit this release; run `python -m fleet_web db upgrade`."""


def upgrade(database: Database) -> str:
    """Bring the schema to this release's version and return it. Safe to run twice and at the same time."""
    with _exclusive(database) as connection:
        command.upgrade(_config(connection), "head")
    return head()


def head() -> str:
    """The version this release needs."""
    version = ScriptDirectory.from_config(_config(None)).get_current_head()
    assert version is not None
    return version


def current(database: Database) -> str | None:
    """The version the database has, None when it is empty."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def require_current(database: Database) -> None:
    """Raise OldSchema when the database is not at this release's version."""
    if current(database) != head():
        raise OldSchema


def differences(database: Database) -> list[str]:
    """How the database differs from the declared tables; empty when it does not."""
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [str(difference) for difference in compare_metadata(context, metadata)]


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def _exclusive(database: Database) -> Iterator[Connection]:
    with database.begin() as connection:
        if not database.is_sqlite:
            connection.execute(text("SET LOCAL lock_timeout = '30s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        yield connection
