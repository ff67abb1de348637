"""What the demo model does about a question: reasoning and Python, chosen by rules."""

import re
from dataclasses import dataclass
from typing import Final

from fleet_worker.agent.demo.reading import Reading

MARK: Final = "\n\n— demo model (rules, no language model)"
_COUNT: Final = re.compile(
    r"how (?:many times|often) (?:does|do|is|are) (?:the )?(?:word |term |phrase )?[\"“'`]?([\w' -]+?)[\"”'`]? ", re.I
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One action."""

    reasoning: str
    code: str


def action(reading: Reading) -> Plan:
    """The next action for a question."""
    match = _COUNT.search(reading.question)
    if match:
        return _count(match.group(1).strip(), reading.iteration or 1)
    text = "The demo model follows rules and did not understand this question. Set FLEET_MODEL for a real model."
    return Plan("No rule fits the question.", f"SUBMIT({text + MARK!r})")


def _count(word: str, iteration: int) -> Plan:
    if iteration == 1:
        code = (
            f"import re\nword = {word!r}\npattern = re.compile(r'\\b' + re.escape(word) + r'\\b', re.I)\ncounts = {{}}\n"
            "for file in files:\n    with open(file['path'], encoding='utf-8', errors='replace') as source:\n"
            "        counts[file['name']] = sum(len(pattern.findall(line)) for line in source)\n"
            "    print(file['name'], counts[file['name']])"
        )
        return Plan(f"Count “{word}” as a whole word, in any case, line by line.", code)
    code = (
        "total = sum(counts.values())\n"
        "answer = f'The word “{word}” appears **{total}** times (whole word, any case) in ' + ', '.join(counts) + '.'\n"
        f"SUBMIT(answer + {MARK!r})"
    )
    return Plan("The counts are there: answer with how they were made.", code)


def summary(prompt: str) -> str:
    """An extract of a text, for llm_query."""
    sentences = re.split(r"(?<=[.!?])\s+", prompt)
    return "[demo model, extract] " + max(sentences, key=len)[:300]


def unanswered(reading: Reading) -> str:
    """The last answer when nothing was submitted."""
    return "The demo model found no answer within its iterations." + MARK
