"""What a rule gives back: the next action, or nothing when the rule does not apply."""

from dataclasses import dataclass
from typing import Final

MARK: Final = "\n\n— demo model (rules, no language model)"


@dataclass(frozen=True, slots=True)
class Plan:
    """One action: why, and the Python that does it."""

    reasoning: str
    code: str


def submit(expression: str, reasoning: str = "The result is there: answer with how it was found.") -> Plan:
    """The plan that answers with a Python expression for the text; the demo model's mark is put below it."""
    return Plan(reasoning, f"answer = {expression}\nSUBMIT(answer + {MARK!r})")


def say(text: str, reasoning: str = "No computation is needed.") -> Plan:
    """The plan that answers with a fixed text."""
    return submit(repr(text), reasoning)
