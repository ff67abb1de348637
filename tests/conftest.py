"""Fixtures of all tests: real servers, started once per test run, and deployments over them.

- `redis`: a `RedisServer` of the run; `stop()` is kill -9, `start()`, `restart()`, `freeze()`, `thaw()`.
- `postgres`: the `PostgresServer` of the run; `database()` makes an empty one. Crash a cluster of your own instead.
- `database_url`: an empty database; the test runs twice, on SQLite and on PostgreSQL.
- `daytona`: the loopback sandbox server; `faults()`, `fail()`, `happen()`, `requests()`.
- `stack`: web and worker as the Procfile starts them, with the demo model, a token and a `client`; the test runs twice,
  once per kind of database. `ask(prompt)`, `signal(part, number)`, `kill(part)`, `start_worker("worker2")`.
- `scripted`: a `ModelServer`; set `script`, `fail(...)` with the faults of `model_script`, read `requests`.

What a test kills, stops or freezes in `stack` or `redis` is brought back after it. A deployment with other variables is
a block: `with running(Stack(tmp_path, {"DATABASE_URL": ..., "REDIS_URL": redis.url, **daytona.environment(),
**scripted.environment()})) as stack`. `fakes.terminal` has `window` (a pty under pyte) and `tmux`.

A failing test shows the logs of the parts it used. What a machine lacks makes the tests fail with what to install;
nothing is skipped. Tests marked `long` run only with `--long`.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.fakes.daytona import LocalDaytona, start_local_daytona
from tests.fakes.model_script import steps
from tests.fakes.model_server import ModelServer, model_server
from tests.fakes.postgres import PostgresServer, postgres_server
from tests.fakes.redis import RedisServer, redis_server
from tests.fakes.stack import Stack, running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests that take minutes")


def pytest_configure() -> None:
    """Loopback is never reached through a proxy, whatever the machine's settings say."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    chosen = [item for item in items if item.get_closest_marker("long") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for part in getattr(item, "funcargs", {}).values():
            if isinstance(part, Stack):
                report.sections += [(f"log of {name}", part.log(name)) for name in part.processes]
            elif isinstance(part, LocalDaytona):
                report.sections.append(("log of daytona", part.logged()[-3000:]))
    return report


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite+pysqlite:///{tmp_path / 'fleet.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture(scope="session")
def daytona(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDaytona]:
    server = start_local_daytona(tmp_path_factory.mktemp("daytona"))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def deployment(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    redis: RedisServer,
    daytona: LocalDaytona,
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp(f"stack-{request.param}")
    url = f"sqlite:///{folder / 'fleet.db'}"
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.database()
    environment = {"DATABASE_URL": url, "REDIS_URL": redis.url, **daytona.environment()}
    with running(Stack(folder, environment)) as started:
        yield started


@pytest.fixture
def stack(deployment: Stack, redis: RedisServer, daytona: LocalDaytona) -> Iterator[Stack]:
    yield deployment
    redis.repair()
    daytona.heal()
    deployment.repair()


@pytest.fixture
def scripted() -> Iterator[ModelServer]:
    with model_server(steps("SUBMIT('done')")) as server:
        yield server
