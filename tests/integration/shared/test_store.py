"""The schema and the blobs on real databases."""

import threading
from collections.abc import Iterator

import pytest

from fleet_shared.blobs import CHUNK_BYTES, collect_unused, read_blob, write_blob
from fleet_shared.domain.errors import NotFound, TooLarge
from fleet_shared.store import Database, owners, schema
from fleet_shared.store.deployment import deployment_id


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    schema.upgrade(made)
    yield made
    made.close()


@pytest.fixture
def owner_id(database: Database) -> str:
    secret = database.run(lambda tx: owners.create_token(tx, "tests"))
    token = database.run(lambda tx: owners.token_of_secret(tx, secret))
    assert token is not None
    return token.owner_id


def test_the_migrated_schema_is_the_declared_one(database: Database) -> None:
    assert schema.differences(database) == []
    assert schema.current(database) == schema.head()


def test_migrating_twice_or_at_once_changes_nothing(database_url: str) -> None:
    databases = [Database(database_url) for _ in range(3)]
    threads = [threading.Thread(target=schema.upgrade, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = databases[0].run(deployment_id)
    schema.upgrade(databases[0])
    assert databases[0].run(deployment_id) == first
    for database in databases:
        database.close()


def test_a_process_refuses_a_schema_that_is_not_current(database_url: str) -> None:
    database = Database(database_url)
    with pytest.raises(schema.OldSchema, match="db upgrade"):
        schema.require_current(database)
    database.close()


def test_content_is_stored_once_and_comes_back_whole_or_in_part(database: Database, owner_id: str) -> None:
    data = bytes(range(256)) * (CHUNK_BYTES // 100)
    first = write_blob(database, owner_id, [data[:1000], data[1000:]], limit=10**9)
    second = write_blob(database, owner_id, iter([data]), limit=10**9)
    assert first.id == second.id and first.bytes == len(data)
    assert b"".join(read_blob(database, first.id)) == data
    part = b"".join(read_blob(database, first.id, start=CHUNK_BYTES - 5, length=11))
    assert part == data[CHUNK_BYTES - 5 : CHUNK_BYTES + 6]


def test_what_is_too_large_leaves_nothing_behind(database: Database, owner_id: str) -> None:
    with pytest.raises(TooLarge):
        write_blob(database, owner_id, [b"x" * 100], limit=99)
    assert collect_unused(database, older_than_s=-1) == 0


def test_a_blob_nobody_refers_to_is_collected_when_it_is_old(database: Database, owner_id: str) -> None:
    blob = write_blob(database, owner_id, [b"x"], limit=10)
    assert collect_unused(database, older_than_s=3600) == 0
    assert collect_unused(database, older_than_s=-1) == 1
    assert list(read_blob(database, blob.id)) == []


def test_a_token_works_until_it_is_rotated_or_revoked(database: Database) -> None:
    old = database.run(lambda tx: owners.create_token(tx, "ci", owner_name="team"))
    new = database.run(lambda tx: owners.rotate_token(tx, "ci"))
    assert database.run(lambda tx: owners.token_of_secret(tx, old)) is None
    found = database.run(lambda tx: owners.token_of_secret(tx, new))
    assert found is not None and found.owner_name == "team"
    database.run(lambda tx: owners.revoke_token(tx, "ci"))
    assert database.run(lambda tx: owners.token_of_secret(tx, new)) is None
    with pytest.raises(NotFound):
        database.run(lambda tx: owners.revoke_token(tx, "ci"))
    assert new not in str(database.run(owners.tokens))
