"""Questions about the conversation and the files as such: help, history, lists, reports, summaries, comparisons."""

import re
from collections.abc import Sequence

from fleet_worker.agent.demo.phrases import plain
from fleet_worker.agent.demo.plan import Plan, say, submit
from fleet_worker.agent.demo.reading import File, Reading
from fleet_worker.agent.demo.snippets import READ_TEXT, SHOW, joined

CAN = """\
I am the demo model: I follow rules, and the Python I write does the work. I can count and find words, phrases, lines \
and numbers in attached files, compute over CSV and JSON tables (sums, averages, groups, filters), do arithmetic and \
sequences, list and compare files, write a report, and summarise a text by extracts.

For everything else a real model is needed: set FLEET_MODEL (for example `openai/…`, `anthropic/…`, `ollama_chat/…`) \
and its key, then start again."""
NOT_UNDERSTOOD = "I did not understand this question, so I did not compute anything.\n\n" + CAN


def help_plan(reading: Reading) -> Plan | None:
    """The plan for “what can you do?” and greetings."""
    question = plain(reading.question)
    if re.search(
        r"\bwhat (?:can|could) you (?:do|help)|\bhelp\b(?!.*\bfile)|\bwho are you\b|\bwhat are you\b|\bhow do you work\b|\bwhich model\b",
        question,
    ):
        return say(CAN, "The question is about the demo model itself.")
    if re.fullmatch(
        r"(?:hi|hello|hey|good (?:morning|evening|day)|thanks?|thank you)[\s!.,]*(?:there)?[\s!.,]*", question
    ):
        return say("Hello. " + CAN, "A greeting.")
    return None


def history_plan(reading: Reading) -> Plan | None:
    """The plan for questions about earlier questions and answers."""
    question = plain(reading.question)
    mine = re.search(r"\b(?:did i|have i|i (?:just )?asked|my (?:first|last|previous|earlier|second))\b", question)
    yours = re.search(
        r"\b(?:your (?:first|last|previous|earlier)|did you (?:say|answer|tell)|you (?:said|answered))\b", question
    )
    if not (mine or yours) or not re.search(
        r"\b(?:ask(?:ed)?|question|answer(?:ed)?|sa(?:y|id)|tell|told)\b", question
    ):
        return None
    if re.search(r"\bhow many\b", question):
        return submit("f'You asked **{len(history)}** questions before this one.'", "Count the history.")
    which = "0" if "first" in question else "1" if "second" in question else "-1"
    part = "answer" if yours and not re.search(r"\bmy\b|did i ask", question) else "question"
    if part == "question" and re.search(r"\b(?:all|every|list|so far|everything)\b|\bquestions\b", question):
        code = "'Your questions so far:' + ''.join(f'\\n{item[\"turn\"]}. {item[\"question\"]}' for item in history) if history else 'This is your first question.'"
        return submit(code, "Read the history.")
    word = {"0": "first", "1": "second", "-1": "last"}[which]
    text = f"f'The {word} {part} was:\\n\\n> ' + history[{which}][{part!r}].replace('\\n', '\\n> ') if len(history) > {1 if which == '1' else 0} else 'There is no such {part}: this Session is younger.'"
    return submit(text, "Read the history.")


def files_plan(reading: Reading, files: Sequence[File]) -> Plan | None:
    """The plan for questions about which files there are and what they are."""
    question = plain(reading.question)
    asks = re.search(
        r"\b(?:list|show|display|name|describe|enumerate)\b (?:me )?(?:all |the |my |your |of |attached |available |uploaded |workspace |these |this )*(?:files?|attachments?|documents?)\b"
        r"|\b(?:what|which) (?:kinds? of |other )?(?:files?|attachments?|documents?) (?:are|do|did|is|have|were|can|exist)\b"
        r"|\bwhat(?:'s| is| are| did i| have i)? (?:been )?(?:attach|upload)\w*"
        r"|\bhow many (?:files?|attachments?|documents?)\b|\b(?:file|attachment) (?:sizes?|types?|names?|list)\b"
        r"|\bhow (?:big|large) (?:is|are)\b|\bwhat(?:'s| is)? in (?:the|my) workspace\b|\bsizes? of (?:the|this|each|all|my|these|attached)\b.*\bfiles?\b"
        r"|\bwhat (?:type|kind) of (?:file|document)|\b(?:media|mime|file) type\b|\bdescribe (?:it|them)\b",
        question,
    )
    if not asks or re.search(r"\bhow many times\b|\bdiffer|\bcompare|summar|report", question):
        return None
    if reading.outputs and not reading.failed:
        return submit(
            "(f'There are **{len(files)}** files:' if len(files) != 1 else 'There is **1** file:') + ''.join(f\"\\n- {f['name']} — {show(f['bytes'])} bytes, {f['media_type']}\" + (f\", {show(f['lines'])} lines\" if f['lines'] is not None else '') + f\" ({f['source']})\" for f in files) if files else 'There are no files: attach one with /attach.'"
        )
    return Plan(
        "List the files that are there.",
        f"{SHOW.strip(chr(10))}\n\nfor file in files:\n    print(file['path'], file['bytes'], file['lines'])\nif not files:\n    print('no files')",
    )


