"""What is shown is safe, fits, and stays whole for copying."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_term.state import Block, Draft, Kind, Phase, TurnState
from fleet_term.view import Style, columns, cut, lines_of, live_lines, markdown, prose, safe


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP+q544e\x1b\\x", "x"),
        ("\x9b31mx", "x"),
        ("10%\r20%\r30%", "30%"),
        ("a\tb", "a   b"),
        ("bell\x07", "bell"),
        ("abc\u202edef", "abc<U+202E>def"),
        ("line\r\nnext", "line\nnext"),
        ("unfinished \x1b[", "unfinished "),
    ],
)
def test_text_from_outside_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert safe(text) == shown


@given(st.text())
def test_nothing_that_steers_is_left_in_any_text(text: str) -> None:
    assert not any((ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 for c in safe(text))


@given(st.text(), st.integers(1, 60))
def test_a_cut_text_fits(text: str, width: int) -> None:
    assert columns(cut(safe(text).replace("\n", " "), width)) <= width


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert columns("漢字") == 4 and columns("e\u0301") == 1 and columns("👍\ufe0f") == 2


def test_code_and_output_are_never_wrapped() -> None:
    long = "x = " + "1 + " * 100 + "1"
    assert lines_of(Block(Kind.CODE, long, "python #1"), 40)[1:] == [f"  {long}"]
    assert lines_of(Block(Kind.OUTPUT, long), 40) == [f"  │ {long}"]


def test_prose_is_wrapped_with_a_hanging_indent() -> None:
    lines = prose("one two three four five six seven eight nine ten eleven", 30, "◦ ", "  ")
    assert all(columns(line) < 30 for line in lines)
    assert lines[0].startswith("◦ one") and all(line.startswith("  ") for line in lines[1:])


def test_an_answer_keeps_its_fences_and_tables() -> None:
    lines = markdown("# Head\n\n- **bold** item\n\n```\n  a  b\n```\n| a | b |", 80, Style())
    assert lines == ["Head", "", "- bold item", "", "    a  b", "| a | b |"]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_live_area_stays_off_the_last_column(width: int) -> None:
    state = TurnState(
        phase=Phase.RUNNING, n=3, max=20, tokens=123_456, tools=12, draft=Draft(3, "", "漢" * 300), partial="y" * 500
    )
    assert all(columns(line) < width for line in live_lines(state, width, 12.0, "connecting again", Style()))
