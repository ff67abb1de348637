"""Keys as bytes, and the text they make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_term.editor import Editor
from fleet_term.keys import PASTE_END, PASTE_START, Key, Keyboard
from fleet_term.slash import COMMANDS, find, help_lines, parse


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]), min_size=1))
def test_text_arrives_whole_however_its_bytes_are_cut(text: str) -> None:
    keyboard, typed = Keyboard(), ""
    for byte in text.encode():
        typed += "".join(key.text for key in keyboard.feed(bytes([byte])))
    assert typed == text


def test_a_paste_is_one_key_with_its_newlines() -> None:
    keyboard = Keyboard()
    data = PASTE_START + "a\rb\r\nüc\x1b[A".encode() + PASTE_END + b"\r"
    keys = [key for i in range(0, len(data), 3) for key in keyboard.feed(data[i : i + 3])]
    assert keys == [Key("paste", "a\nb\nüc\x1b[A"), Key("enter")]


@pytest.mark.parametrize(
    ("data", "name"), [(b"\x1b[A", "up"), (b"\x1bOD", "left"), (b"\x03", "interrupt"), (b"\x1b\r", "newline")]
)
def test_keys_have_names(data: bytes, name: str) -> None:
    assert Keyboard().feed(data) == [Key(name)]


def test_an_escape_alone_is_known_after_a_silence() -> None:
    keyboard = Keyboard()
    assert keyboard.feed(b"\x1b") == [] and keyboard.is_waiting
    assert keyboard.idle() == [Key("escape")] and not keyboard.is_waiting


def test_answers_of_the_terminal_are_not_typed() -> None:
    assert Keyboard().feed(b"\x1b[?64;1;2c\x1b]11;rgb:0/0/0\x07\x1bP1+r544e=78\x1b\\") == []


def typed(*keys: str | Key) -> Editor:
    editor = Editor()
    for key in keys:
        editor = editor.press(Key("text", key) if isinstance(key, str) else key)
    return editor


def test_editing_moves_removes_and_brings_back() -> None:
    editor = typed("hello big world", Key("word_left"), Key("kill_word"))
    assert (editor.text, editor.cursor) == ("hello world", 6)
    editor = editor.press(Key("end")).press(Key("text", " ")).press(Key("yank"))
    assert editor.text == "hello world big "
    assert editor.press(Key("kill_line")).text == ""


def test_up_and_down_walk_lines_first_and_then_the_history_keeping_the_draft() -> None:
    editor = typed("first").clear()
    editor = editor.press(Key("text", "one")).press(Key("newline")).press(Key("text", "two"))
    up = editor.press(Key("up"))
    assert up.text == editor.text and up.cursor == 3
    recalled = up.press(Key("up"))
    assert recalled.text == "first"
    assert recalled.press(Key("down")).text == "one\ntwo"


def test_slash_commands_are_found_by_what_they_begin_with() -> None:
    assert parse("/attach a b") == ("attach", "a b") and parse("//not") is None and parse("hello") is None
    found = find("att")
    assert found is not None and found.name == "attach"
    assert find("nothing") is None and find("") is None
    assert all(f"/{command.name}" in "\n".join(help_lines()) for command in COMMANDS)
