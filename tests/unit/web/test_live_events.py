"""From a worker's publisher to the streams of a web process, over fakeredis: nothing lost, nobody held up."""

import json
import time
from collections.abc import Callable, Iterator

import fakeredis
import pytest

from fleet_shared.messaging.hub import WAITING_MESSAGES, Hub
from fleet_shared.messaging.live import LivePublisher
from fleet_shared.messaging.names import Names
from fleet_shared.store.events import StoredEvent
from fleet_web.stream import EventMessage

NAMES = Names("a1b2c3")


class Numbers(dict[str, int]):
    """The last numbers that the database knows, with how often it was asked."""

    asked = 0

    def __call__(self, turn_ids: object) -> dict[str, int]:
        self.asked += 1
        return dict(self)


@pytest.fixture
def client() -> fakeredis.FakeRedis:
    return fakeredis.FakeRedis(decode_responses=True)


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
def hub(client: fakeredis.FakeRedis, numbers: Numbers) -> Iterator[Hub]:
    made = Hub(client, NAMES, numbers)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def publisher(client: fakeredis.FakeRedis) -> Iterator[LivePublisher]:
    made = LivePublisher(client, NAMES)
    made.start()
    yield made
    made.stop()


def fact(seq: int) -> StoredEvent:
    return StoredEvent(seq, "output", json.dumps({"type": "output", "text": f"line {seq}"}))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def listening(client: fakeredis.FakeRedis, turn_id: str) -> bool:
    channel = NAMES.turn_channel(turn_id)
    return bool(dict(client.pubsub_numsub(channel)).get(channel))


def test_every_reader_of_a_turn_gets_its_facts_in_order_and_nobody_elses(
    client: fakeredis.FakeRedis, hub: Hub, publisher: LivePublisher
) -> None:
    first, second, other = hub.join("t1"), hub.join("t1"), hub.join("t2")
    until(lambda: listening(client, "t1") and listening(client, "t2"))
    for reader in (first, second, other):
        reader.take(0)
    publisher.facts("t1", [fact(1), fact(2), fact(3)])
    for reader in (first, second):
        seen: list[int | None] = []
        until(lambda reader=reader, seen=seen: seen.extend(m.seq for m in reader.take(0.05)[0]) or len(seen) == 3)
        assert seen == [1, 2, 3]
    assert other.take(0)[0] == []


def test_one_connection_serves_all_readers_and_forgets_who_left(client: fakeredis.FakeRedis, hub: Hub) -> None:
    readers = [hub.join(f"t{i}") for i in range(50)]
    until(lambda: all(listening(client, f"t{i}") for i in range(50)))
    assert dict(client.pubsub_numsub(NAMES.turn_channel("t7"))) == {NAMES.turn_channel("t7"): 1}
    for reader in readers:
        hub.leave(reader)
    until(lambda: not any(listening(client, f"t{i}") for i in range(50)))


def test_a_slow_reader_misses_and_is_told_so(hub: Hub, client: fakeredis.FakeRedis, publisher: LivePublisher) -> None:
    slow, quick = hub.join("t1"), hub.join("t1")
    until(lambda: listening(client, "t1"))
    seen: list[int | None] = []
    for begin in range(1, WAITING_MESSAGES + 100, 100):
        publisher.facts("t1", [fact(seq) for seq in range(begin, begin + 100)])
        until(lambda end=begin + 99: seen.extend(m.seq for m in quick.take(0.05)[0]) or seen[-1:] == [end])
    assert seen == list(range(1, len(seen) + 1))
    _, missed = slow.take(0)
    assert missed


def test_what_was_not_published_is_noticed_by_looking_at_the_numbers(hub: Hub, numbers: Numbers) -> None:
    reader = hub.join("t1")
    numbers["t1"] = 7
    until(lambda: reader.take(0.05) and reader.known_seq == 7)
    assert numbers.asked >= 1


def test_a_draft_has_no_number_and_its_snapshot_waits_for_readers(
    client: fakeredis.FakeRedis, hub: Hub, publisher: LivePublisher
) -> None:
    reader = hub.join("t1")
    until(lambda: listening(client, "t1"))
    reader.take(0)
    publisher.draft("t1", "code.delta", '{"text":"x"}')
    publisher.snapshot("t1", '{"code":"x"}')
    until(lambda: hub.draft("t1") == '{"code":"x"}')
    messages, missed = reader.take(1)
    assert [(message.type, message.seq) for message in messages] == [("code.delta", None)] and not missed
    publisher.snapshot("t1", None)
    until(lambda: hub.draft("t1") is None)


def test_without_redis_streams_go_on_from_the_database() -> None:
    server = fakeredis.FakeServer()
    server.connected = False
    numbers = Numbers({"t1": 3})
    hub = Hub(fakeredis.FakeRedis(server=server, decode_responses=True), NAMES, numbers)
    hub.start()
    try:
        reader = hub.join("t1")
        until(lambda: hub.is_away)
        began = time.monotonic()
        until(lambda: reader.take(0.05) and reader.known_seq == 3)
        assert time.monotonic() - began < 3
        assert hub.draft("t1") is None
    finally:
        hub.stop()


def test_a_message_on_the_wire_has_a_number_only_when_it_is_a_fact() -> None:
    assert str(EventMessage('{"a":1}', type="output", id=4)) == 'event: output\nid: 4\ndata: {"a":1}\n\n'
    assert "id:" not in str(EventMessage('{"a":1}', type="code.delta"))
