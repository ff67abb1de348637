"""The state machine: every command in every state, as properties over random histories."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_shared.domain.errors import IllegalTransition
from fleet_shared.domain.turn import (
    LOSSES_LIMIT,
    Claim,
    Command,
    Complete,
    ConfirmCancel,
    ExpireQueued,
    Fail,
    FenceCancel,
    FenceLost,
    FenceOverdue,
    HandOver,
    Renew,
    RequestCancel,
    TurnState,
    TurnStatus,
    advance,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
QUEUED = TurnState(
    status=TurnStatus.QUEUED,
    attempt=0,
    losses=0,
    lease_until=None,
    cancel_requested_at=None,
    created_at=START,
    started_at=None,
)

_attempts = st.integers(0, 4)
_seconds = st.floats(0.1, 100)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(Claim, worker_id=st.sampled_from(["a", "b"]), lease_s=_seconds),
    st.builds(Renew, attempt=_attempts, lease_s=_seconds),
    st.builds(HandOver, attempt=_attempts),
    st.just(RequestCancel()),
    st.builds(Complete, attempt=_attempts),
    st.builds(Fail, attempt=_attempts),
    st.builds(ConfirmCancel, attempt=_attempts),
    st.builds(FenceCancel, patience_s=_seconds),
    st.just(FenceLost()),
    st.builds(FenceOverdue, timeout_s=_seconds),
    st.builds(ExpireQueued, max_queue_s=_seconds),
)
histories = st.lists(st.tuples(commands, st.floats(0, 60)), max_size=30)


def played(history: list[tuple[Command, float]]) -> list[tuple[TurnState, Command, datetime, TurnState]]:
    """The transitions that were allowed: (before, command, now, after)."""
    state, now, steps = QUEUED, START, []
    for command, pause in history:
        now += timedelta(seconds=pause)
        try:
            after = advance(state, command, now)
        except IllegalTransition:
            continue
        steps.append((state, command, now, after))
        state = after
    return steps


@given(histories)
def test_an_ended_turn_never_changes(history: list[tuple[Command, float]]) -> None:
    for before, _, _, after in played(history):
        if before.status.is_terminal:
            assert after == before


@given(histories)
def test_the_attempt_grows_by_one_at_claims_and_fences_and_never_otherwise(
    history: list[tuple[Command, float]],
) -> None:
    for before, command, _, after in played(history):
        grows = isinstance(command, Claim | FenceCancel | FenceLost | FenceOverdue)
        assert after.attempt == before.attempt + (1 if grows else 0)


@given(histories)
def test_losses_count_leases_that_ran_out_and_stay_within_their_limit(history: list[tuple[Command, float]]) -> None:
    for before, command, now, after in played(history):
        lost = isinstance(command, Claim) and before.status is TurnStatus.RUNNING
        assert after.losses == before.losses + (1 if lost else 0) <= LOSSES_LIMIT
        if lost:
            assert before.lease_until is None or before.lease_until < now


@given(histories)
def test_only_the_present_attempt_can_end_its_turn(history: list[tuple[Command, float]]) -> None:
    for before, command, _, _ in played(history):
        if isinstance(command, Complete | Fail | ConfirmCancel | Renew | HandOver):
            assert before.status is TurnStatus.RUNNING
            assert command.attempt == before.attempt


@given(histories)
def test_a_requested_cancel_is_never_followed_by_an_answer(history: list[tuple[Command, float]]) -> None:
    for before, _, _, after in played(history):
        if before.cancel_requested_at is not None:
            assert after.status in (before.status, TurnStatus.CANCELLED, TurnStatus.FAILED, TurnStatus.QUEUED)
            assert after.status is not TurnStatus.COMPLETED or before.status is TurnStatus.COMPLETED


@given(histories)
def test_a_running_turn_has_a_lease_and_a_start_and_an_ended_one_a_finish(
    history: list[tuple[Command, float]],
) -> None:
    for _, _, _, after in played(history):
        match after.status:
            case TurnStatus.RUNNING:
                assert after.lease_until is not None and after.started_at is not None and after.finished_at is None
            case TurnStatus.QUEUED:
                assert after.lease_until is None and after.finished_at is None
            case _:
                assert after.lease_until is None and after.finished_at is not None


def test_a_worker_whose_lease_ran_out_may_renew_until_somebody_takes_the_turn() -> None:
    held = advance(QUEUED, Claim("a", 45), START)
    late = START + timedelta(seconds=100)
    assert advance(held, Renew(1, 45), late).lease_until == late + timedelta(seconds=45)
    taken = advance(held, Claim("b", 45), late)
    assert (taken.attempt, taken.losses, taken.worker_id) == (2, 1, "b")
    with pytest.raises(IllegalTransition):
        advance(taken, Renew(1, 45), late)


def test_a_handed_over_turn_counts_no_loss_and_a_cancel_then_ends_it_at_once() -> None:
    held = advance(QUEUED, Claim("a", 45), START)
    waiting = advance(held, HandOver(1), START)
    assert (waiting.status, waiting.losses) == (TurnStatus.QUEUED, 0)
    assert advance(waiting, RequestCancel(), START).status is TurnStatus.CANCELLED


def test_a_turn_lost_too_often_is_not_claimed_again_but_given_up() -> None:
    state, now = QUEUED, START
    for _ in range(LOSSES_LIMIT + 1):
        state = advance(state, Claim("a", 1), now)
        now += timedelta(seconds=2)
    with pytest.raises(IllegalTransition):
        advance(state, Claim("a", 1), now)
    assert advance(state, FenceLost(), now).status is TurnStatus.FAILED
