"""Phrases of a question: quoted terms, numbers, which files are meant, the question made plain."""

import re
from collections.abc import Sequence
from typing import Final

from fleet_worker.agent.demo.reading import File

_QUOTES: Final = re.compile(r"\"([^\"]+)\"|“([^”]+)”|‘([^’]+)’|`([^`]+)`|«([^»]+)»|(?<!\w)'([^']+)'(?!\w)")
_WORD_NUMBERS: Final = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "twelve": 12, "fifteen": 15, "twenty": 20, "hundred": 100,
}  # fmt: skip


def quoted(question: str) -> list[str]:
    """The quoted terms, in order."""
    return [next(group for group in match.groups() if group) for match in _QUOTES.finditer(question)]


def plain(question: str) -> str:
    """The question in lower case with single spaces, typographic quotes as plain ones."""
    text = question.translate(str.maketrans("“”‘’–—", "\"\"''--"))
    return " ".join(text.lower().split())


def numbers(text: str) -> list[float]:
    """The numbers of a text, `2,340` and `1.5` alike; number words up to a hundred count too."""
    found: list[float] = []
    for match in re.finditer(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?|[a-z]+", text):
        word = match.group()
        if word[0].isalpha():
            if word in _WORD_NUMBERS:
                found.append(_WORD_NUMBERS[word])
        else:
            found.append(float(word.replace(",", "")))
    return found


def first_count(text: str, default: int) -> int:
    """The first whole number of a text."""
    found = [int(number) for number in numbers(text) if number == int(number) and number > 0]
    return found[0] if found else default


def targets(question: str, files: Sequence[File]) -> list[File]:
    """The files a question means: those it names, else the last attached one, else all of them."""
    low = question.lower()
    named = [file for file in files if file.name.lower() in low]
    if not named:
        named = [file for file in files if _stem_is_named(file.name, low)]
    if named:
        return named
    attached = [file for file in files if file.source == "attachment"]
    pool = attached or list(files)
    several = re.search(r"\b(?:all|both|each|every|these|those|files|documents|attachments)\b", low)
    return pool if several or len(pool) < 2 else pool[-1:]


def _stem_is_named(name: str, low: str) -> bool:
    stem = name.rpartition(".")[0].lower()
    return len(stem) >= 3 and re.search(rf"(?<!\w){re.escape(stem)}(?!\w)", low) is not None
