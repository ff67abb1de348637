"""The same facts give the same blocks, however they arrive."""

from typing import Any

from fleet_term.state import Block, Kind, Phase, TurnState, reduce, size_text

FACTS: list[tuple[str, dict[str, Any]]] = [
    ("turn.queued", {}),
    ("turn.started", {"model": "m", "attempt": 1}),
    ("iteration.started", {"n": 1, "max": 20}),
    ("reasoning", {"n": 1, "text": "Look."}),
    ("code", {"n": 1, "code": "print(1)\n"}),
    ("output", {"n": 1, "stream": "stdout", "text": "a → "}),
    ("output", {"n": 1, "stream": "stdout", "text": "b\nc"}),
    ("cell.finished", {"n": 1, "status": "ok"}),
    ("answer", {"text": "Fine."}),
    ("turn.completed", {}),
]


def play(facts: list[tuple[str, dict[str, Any]]]) -> tuple[TurnState, list[Block]]:
    state, blocks = TurnState(), []
    for seq, (type_, fields) in enumerate(facts, start=1):
        state, more = reduce(state, type_, {"seq": seq, **fields})
        blocks += more
    return state, blocks


def test_a_turn_becomes_a_timeline() -> None:
    state, blocks = play(FACTS)
    assert state.phase is Phase.COMPLETED and state.answer == "Fine."
    assert [(block.kind, block.text) for block in blocks] == [
        (Kind.STATUS, "queued"),
        (Kind.STATUS, "started · m"),
        (Kind.REASONING, "Look."),
        (Kind.CODE, "print(1)"),
        (Kind.OUTPUT, "a → b"),
        (Kind.OUTPUT, "c"),
        (Kind.ANSWER, "Fine."),
    ]


def test_a_fact_that_comes_twice_changes_nothing() -> None:
    state, _ = play(FACTS[:6])
    again, blocks = reduce(state, "output", {"seq": 6, "n": 1, "text": "a → "})
    assert again == state and blocks == []


def test_a_draft_shows_until_its_fact_and_prints_nothing() -> None:
    state, _ = play(FACTS[:3])
    state, blocks = reduce(state, "code.delta", {"n": 1, "attempt": 1, "text": "print("})
    assert state.draft.code == "print(" and blocks == []
    state, _ = reduce(state, "code", {"seq": 4, "n": 1, "code": "print(1)"})
    late, _ = reduce(state, "code.delta", {"n": 1, "attempt": 1, "text": "late"})
    assert state.draft.code == late.draft.code == ""


def test_long_output_is_folded_with_its_end_shown() -> None:
    lines = "".join(f"{i}\n" for i in range(1000))
    _, blocks = play([*FACTS[:5], ("output", {"n": 1, "text": lines}), ("cell.finished", {"n": 1, "status": "ok"})])
    shown = [block.text for block in blocks if block.kind is Kind.OUTPUT]
    assert shown[:2] == ["0", "1"] and shown[-1] == "999" and len(shown) == 35
    assert any("965 more lines" in block.text for block in blocks)


def test_a_fact_in_parts_is_printed_once_it_is_whole() -> None:
    _, blocks = play(
        [("answer", {"text": "one ", "part": 1, "parts": 2}), ("answer", {"text": "two", "part": 2, "parts": 2})]
    )
    assert [block.text for block in blocks] == ["one two"]


def test_an_unknown_fact_is_no_error() -> None:
    state, blocks = play([("something.new", {"x": 1})])
    assert state.seq == 1 and blocks == []


def test_a_failure_says_its_code_and_whether_to_try_again() -> None:
    _, blocks = play([("turn.failed", {"code": "model_unavailable", "message": "It is away.", "retryable": True})])
    assert "model_unavailable" in blocks[0].text and "/retry" in blocks[0].text


def test_sizes_are_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1500, 35_149, 8_000_000, 2_500_000_000)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "35 kB",
        "8.0 MB",
        "2.5 GB",
    ]
