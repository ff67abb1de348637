"""The event log and the ledger on real databases: gapless numbers, one terminal fact, fences, races."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from fleet_shared.contract.frames import encode
from fleet_shared.domain.errors import Conflict
from fleet_shared.domain.events import TERMINAL_TYPES, Envelope, Output, TurnQueued, TurnStarted
from fleet_shared.domain.ids import new_id
from fleet_shared.domain.session import Session, SessionStatus
from fleet_shared.domain.turn import TurnStatus, Usage
from fleet_shared.ledger import Claimed, Commit, Ledger, NotHeld, Sweep
from fleet_shared.messaging.event_log import EventWriter, LogFenced
from fleet_shared.messaging.live import LivePublisher
from fleet_shared.messaging.names import Names
from fleet_shared.messaging.redis import make_redis
from fleet_shared.settings import Settings, options
from fleet_shared.store import Database, Transaction, events, owners, schema, sessions, turns
from fleet_shared.store.deployment import deployment_id
from fleet_shared.store.preferences import get_preferences, save_preferences


class Bench:
    """A database with an owner, a writer and a ledger; Redis is away."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        schema.upgrade(self.database)
        names = Names(self.database.run(deployment_id))
        self.publisher = LivePublisher(make_redis("redis://127.0.0.1:1", name="tests"), names)
        self.nudged: list[str] = []
        self.ledger = Ledger(self.database, self.publisher, self._nudge)
        self.writer = EventWriter(self.database, self.publisher)
        secret = self.database.run(lambda tx: owners.create_token(tx, "tests"))
        token = self.database.run(lambda tx: owners.token_of_secret(tx, secret))
        assert token is not None
        self.owner_id = token.owner_id
        self.publisher.start()
        self.writer.start()

    def turn(self, *, max_queue_s: int = 3600, session_id: str | None = None, sequence: int = 1) -> str:
        """An accepted Turn."""
        now = datetime.now(UTC)
        session = Session(new_id(), self.owner_id, "t", SessionStatus.ACTIVE, 1, 0, now, now, None)
        settings = {key: Settings().value(key) for key in options()} | {"run.max_queue_s": max_queue_s}
        turn_id = new_id()
        queued = TurnQueued(session_id or session.id)

        def work(tx: Transaction) -> None:
            if session_id is None:
                sessions.insert_session(tx, session)
            effective = {"settings": settings, "options": {}, "models": {"root": "m", "sub": "m"}}
            new = turns.NewTurn(
                id=turn_id,
                owner_id=self.owner_id,
                session_id=session_id or session.id,
                sequence=sequence,
                prompt="?",
                effective=effective,
                idempotency_key=None,
                request_sha256="0",
                attachment_ids=[],
                base_revision=0,
                created_at=now,
            )
            turns.insert_turn(tx, new, [events.NewEvent(queued.type, encode(queued, Envelope(turn_id, now)))])

        self.database.run(work)
        return turn_id

    def claim(self, turn_id: str, *, lease_s: float = 45.0, max_running: int = 8) -> Claimed | None:
        """A claim by a new worker."""
        return self.ledger.claim(
            turn_id,
            worker_id=new_id(),
            lease_s=lease_s,
            max_running=max_running,
            describe=lambda _: TurnStarted("w", "m", "m", {}),
        )

    def log(self, turn_id: str) -> list[events.StoredEvent]:
        """The stored facts of a Turn."""
        with self.database.read() as tx:
            return events.read_events(tx, turn_id, after=0, limit=100_000)

    def close(self) -> None:
        """End the threads."""
        self.writer.stop()
        self.publisher.stop()
        self.database.close()

    def _nudge(self, turn_id: str) -> bool:
        self.nudged.append(turn_id)
        return True


@pytest.fixture
def bench(database_url: str) -> Iterator[Bench]:
    made = Bench(database_url)
    yield made
    made.close()


def claimed(bench: Bench, turn_id: str, lease_s: float = 45.0) -> Claimed:
    found = bench.claim(turn_id, lease_s=lease_s)
    assert found is not None
    return found