def compare_plan(reading: Reading, files: Sequence[File]) -> Plan | None:
    """The plan for comparing two files."""
    question = plain(reading.question)
    if not re.search(r"\b(?:compare|difference|differ|identical|the same\b(?! file)|equal|diff|in common)\b", question):
        return None
    pair = files if len(files) >= 2 else [file for file in reading.files if file.source == "attachment"][-2:]
    if len(pair) < 2:
        return None
    first, second = pair[0], pair[1]
    if reading.outputs and not reading.failed:
        return submit(
            f"f'{first.name} and {second.name} are identical.' if same else f'{first.name} has {{len(a)}} lines, {second.name} {{len(b)}}; **{{len(changes)}}** lines differ (- only in the first, + only in the second), {{len(common)}} different lines are in both.' + ''.join(f'\\n    {{line}}' for line in changes[:30])"
        )
    code = joined(
        READ_TEXT,
        f"""
import difflib
first, second = {first.path!r}, {second.path!r}
same = open(first, "rb").read() == open(second, "rb").read()
a, b = (read_text(path) or "" for path in (first, second))
a, b = a.splitlines(), b.splitlines()
changes = [line for line in difflib.unified_diff(a, b, lineterm="", n=0) if line[:1] in "+-" and line[:3] not in ("+++", "---")]
common = set(a) & set(b)
print("identical:", same, "· differing lines:", len(changes), "· lines in both:", len(common))
""",
    )
    return Plan(f"Compare {first.name} with {second.name} byte by byte and line by line.", code)


def report_plan(reading: Reading, files: Sequence[File]) -> Plan | None:
    """The plan for writing a report Artifact about files, or saving the last answer as one."""
    question = plain(reading.question)
    if not re.search(
        r"\b(?:write|create|make|generate|produce|prepare|save|export|build|give me|draft)\b.*\b(?:report|artifact|markdown|md|summary file|document|file|csv)\b",
        question,
    ):
        return None
    if not files:
        code = """
import os
os.makedirs("/workspace/reports", exist_ok=True)
path = "/workspace/reports/conversation.md"
with open(path, "w", encoding="utf-8") as out:
    out.write("# Conversation\\n\\n" + "\\n\\n".join(f"**Q:** {item['question']}\\n\\n{item['answer']}" for item in history) + "\\n")
print(publish(path, "Conversation"))
"""
        if reading.outputs and not reading.failed:
            return submit("f'The report is published: {path} ({len(history)} questions and answers).'")
        return Plan("There is no file: report the conversation.", code.strip("\n"))
    if reading.outputs and not reading.failed:
        return submit("f'The report is published as {path}: ' + '; '.join(told) + '.'")
    code = joined(
        READ_TEXT,
        f"""
import os, re
from collections import Counter
os.makedirs("/workspace/reports", exist_ok=True)
path, parts, told = "/workspace/reports/report.md", ["# Report"], []
for source in {[file.path for file in files]!r}:
    name, text = source.rpartition("/")[2], read_text(source)
    parts.append(f"\\n## {{name}}\\n\\n- size: {{os.path.getsize(source):,}} bytes")
    if text is None:
        parts.append("- not a text file")
        continue
    lines, words = text.splitlines(), text.split()
    top = Counter(word for word in words if len(word) > 4).most_common(10)
    parts += [f"- lines: {{len(lines):,}}", f"- words: {{len(words):,}}"]
    parts += ["\\nMost frequent words of more than four letters:\\n", "| word | count |", "|---|---|"]
    parts += [f"| {{word}} | {{count}} |" for word, count in top]
    parts += ["\\nBeginning:\\n", "```", *lines[:10], "```"]
    told.append(f"{{name}}: {{len(lines):,}} lines, {{len(words):,}} words")
with open(path, "w", encoding="utf-8") as out:
    out.write("\\n".join(parts) + "\\n")
print(publish(path, "Report"))
""",
    )
    return Plan("Measure the files, write a Markdown report and publish it.", code)


def summary_plan(reading: Reading, files: Sequence[File]) -> Plan | None:
    """The plan for summing a text up through llm_query."""
    question = plain(reading.question)
    if not re.search(
        r"\bsummar(?:y|i[sz]e|ies|i[sz]ing)\b|\btl;?dr\b|\bgist\b|\b(?:main|key) (?:points?|ideas?|topics?)\b|\bwhat(?:'s| is| are)\b.*\babout\b|\boverview\b",
        question,
    ):
        return None
    if not files:
        return None
    if reading.outputs and not reading.failed:
        return submit(
            "f'Extracts from {name} ({len(chunks)} of {total} parts were read, the sentences were chosen by word frequency):\\n\\n' + '\\n\\n'.join(f'- {item}' for item in extracts)"
        )
    code = joined(
        READ_TEXT,
        f"""
path = {files[0].path!r}
name = path.rpartition("/")[2]
text = read_text(path) or ""
parts = [text[i:i + 8000] for i in range(0, len(text), 8000)]
total, step = len(parts), max(1, len(parts) // 6)
chunks = parts[::step][:6]
extracts = llm_query_batched([f"Summarise this part:\\n\\n{{chunk}}" for chunk in chunks]) if chunks else []
for item in extracts:
    print(item[:300])
""",
    )
    return Plan(f"Read {files[0].name} in parts and have each summarised by a sub-call.", code)
