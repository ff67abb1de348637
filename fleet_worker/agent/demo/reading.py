"""What the demo model reads in a prompt: the question, the iteration, what happened so far."""

import re
from dataclasses import dataclass
from textwrap import dedent
from typing import Final

_SECTION: Final = re.compile(r"\[\[ ## (\w+) ## \]\]\n")
_ITERATION: Final = re.compile(r"\[\[ ## iteration ## \]\]\s*(\d+)/(\d+)")
_VARIABLE: Final = re.compile(r"Variable: `(\w+)`.*?^ *```\n(.*?)\n *```\n»»»", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reading:
    """A root call. `iteration` is None in the call that extracts a last answer, `wanted` then names its fields."""

    question: str
    iteration: int | None
    history: str
    has_error: bool
    wanted: tuple[str, ...]


def read(prompt: str) -> Reading | None:
    """The reading of a root call; None for a sub-call."""
    if "[[ ## variables_info ## ]]" not in prompt:
        return None
    sections = _sections(prompt)
    variables = {name: dedent(text) for name, text in _VARIABLE.findall(sections.get("variables_info", "") + "\n")}
    iteration = _ITERATION.search(prompt)
    history = sections.get("repl_history", "")
    tail = prompt[prompt.rfind("Respond with") :]
    wanted = tuple(name for name in re.findall(r"\[\[ ## (\w+) ## \]\]", tail) if name != "completed")
    return Reading(
        question=variables.get("question", "").strip(),
        iteration=int(iteration.group(1)) if iteration else None,
        history=history,
        has_error="[Error]" in history,
        wanted=wanted,
    )


def _sections(prompt: str) -> dict[str, str]:
    parts = _SECTION.split(prompt)
    return {parts[i]: parts[i + 1] for i in range(1, len(parts) - 1, 2)}
