"""The interpreter as the reasoning loop uses it, over the real SDK and a real sandbox."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput

from fleet_worker.sandbox import connection
from fleet_worker.sandbox.daytona import Account, Daytona, SandboxSpec
from fleet_worker.sandbox.interpreter import CellLimits, Connected, SandboxInterpreter, Silent
from fleet_worker.sandbox.protocol import CellDone
from tests.fakes.daytona import LocalDaytona

FIELDS = [{"name": "answer", "type": "str"}, {"name": "count", "type": "int"}]


@dataclass
class Heard(Silent):
    """Keeps what it is told."""

    pieces: list[tuple[str, str]] = field(default_factory=list)
    ended: list[CellDone] = field(default_factory=list)

    def output(self, stream: str, text: str) -> None:
        self.pieces.append((stream, text))

    def finished(self, done: CellDone) -> None:
        self.ended.append(done)

    def text(self, stream: str = "stdout") -> str:
        return "".join(text for name, text in self.pieces if name == stream)


@pytest.fixture(scope="module")
def connected(daytona: LocalDaytona) -> Iterator[Connected]:
    account = Daytona(Account(daytona.api_key, daytona.url))
    spec = SandboxSpec(name="conformance", labels={"app": "tests"}, auto_stop_min=15, auto_delete_min=60)
    machine = account.create(spec, timeout_s=30)
    bridge = connection.connect(machine, turn_sequence=1, attempt=1, seed=7, is_new=True, uploads={})
    yield Connected(bridge, machine.upload, connection.INCOMING)
    bridge.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


_lanes = itertools.count()


@pytest.fixture
def make(connected: Connected, heard: Heard) -> Iterator[Callable[..., SandboxInterpreter]]:
    made: list[SandboxInterpreter] = []

    def new(**limits: Any) -> SandboxInterpreter:
        one = SandboxInterpreter(
            lambda: connected, lane=f"lane{next(_lanes)}", listener=heard, limits=CellLimits(**limits)
        )
        made.append(one)
        return one

    yield new
    for one in made:
        one.shutdown()


@pytest.fixture
def interpreter(make: Callable[..., SandboxInterpreter]) -> SandboxInterpreter:
    return make()


def test_names_live_from_cell_to_cell_also_after_an_error(interpreter: SandboxInterpreter) -> None:
    interpreter.execute("import math\nx = 2")
    with pytest.raises(CodeExecutionError, match="ZeroDivisionError"):
        interpreter.execute("y = 5\n1 / 0")
    assert interpreter.execute("print(x + y, math.pi)") == "7 3.141592653589793"


def test_every_character_a_cell_prints_is_shown_live_in_its_order(
    interpreter: SandboxInterpreter, heard: Heard
) -> None:
    told = []
    for i in range(60):
        told.append(interpreter.execute(f"print('name', '→', str({{'n': {i}}}))") + "\n")
    assert heard.text() == "".join(told) == "".join(f"name → {{'n': {i}}}\n" for i in range(60))


def test_the_streams_are_told_apart(interpreter: SandboxInterpreter, heard: Heard) -> None:
    interpreter.execute("import sys, os\nprint('a')\nprint('b', file=sys.stderr)\n_ = os.write(1, b'c\\n')")
    assert heard.text("stdout") == "a\nc\n" and heard.text("stderr") == "b\n"


def test_a_syntax_error_is_one(interpreter: SandboxInterpreter) -> None:
    with pytest.raises(SyntaxError):
        interpreter.execute("def broken(:")


def test_an_error_tells_what_was_printed_before_and_where(interpreter: SandboxInterpreter) -> None:
    with pytest.raises(CodeExecutionError) as caught:
        interpreter.execute("print('before')\n\nraise ValueError('no such thing')")
    assert "before" in str(caught.value) and "ValueError: no such thing" in str(caught.value)
    assert "line 3" in str(caught.value)


def test_submit_ends_the_cell_with_its_fields(interpreter: SandboxInterpreter) -> None:
    interpreter.output_fields = FIELDS
    final = interpreter.execute("SUBMIT(answer='yes', count=3)\nprint('never')")
    assert isinstance(final, FinalOutput) and final.output == {"answer": "yes", "count": 3}


def test_submit_without_a_field_is_an_error_the_model_can_repair(interpreter: SandboxInterpreter) -> None:
    interpreter.output_fields = FIELDS
    with pytest.raises(CodeExecutionError):
        interpreter.execute("SUBMIT(answer='yes')")
    assert isinstance(interpreter.execute("SUBMIT('yes', 3)"), FinalOutput)


def test_tools_take_and_give_plain_values(interpreter: SandboxInterpreter) -> None:
    interpreter.tools["join"] = lambda words, sep=" ": {"text": sep.join(words)}
    assert interpreter.execute("print(join(['a', 'ü'], sep='-')['text'])") == "a-ü"


def test_a_tool_that_fails_raises_in_the_cell(interpreter: SandboxInterpreter) -> None:
    def broken() -> None:
        raise ValueError("out of order")

    interpreter.tools["broken"] = broken
    code = "try:\n    broken()\nexcept Exception as error:\n    print('caught', error)"
    assert "out of order" in interpreter.execute(code)


def test_tools_run_at_the_same_time(interpreter: SandboxInterpreter) -> None:
    together = threading.Barrier(4, timeout=10)
    interpreter.tools["meet"] = lambda i: together.wait() >= 0 and i
    code = (
        "from concurrent.futures import ThreadPoolExecutor as P\nwith P(4) as p: print(sorted(p.map(meet, range(4))))"
    )
    assert interpreter.execute(code) == "[0, 1, 2, 3]"


def test_a_cell_over_its_time_is_interrupted_and_keeps_its_names(make: Callable[..., SandboxInterpreter]) -> None:
    interpreter = make(timeout_s=0.5)
    with pytest.raises(CodeExecutionError, match="ran longer than"):
        interpreter.execute("kept = 1\nimport time\ntime.sleep(30)")
    assert interpreter.execute("print(kept)") == "1"


def test_waiting_for_a_tool_does_not_count_as_running(make: Callable[..., SandboxInterpreter]) -> None:
    interpreter = make(timeout_s=0.5)
    interpreter.tools["slow"] = lambda: time.sleep(1.2) or "done"
    assert interpreter.execute("print(slow())") == "done"


def test_a_cell_can_be_interrupted_from_another_thread(interpreter: SandboxInterpreter) -> None:
    interpreter.execute("import time")
    threading.Timer(0.3, interpreter.interrupt).start()
    began = time.monotonic()
    with pytest.raises((CodeExecutionError, CodeInterpreterError)):
        interpreter.execute("time.sleep(30)")
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("death", ["import os\nos._exit(3)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"])
def test_a_dead_interpreter_is_told_and_replaced(interpreter: SandboxInterpreter, death: str) -> None:
    interpreter.execute("x = 1")
    with pytest.raises(CodeExecutionError, match="namespace is lost"):
        interpreter.execute(death)
    assert interpreter.execute("print('x' in globals())") == "False"


def test_long_output_comes_back_as_head_and_tail_and_says_so(
    make: Callable[..., SandboxInterpreter], heard: Heard
) -> None:
    interpreter = make(output_chars=2_000, live_bytes=10_000)
    text = interpreter.execute("for i in range(20_000): print(i)")
    assert text.startswith("0\n1\n") and text.endswith("19999") and "left out" in text and len(text) < 3_000
    assert heard.ended[-1].truncated and len(heard.text()) < 11_000 and "not shown" in heard.text()
    assert heard.text().endswith("19999\n")


def test_a_line_of_three_megabytes_disturbs_nobody(make: Callable[..., SandboxInterpreter]) -> None:
    loud, quiet = make(), make()
    quiet.execute("x = 1")
    writer = threading.Thread(target=loud.execute, args=("print('y' * 3_000_000)",))
    writer.start()
    began = time.monotonic()
    assert quiet.execute("print(x)") == "1"
    assert time.monotonic() - began < 2
    writer.join(20)
    assert not writer.is_alive()


@pytest.mark.parametrize(
    "value", ["x" * 5_000_000, "ü\n" * 10, [1, {"a": None}], "\ud800 alone"], ids=lambda v: type(v)
)
def test_variables_arrive_whole(interpreter: SandboxInterpreter, value: Any) -> None:
    interpreter.tools["tell"] = lambda size, start: (size, start)
    text = interpreter.execute("print(type(given).__name__, len(given))", {"given": value})
    assert text == f"{type(value).__name__} {len(value)}"


def test_bytes_that_are_no_text_are_shown_replaced(interpreter: SandboxInterpreter) -> None:
    assert "\ufffd" in interpreter.execute("import os\n_ = os.write(1, b'\\xff\\xfe\\n')")


def test_code_cannot_be_run_after_shutdown(interpreter: SandboxInterpreter) -> None:
    interpreter.execute("1")
    interpreter.shutdown()
    interpreter.shutdown()
    with pytest.raises(CodeInterpreterError):
        interpreter.execute("1")