def test_facts_of_many_turns_at_once_are_numbered_without_gaps_and_end_once(bench: Bench) -> None:
    held = [claimed(bench, bench.turn()) for _ in range(6)]

    def work(claim: Claimed) -> None:
        log = bench.writer.open(
            turn_id=claim.turn_id, run_id=claim.run_id, attempt=claim.attempt, on_fenced=lambda: None
        )
        for number in range(200):
            log.append(Output(1, "stdout", f"{number}\n"))
        assert log.flush(20)
        commit = Commit("42", Usage())
        bench.ledger.complete(claim.turn_id, run_id=claim.run_id, attempt=claim.attempt, commit=commit)
        log.close()

    threads = [threading.Thread(target=work, args=(claim,)) for claim in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for claim in held:
        log = bench.log(claim.turn_id)
        assert [item.seq for item in log] == list(range(1, len(log) + 1))
        assert [item.type for item in log if item.type in TERMINAL_TYPES] == ["turn.completed"]
        assert log[-1].type == "turn.completed" and len(log) == 2 + 200 + 3
        outputs = [item.body for item in log if item.type == "output"]
        assert all(f'"{number}\\n"' in body for number, body in enumerate(outputs))


def test_only_one_of_many_claims_gets_a_turn(bench: Bench) -> None:
    turn_id = bench.turn()
    won: list[Claimed] = []

    def work() -> None:
        found = bench.claim(turn_id)
        if found is not None:
            won.append(found)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_worker_that_lost_its_turn_writes_nothing_more(bench: Bench) -> None:
    turn_id = bench.turn()
    first = claimed(bench, turn_id, lease_s=0.0)
    fenced = threading.Event()
    log = bench.writer.open(turn_id=turn_id, run_id=first.run_id, attempt=1, on_fenced=fenced.set)
    log.append(Output(1, "stdout", "mine\n"))
    assert log.flush(5)
    second = claimed(bench, turn_id)
    assert (second.attempt, second.losses) == (2, 1)
    log.append(Output(1, "stdout", "late\n"))
    assert fenced.wait(5)
    with pytest.raises(LogFenced):
        log.append(Output(1, "stdout", "later\n"))
    with pytest.raises(NotHeld):
        bench.ledger.complete(turn_id, run_id=first.run_id, attempt=1, commit=Commit("x", Usage()))
    with pytest.raises(NotHeld):
        bench.ledger.renew(turn_id, attempt=1, lease_s=45)
    types = [item.type for item in bench.log(turn_id)]
    assert types == ["turn.queued", "turn.started", "output", "run.retried", "turn.started"]


def test_a_requested_cancel_wins_over_the_commit(bench: Bench) -> None:
    turn_id = bench.turn()
    claim = claimed(bench, turn_id)
    assert bench.ledger.request_cancel(turn_id).status is TurnStatus.RUNNING
    with pytest.raises(NotHeld):
        bench.ledger.complete(turn_id, run_id=claim.run_id, attempt=1, commit=Commit("x", Usage()))
    bench.ledger.confirm_cancel(turn_id, attempt=1)
    assert bench.log(turn_id)[-1].type == "turn.cancelled"
    assert bench.ledger.request_cancel(turn_id).status is TurnStatus.CANCELLED


def test_a_cancel_of_a_waiting_turn_ends_it_at_once(bench: Bench) -> None:
    turn_id = bench.turn()
    assert bench.ledger.request_cancel(turn_id).status is TurnStatus.CANCELLED
    assert bench.claim(turn_id) is None
    assert [item.type for item in bench.log(turn_id)] == ["turn.queued", "turn.cancelled"]


def test_the_sweep_nudges_what_waits_and_gives_up_what_waited_too_long(bench: Bench) -> None:
    expired, lost = bench.turn(max_queue_s=0), bench.turn()
    for _ in range(3):
        claimed(bench, lost, lease_s=0.0)
    report = Sweep(bench.database, bench.ledger, bench._nudge).run()
    assert (report.expired, report.lost) == (1, 1)
    assert bench.log(expired)[-1].type == "turn.failed"
    assert '"worker_lost"' in bench.log(lost)[-1].body
    again = Sweep(bench.database, bench.ledger, bench._nudge).run()
    assert str(again) == "nudged=0 cancelled=0 lost=0 overdue=0 expired=0"


def test_an_owner_runs_at_most_so_many_turns_and_the_next_one_is_nudged(bench: Bench) -> None:
    first, second = bench.turn(), bench.turn()
    claim = bench.claim(first, max_running=1)
    assert claim is not None
    assert bench.claim(second, max_running=1) is None
    bench.ledger.complete(first, run_id=claim.run_id, attempt=1, commit=Commit("x", Usage()))
    assert bench.nudged == [second]
    assert bench.claim(second, max_running=1) is not None


def test_settings_are_changed_with_the_right_revision_alone(bench: Bench) -> None:
    saved = bench.database.run(
        lambda tx: save_preferences(tx, bench.owner_id, revision=0, changes={"rlm.max_iterations": 3})
    )
    assert saved.revision == 1
    with pytest.raises(Conflict):
        bench.database.run(lambda tx: save_preferences(tx, bench.owner_id, revision=0, changes={}))
    assert bench.database.run(lambda tx: get_preferences(tx, bench.owner_id)).changes == {"rlm.max_iterations": 3}
