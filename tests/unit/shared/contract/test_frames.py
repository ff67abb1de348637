"""The format of the stream: every fact survives the way over the wire, and every message fits."""

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_shared.contract.frames import MESSAGE_BYTES, Unknown, decode, encode, message_json, split, sse_message
from fleet_shared.domain.events import DRAFTS, FACTS, Answer, CodeDelta, Draft, Envelope, Fact, Output, Reasoning

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SAMPLES: dict[str, Any] = {"int": 7, "str": "täxt\n", "bool": True, "float | None": 0.5, "dict[str, Any]": {"a": 1}}


def sample(kind: type[Fact] | type[Draft]) -> Fact | Draft:
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        annotation = (
            getattr(field.type, "__name__", str(field.type)) if isinstance(field.type, type) else str(field.type)
        )
        base = annotation.removesuffix(" | None")
        values[field.name] = SAMPLES.get(
            annotation, SAMPLES.get(base, {"reason": "x"} if "dict" in annotation else None)
        )
    return kind(**values)


@pytest.mark.parametrize("kind", [*FACTS.values(), *DRAFTS.values()], ids=lambda kind: kind.type)
def test_every_fact_and_draft_survives_the_way_over_the_wire(kind: type[Fact] | type[Draft]) -> None:
    told = sample(kind)
    is_fact = isinstance(told, Fact)
    envelope = Envelope("t", NOW, seq=9 if is_fact else None, run_id="r", attempt=2, scope=("c1",))
    body = encode(told, dataclasses.replace(envelope, seq=None))
    data = message_json(body, 9) if is_fact else body
    assert decode(data) == (envelope, told)
    assert "\n" not in data
    assert ("v" in json.loads(data)) is is_fact


@given(st.text(alphabet=st.characters(codec=None), max_size=200).map(lambda text: text * 700))
def test_a_text_of_any_size_is_told_in_messages_that_fit(text: str) -> None:
    envelope = Envelope("t", NOW, run_id="r", attempt=1)
    parts = split(Reasoning(1, text))
    for part in parts:
        assert len(encode(part, envelope).encode("utf-8")) <= MESSAGE_BYTES
    texts = [decode(message_json(encode(part, envelope), 1))[1].text for part in parts]  # type: ignore[union-attr]
    expected = decode(encode(Output(1, "stdout", text), envelope))[1].text if len(text) < 1000 else None  # type: ignore[union-attr]
    assert expected is None or "".join(texts) == expected
    assert sum(map(len, texts)) == len(text)


def test_parts_are_numbered_and_a_result_rides_on_the_first_alone() -> None:
    parts = split(Answer("x" * 200_000, result={"a": 1}))
    assert [(part.part, part.parts) for part in parts] == [(n, len(parts)) for n in range(1, len(parts) + 1)]  # type: ignore[attr-defined]
    assert [part.result for part in parts] == [{"a": 1}] + [None] * (len(parts) - 1)  # type: ignore[attr-defined]
    assert split(Answer("short"))[0].part is None  # type: ignore[attr-defined]


def test_unknown_types_and_fields_are_tolerated_and_nonsense_is_not() -> None:
    envelope, told = decode('{"type":"turn.danced","turn_id":"t","at":"2026-01-02T03:04:05Z","seq":4}')
    assert isinstance(told, Unknown) and envelope.seq == 4
    known = decode('{"type":"code.delta","turn_id":"t","at":"2026-01-02T03:04:05Z","n":1,"text":"x","later":true}')
    assert known[1] == CodeDelta(1, "x")
    for nonsense in ("", "[]", "{}", '{"type":"code","turn_id":"t","at":"2026-01-02T03:04:05Z"}', '{"type":"code"}'):
        with pytest.raises(ValueError):
            decode(nonsense)


def test_an_sse_message_has_an_id_for_facts_alone() -> None:
    assert sse_message("notice", '{"a":1}', 5) == 'event: notice\nid: 5\ndata: {"a":1}\n\n'
    assert sse_message("draft", "{}", None) == "event: draft\ndata: {}\n\n"
