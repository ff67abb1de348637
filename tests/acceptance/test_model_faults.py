"""Turns with a language model behind HTTP: streaming, retries, spoiled answers, limits, cancel; all scripted."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from fleet_term.client.stream import Event
from tests.fakes.daytona import LocalDaytona
from tests.fakes.model_script import Fault, action, rate_limited, refused, steps
from tests.fakes.model_server import ModelServer, model_server
from tests.fakes.redis import RedisServer
from tests.fakes.stack import Stack, running

TWO_STEPS = steps("x = 6 * 7\nprint(x)", "SUBMIT(f'It is {x}.')")
ITERATIONS = 3


@pytest.fixture(scope="module")
def served() -> Iterator[ModelServer]:
    with model_server(TWO_STEPS) as server:
        yield server


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, redis: RedisServer, daytona: LocalDaytona, served: ModelServer
) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("scripted")
    environment = {
        "DATABASE_URL": f"sqlite:///{folder / 'fleet.db'}",
        "REDIS_URL": redis.url,
        "FLEET_RLM_MAX_ITERATIONS": str(ITERATIONS),
        **daytona.environment(),
        **served.environment(),
    }
    with running(Stack(folder, environment)) as started:
        yield started


@pytest.fixture
def model(served: ModelServer) -> ModelServer:
    served.reset()
    served.script, served.delay_s, served.pause_s = TWO_STEPS, 0.0, 0.0
    return served


def watched(stack: Stack) -> tuple[Any, list[Event]]:
    """An ended Turn with everything its stream gave."""
    client = stack.client
    turn = client.submit(client.create_session()["id"], "What is six times seven?")
    events = list(client.follow(turn["id"], give_up_s=60))
    return client.turn(turn["id"]), events


def test_what_is_written_shows_as_drafts_that_add_up_to_the_facts(fleet: Stack, model: ModelServer) -> None:
    model.pause_s = 0.05
    turn, events = watched(fleet)
    assert turn["answer"] == "It is 42."
    first = next(event for event in events if event.type == "code")
    drafts = [event for event in events[: events.index(first)] if event.type == "code.delta"]
    assert len(drafts) >= 2 and all("seq" not in event.fields for event in drafts)
    assert "".join(event.fields["text"] for event in drafts).strip() in first.fields["code"]


def test_usage_counts_every_call_and_the_key_goes_to_the_endpoint(fleet: Stack, model: ModelServer) -> None:
    model.script = steps("print(llm_query('name a colour'))", "SUBMIT('done')", sub=lambda prompt: "blue")
    turn, _ = watched(fleet)
    usage = turn["usage"]
    assert (usage["iterations"], usage["lm_calls"], usage["sub_lm_calls"]) == (2, 3, 1)
    assert usage["input_tokens"] == sum(item.asked.prompt_tokens for item in model.requests)
    assert {item.asked.authorization for item in model.requests} == {"Bearer key-of-the-tests"}


@pytest.mark.parametrize(
    "fault",
    [rate_limited("0"), rate_limited(None), Fault("status", status=503), Fault("reset"), Fault("cut")],
    ids=["429", "429 without a time", "503", "reset", "cut"],
)
def test_a_call_that_fails_once_is_tried_again(fleet: Stack, model: ModelServer, fault: Fault) -> None:
    model.fail(fault)
    turn, _ = watched(fleet)
    assert turn["status"] == "completed" and turn["answer"] == "It is 42."
    assert len(model.requests) == 3


@pytest.mark.parametrize("kind", ["prose", "fence", "json", "empty", "length"])
def test_a_spoiled_answer_does_not_end_the_turn(fleet: Stack, model: ModelServer, kind: Any) -> None:
    model.script = steps("print(6 * 7)", "SUBMIT('It is 42.')")
    model.fail(Fault(kind, role="root"))
    turn, _ = watched(fleet)
    assert turn["status"] == "completed" and "42" in turn["answer"]


@pytest.mark.parametrize(
    ("fault", "code"), [(refused(times=9), "model_auth"), (Fault("status", times=9, status=500), "model_unavailable")]
)
def test_a_model_that_never_answers_fails_the_turn_and_says_why(
    fleet: Stack, model: ModelServer, fault: Fault, code: str
) -> None:
    model.fail(fault)
    turn, events = watched(fleet)
    assert turn["status"] == "failed" and turn["error"]["code"] == code
    assert events[-1].type == "turn.failed" and "key-of-the-tests" not in str(turn)
    model.reset()
    assert watched(fleet)[0]["status"] == "completed"


def test_what_was_found_before_the_model_failed_becomes_the_answer(fleet: Stack, model: ModelServer) -> None:
    def script(asked: Any) -> str:
        if asked.role == "root" and asked.iteration == 2:
            model.fail(Fault("status", times=3, role="root", status=500))  # from the next call on
        return steps("print(6 * 7)", "print('never')", extract="42, as printed")(asked)

    model.script = script
    turn, _ = watched(fleet)
    assert turn["status"] == "completed" and turn["answer"] == "42, as printed"


def test_a_loop_that_never_submits_is_asked_for_its_answer_at_the_limit(fleet: Stack, model: ModelServer) -> None:
    model.script = steps("print('still looking')", extract="what was found")
    turn, _ = watched(fleet)
    assert turn["answer"] == "what was found" and turn["usage"]["iterations"] == ITERATIONS
    assert turn["forced"]["reason"] == "iterations"


def test_a_cell_that_fails_is_told_to_the_model(fleet: Stack, model: ModelServer) -> None:
    def script(asked: Any) -> str:
        if asked.iteration == 1:
            return action("undefined_name")
        return action("SUBMIT('seen')" if "NameError" in asked.text else "SUBMIT('not seen')")

    model.script = script
    turn, events = watched(fleet)
    assert turn["answer"] == "seen"
    assert next(event for event in events if event.type == "cell.finished").fields["status"] == "error"


def test_batched_questions_are_asked_at_the_same_time(fleet: Stack, model: ModelServer) -> None:
    model.script = steps("print(llm_query_batched([f'q{i}' for i in range(6)]))", "SUBMIT('done')")
    model.delay_s = 0.2
    turn, _ = watched(fleet)
    assert turn["status"] == "completed" and turn["usage"]["sub_lm_calls"] == 6
    assert model.max_in_flight >= 3


def test_the_sandbox_knows_no_secret_of_ours(fleet: Stack, model: ModelServer) -> None:
    model.script = steps("import os\nfound = str(dict(os.environ))\nprint(found)", "SUBMIT(found)")
    turn, _ = watched(fleet)
    for secret in ("key-of-the-tests", fleet.token, fleet.environment["DAYTONA_API_KEY"], "FLEET_", "DATABASE_URL"):
        assert secret not in turn["answer"]


@pytest.mark.parametrize("kind", ["hang", "trickle"])
def test_a_cancel_does_not_wait_for_the_model(fleet: Stack, model: ModelServer, kind: Any) -> None:
    model.fail(Fault(kind, seconds=30.0))
    client = fleet.client
    turn = client.submit(client.create_session()["id"], "What is six times seven?")
    while not model.requests:
        time.sleep(0.01)
    time.sleep(0.2)
    began = time.monotonic()
    client.cancel(turn["id"])
    last = list(client.follow(turn["id"], give_up_s=20))[-1]
    assert last.type == "turn.cancelled" and time.monotonic() - began < 1.0
    until = time.monotonic() + 5
    while model.disconnects == 0 and time.monotonic() < until:
        time.sleep(0.05)
    assert model.disconnects == 1
