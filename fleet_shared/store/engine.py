"""The database: one engine per process, short transactions, retries of what a second try can mend.

SQLite runs in WAL with `synchronous=FULL` and takes its write lock at BEGIN; PostgreSQL with a lock timeout of 2 s.
"""

import contextlib
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import QueuePool

from fleet_shared.domain.errors import Unavailable

Transaction = Connection
T = TypeVar("T")

LOCK_TIMEOUT_MS: Final = 2000
STATEMENT_TIMEOUT_MS: Final = 30_000
#: How long SQLite waits for another writer.
SQLITE_BUSY_S: Final = 15
#: Tries of a transaction that met a deadlock, a lock timeout or a busy database.
TRIES: Final = 5
#: PostgreSQL: serialization failure, deadlock, lock not available.
_RETRIED_STATES: Final = frozenset({"40001", "40P01", "55P03"})


class Database:
    """Opens transactions. Safe to share between threads; not to be used across a fork."""

    def __init__(self, url: str, *, pool_size: int = 3, overflow: int = 2) -> None:
        """`pool_size` + `overflow` connections at most; a transaction waits up to 10 s for one."""
        self.engine: Engine = create_engine(
            url,
            poolclass=QueuePool,
            pool_size=pool_size,
            max_overflow=overflow,
            pool_timeout=10,
            pool_pre_ping=not url.startswith("sqlite"),
            pool_recycle=1800,
            connect_args=_connect_arguments(url),
        )
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_immediate)

    @property
    def is_sqlite(self) -> bool:
        """Whether this is SQLite, which has one writer and no row locks."""
        return self.engine.dialect.name == "sqlite"

    @contextlib.contextmanager
    def begin(self) -> Iterator[Transaction]:
        """One transaction, committed at the end of the block. Raises Unavailable when the database is away."""
        try:
            with self.engine.begin() as transaction:
                yield transaction
        except (OperationalError, InterfaceError) as error:
            if _may_be_retried(error):
                raise
            raise Unavailable from error

    @contextlib.contextmanager
    def read(self) -> Iterator[Transaction]:
        """A transaction that only reads; on SQLite it takes no write lock."""
        try:
            with self.engine.connect() as connection:
                connection.info["reads"] = True
                try:
                    yield connection
                finally:
                    connection.info.pop("reads", None)
        except (OperationalError, InterfaceError) as error:
            raise Unavailable from error

    def run(self, work: Callable[[Transaction], T]) -> T:
        """The result of `work` in one transaction, tried again after a deadlock, a lock timeout or a busy database.

        `work` may run several times and must do nothing but use its transaction. Raises Unavailable.
        """
        for attempt in range(1, TRIES + 1):
            try:
                with self.begin() as transaction:
                    return work(transaction)
            except DBAPIError as error:
                if not _may_be_retried(error):
                    raise
                if attempt == TRIES:
                    raise Unavailable from error
                time.sleep(random.uniform(0.01, 0.05) * attempt)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close every idle connection."""
        self.engine.dispose()


def database_now(transaction: Transaction) -> datetime:
    """The database's time, so that workers with different clocks agree; SQLite has one host and uses its clock."""
    if transaction.dialect.name == "sqlite":
        return datetime.now(UTC)
    moment: datetime = transaction.execute(select(text("clock_timestamp()"))).scalar_one()
    return moment.astimezone(UTC)


def _connect_arguments(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"timeout": SQLITE_BUSY_S, "check_same_thread": False}
    options = (
        f"-c lock_timeout={LOCK_TIMEOUT_MS} -c statement_timeout={STATEMENT_TIMEOUT_MS}"
        " -c idle_in_transaction_session_timeout=60000 -c synchronous_commit=on"
    )
    return {
        "connect_timeout": 5,
        "options": options,
        "application_name": "fleet",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver's own transaction handling would begin too late and without the write lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={SQLITE_BUSY_S * 1000}", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    _switch_to_wal(cursor)
    cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    # This one statement does not wait for the busy timeout: a process that starts beside us may hold a new database.
    deadline = time.monotonic() + SQLITE_BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.info.get("reads") else "BEGIN IMMEDIATE")


def _may_be_retried(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state in _RETRIED_STATES
    return "database is locked" in str(error.orig) or "database table is locked" in str(error.orig)
