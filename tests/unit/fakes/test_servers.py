"""The real servers of the tests: private, brought back after a crash, gone with all they held when their block ends."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.fakes.postgres import postgres_server
from tests.fakes.redis import RedisServer, redis_server


def ask(url: str, statement: str) -> object:
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None
    finally:
        engine.dispose()


def command(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_redis_answers_to_its_password_alone_and_is_empty_after_a_restart(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        assert server.answers()
        stranger = RedisServer(tmp_path)
        stranger.port = server.port
        assert not stranger.answers()
        before = server.process
        server.restart()
        assert server.answers() and server.process is not before
        port = server.port
    gone = RedisServer(tmp_path)
    gone.port = port
    assert not gone.answers()


def test_a_frozen_or_dead_redis_is_repaired(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        server.freeze()
        assert not server.answers(timeout_s=0.2)
        server.repair()
        assert server.answers()
        server.stop()
        server.repair()
        assert server.answers()


def test_a_redis_that_cannot_start_says_why(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        second = RedisServer(tmp_path)
        second.port = server.port
        with pytest.raises(RuntimeError, match=r"(?i)address already in use"):
            second.start()
        assert second.process is None and server.answers()


def test_every_database_is_empty_and_its_commits_survive_a_crash() -> None:
    with postgres_server() as server:
        first, second = server.database(), server.database()
        ask(first, "CREATE TABLE kept AS SELECT 42 AS number")
        server.restart("immediate")
        assert ask(first, "SELECT number FROM kept") == 42
        assert ask(second, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0


def test_a_cluster_leaves_no_process_and_no_file_also_when_its_block_fails() -> None:
    folder = Path()
    with pytest.raises(ZeroDivisionError), postgres_server() as server:
        folder = Path(server.database().partition("?host=")[2])
        assert folder.is_dir()
        raise ZeroDivisionError
    assert not folder.exists()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(folder) in command(path)]
