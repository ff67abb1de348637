"""Text from outside."""

from hypothesis import given
from hypothesis import strategies as st

from fleet_shared.domain.text import clean_text, shorten


@given(st.text(alphabet=st.characters(codec=None)))
def test_cleaned_text_can_be_stored_and_keeps_its_length(text: str) -> None:
    cleaned = clean_text(text)
    assert len(cleaned) == len(text)
    assert "\0" not in cleaned
    cleaned.encode("utf-8")


@given(st.text(max_size=300), st.integers(60, 200))
def test_shortened_text_keeps_head_and_tail_within_the_limit(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert len(short) <= max(limit, 0) or short == text
    assert short == text or (text.startswith(short[:10]) and text.endswith(short[-5:]))
