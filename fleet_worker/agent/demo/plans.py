"""Which rule answers a question. The order matters: the more special a rule, the earlier it is asked."""

import re
from collections import Counter
from typing import Final

from fleet_worker.agent.demo.calculations import calculation_plan
from fleet_worker.agent.demo.phrases import targets
from fleet_worker.agent.demo.plan import MARK, Plan, say, submit
from fleet_worker.agent.demo.reading import File, Reading
from fleet_worker.agent.demo.tables import table_plan
from fleet_worker.agent.demo.talk import (
    NOT_UNDERSTOOD,
    compare_plan,
    files_plan,
    help_plan,
    history_plan,
    report_plan,
    summary_plan,
)
from fleet_worker.agent.demo.texts import text_plan

EXTRACT_MARK: Final = "[demo model, extract by word frequency] "
_NO_FILE: Final = "No file is attached: attach one with `/attach PATH` (or `-a FILE`), then ask again."


def action(reading: Reading) -> Plan:
    """The next action for a question; an honest word when no rule fits or the last cell failed."""
    if reading.failed and len(reading.outputs) >= 2:
        return submit(
            "'My rules fit this question, but the computation failed, so I have no result.'", "The computation failed."
        )
    question = _in_context(reading)
    files = _same_file(question) or targets(question.question, question.files)
    plan = (
        help_plan(question)
        or history_plan(question)
        or compare_plan(question, files)
        or report_plan(question, files)
        or summary_plan(question, files)
        or files_plan(question, files)
    )
    if plan is None and not files:
        plan = calculation_plan(question)
        if plan is None and _wants_file(question.question):
            return say(_NO_FILE, "The question is about a file, and there is none.")
    elif plan is None:
        plan = table_plan(question, files)
        if plan is None and not _wants_file(question.question):
            plan = calculation_plan(question)
        plan = plan or text_plan(question, files) or calculation_plan(question)
    return plan or say(NOT_UNDERSTOOD, "No rule fits the question.")


def summary(prompt: str) -> str:
    """An extract of a text: its most central sentences by the frequency of their words, in their order."""
    body = prompt.partition("\n\n")[2] or prompt
    sentences = [" ".join(item.split()) for item in re.split(r"(?<=[.!?])\s+|\n\s*\n", body)]
    sentences = [item for item in sentences if 20 <= len(item) <= 600] or [" ".join(body.split())[:300]]
    counts = Counter(word for word in re.findall(r"[^\W\d_]{4,}", body.lower()))

    def weight(sentence: str) -> float:
        words = re.findall(r"[^\W\d_]{4,}", sentence.lower())
        return sum(counts[word] for word in words) / (len(words) + 3)

    best = sorted(sorted(range(len(sentences)), key=lambda i: -weight(sentences[i]))[:2])
    return EXTRACT_MARK + " ".join(sentences[i] for i in best)


def unanswered(reading: Reading) -> str:
    """The last answer when nothing was submitted."""
    return "The demo model found no answer within its iterations." + MARK


def _wants_file(question: str) -> bool:
    return bool(
        re.search(
            r"\b(?:file|document|text|attach\w*|csv|table|lines?|words?|column|rows?|appears?|occurs?|mention\w*|it)\b",
            question.lower(),
        )
    )


def _same_file(reading: Reading) -> list[File]:
    """The file that was talked about last, when the question refers back to it."""
    low = reading.question.lower()
    refers = re.search(r"\b(?:same|that|previous) (?:file|document|text|table)\b|\bit\b", low)
    if not refers or len(reading.files) < 2 or any(file.name.lower() in low for file in reading.files):
        return []
    last = max(reading.files, key=lambda file: reading.recent.rfind(file.name))
    return [last] if last.name in reading.recent else []


_FOLLOW_UP: Final = re.compile(
    r"(?:and|what about|how about|now|also|same for)\b[\s,:]*(?:for |the word |with )?(.{1,60}?)\??$", re.IGNORECASE
)


def _in_context(reading: Reading) -> Reading:
    """A short follow-up such as “and ‘license’?” put back into the question it follows."""
    question = reading.question.strip()
    match = _FOLLOW_UP.match(question)
    asked = re.findall(r"^Q: (.+)$", reading.recent, re.MULTILINE)
    previous = [text for text in asked if not _FOLLOW_UP.match(text)]
    if not match or re.search(r"\bhow many\b|\bwhat is\b|\bwhich\b", question, re.I):
        return reading
    term = match.group(1).strip("\"'“”` ")
    merged = f'How many times does the word "{term}" appear?' if "appears **" in reading.recent else question
    for last in reversed(previous):
        old = re.search(r"[\"“'‘`]([^\"”'’`]+)[\"”'’`]", last) or re.search(r"\b(?:word|term|phrase) (\w+)", last)
        if old is not None:
            merged = last[: old.start(1)] + term + last[old.end(1) :]
            break
    return Reading(merged, reading.recent, reading.files, reading.iteration, reading.outputs, reading.wanted)
