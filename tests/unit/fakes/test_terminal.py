"""The terminals of the tests: a program sees their size and keys, and they see all that it wrote until its end."""

import os
import sys

import pytest

from tests.fakes.terminal import tmux, window

ENVIRONMENT = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
SIZE = "import os; print(*os.get_terminal_size())"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_knows_the_size_from_its_first_moment_and_is_told_of_a_change() -> None:
    told = "os.write(1, ('%d %d' % os.get_terminal_size()).encode())"  # print may be interrupted by itself
    code = f"import os, signal; {SIZE}; signal.signal(signal.SIGWINCH, lambda *_: {told}); print('ready'); input()"
    with window(python(code), ENVIRONMENT, columns=71, rows=13) as shown:
        shown.wait_for("71 13")
        shown.wait_for("ready")
        shown.resize(52, 9)
        shown.wait_for("52 9")


def test_keys_reach_the_program_and_its_last_words_are_seen() -> None:
    with window(python("print(input()[::-1]); raise SystemExit(3)"), ENVIRONMENT) as shown:
        shown.send("abc\r")
        assert shown.wait() == 3
        assert "cba" in shown.text()


def test_what_scrolled_out_is_still_in_the_text() -> None:
    with window(python("for n in range(200): print('line', n)"), ENVIRONMENT, rows=10) as shown:
        assert shown.wait_for("line 199").count("line ") == 200


def test_a_program_that_cannot_be_started_is_seen_as_ended() -> None:
    with window(["/nowhere/at/all"], ENVIRONMENT) as shown:
        assert shown.wait() == 127


def test_what_does_not_appear_fails_with_the_screen() -> None:
    with (
        window(python("print('hello'); input()"), ENVIRONMENT) as shown,
        pytest.raises(AssertionError, match=r"'goodbye' did not appear:\nhello"),
    ):
        shown.wait_for("goodbye", timeout_s=2)


def test_tmux_takes_keys_names_the_program_and_shows_its_exit_status() -> None:
    command = f"{sys.executable} -c 'import os; print(\"pid\", os.getpid()); raise SystemExit(len(input()))'"
    with tmux("selftest", command, ENVIRONMENT) as pane:
        pane.wait_for("pid ")
        assert f"pid {pane.pid()}\n" in pane.text()
        pane.send("four", "Enter")
        pane.wait_for("EXIT 4")
