"""A new SQLite database is opened by several processes at once: each waits, none fails."""

import sqlite3
import threading
from pathlib import Path

from fleet_shared.store import Database, schema


def test_opening_a_new_database_waits_for_a_process_that_is_writing_its_first_tables(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    first = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    first.execute("BEGIN IMMEDIATE")
    first.execute("CREATE TABLE early (number)")
    done = threading.Timer(0.5, first.execute, ("COMMIT",))
    done.start()
    database = Database(f"sqlite+pysqlite:///{path}")
    try:
        schema.upgrade(database)
        assert schema.current(database) == schema.head()
    finally:
        done.join()
        database.close()
        first.close()
