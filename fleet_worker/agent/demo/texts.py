"""Questions about texts: counting, finding, lines, words, hidden numbers, patterns."""

import re
from collections.abc import Sequence
from typing import Final

from fleet_worker.agent.demo.phrases import first_count, plain, quoted
from fleet_worker.agent.demo.plan import Plan, submit
from fleet_worker.agent.demo.reading import File, Reading
from fleet_worker.agent.demo.snippets import READ_TEXT, joined

_TERM_AFTER: Final = re.compile(
    r"(?:\bwords?|\bterms?|\bphrases?|\bstrings?|\bnames?|\btexts?|\bkeywords?|\btokens?|\bmention(?:s|ed|ing)?(?: of)?|"
    r"\boccurrences? of|\binstances? of|\bappearances? of|\bcount(?: of| the number of)?|\bhow often (?:does|do|is|are)|"
    r"\bhow many times (?:does|do|did|is|are|has|was|were|can i find|is there)?|\bcontain(?:s|ing)?|\binclud(?:es?|ing)|"
    r"\bsearch(?: it)? for|\blook for|\bfind|\bgrep)\s+(?:the |a |an )?(?:exact )?"
    r"(?:words?|terms?|phrases?|strings?|names?|occurrences? of|number of times)?\s*:?\s*([\w][\w'.@/+#-]*(?: [\w][\w'.@/+#-]*){0,5}?)"
    r"(?=\s+(?:appears?|occurs?|shows? up|comes? up|is|are|was|mentioned|used|found|present|in|within|inside|turns?|there|here|get|from|and)\b|\s*[?.!,]|\s*$)"
)
_STOP: Final = frozenset(
    [
        "the",
        "a",
        "an",
        "it",
        "this",
        "that",
        "these",
        "those",
        "file",
        "files",
        "text",
        "document",
        "attached",
        "attachment",
        "lines",
        "line",
        "words",
        "word",
        "any",
        "there",
        "number",
        "numbers",
        "characters",
        "times",
        "many",
        "often",
        "each",
        "all",
        "in",
        "of",
    ]
)
_UNITS: Final = frozenset(
    [
        "unique",
        "distinct",
        "different",
        "empty",
        "blank",
        "non-empty",
        "non-blank",
        "total",
        "the",
        "more",
        "fewer",
        "of",
        "other",
        "code",
    ]
)
_PATTERNS: Final = (
    (r"\be-?mails?(?: address(?:es)?)?\b", "e-mail addresses", r"[\w.+-]+@[\w-]+\.[\w.-]*\w"),
    (r"\b(?:urls?|links?|web ?(?:addresses|sites?))\b", "links", r"https?://[^\s<>()\"']+[^\s<>()\"'.,;:!?]"),
    (r"\bip(?:v4)?(?: address(?:es)?)\b|\bips\b", "IP addresses", r"\b(?:\d{1,3}\.){3}\d{1,3}\b"),
    (r"\bphone(?: numbers?)?\b", "phone numbers", r"\+?\d[\d ()/-]{6,}\d"),
    (r"\bdates?\b", "dates", r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"),
    (r"\bhashtags?\b", "hashtags", r"(?<!\w)#\w+"),
)


def text_plan(reading: Reading, files: Sequence[File]) -> Plan | None:
    """The plan for a question about texts, None when it is none."""
    question = plain(reading.question)
    for rule in (_ordinal_line, _edges, _extremes, _frequent, _digits, _following, _patterns, _lines_with, _contains,
                 _sizes, _count, _find):  # fmt: skip
        task = rule(reading.question, question)
        if task is not None:
            return _two_steps(reading, files, *task)
    return None


Task = tuple[str, str, str]


def _two_steps(reading: Reading, files: Sequence[File], reasoning: str, work: str, answer: str) -> Plan:
    """First compute and print per file, then answer from the results. `work` sets `found[name]` from `text`."""
    if reading.outputs and not reading.failed:
        return submit(f"{_NOTE} + ({answer})" if "\nnot text:" in f"\n{reading.outputs[-1]}" else answer)
    names = ", ".join(file.name for file in files)
    paths = [file.path for file in files]
    lines = work.strip("\n").split("\n")
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    work = "\n".join(line for line in lines if line not in imports)
    code = joined(
        "\n".join(imports) + "\n",
        READ_TEXT,
        f"""
found, unreadable = {{}}, []
for path in {paths!r}:
    name, text = path.rpartition("/")[2], read_text(path)
    if text is None:
        unreadable.append(name)
        continue
{_indented(work, 4)}
    print(name, "→", str(found[name])[:1500])
if unreadable:
    print("not text:", unreadable)
""",
    )
    return Plan(f"{reasoning} File: {names}.", code)


_NOTE: Final = '"".join(f"{name} is not a text file, so it was not read. " for name in unreadable)'


def _indented(code: str, by: int) -> str:
    return "\n".join(" " * by + line if line else line for line in code.strip("\n").split("\n"))


def _lines(head: str, item: str) -> str:
    """An answer with one line per file."""
    return f'{head!r} + "\\n".join({item} for name, value in found.items())'


def _count(original: str, question: str) -> Task | None:
    if not re.search(r"\bhow (?:many times|often|frequently)\b|\bcount\b|\boccurrences?\b|\bnumber of (?:times|occ|app)|"
                     r"\bhow many\b.*\b(?:mentions?|appear|occur|instances?|references?|contain|does it say)\b|\bfrequency of\b|\bhow many [a-z][\w-]* (?:are|is|do|does|occur|appear)\b|"
                     r"\bhow many\b.*[\"'`]", question):  # fmt: skip
        return None
    if not quoted(original) and re.search(r"\bhow many (?:functions?|methods|classes)\b", question):
        return _definitions(question)
    terms = _terms(original, question)
    if not terms:
        return None
    plural = not quoted(original) and not _TERM_AFTER.search(question)
    cased = (
        bool(re.search(r"case[- ]sensitive|exact case|same case|lower ?case only|upper ?case only", question))
        and "insensitive" not in question
    )
    part = bool(
        re.search(r"substring|part of (?:a |other )?words?|inside (?:other )?words|including inside|anywhere", question)
    )
    pattern = "words" if part else 'r"(?<!\\w)" + words + r"(?!\\w)"'
    if plural:
        terms, pattern = [terms[0].removesuffix("s")], 'r"(?<!\\w)" + words + r"s?(?!\\w)"'
    how = ("substring" if part else "whole word, also with an s" if plural else "whole word") + (
        ", same case" if cased else ", any case"
    )
    work = f"""
terms, flags = {terms!r}, {"0" if cased else "re.IGNORECASE"}
found[name] = {{}}
for term in terms:
    words = r"\\s+".join(re.escape(word) for word in term.split())
    pattern = {pattern}
    found[name][term] = len(re.findall(pattern, text, flags))
"""
    item = "', '.join(f'“{term}” appears **{count}** times' for term, count in value.items()) + f' in {name}'"
    answer = f"'; '.join({item} for name, value in found.items()) + ' ({how}).'"
    answer += " + (f' Together: **{sum(sum(v.values()) for v in found.values())}**.' if len(found) > 1 else '')"
    return f"Count {' and '.join(terms)} as {how}.", "import re\n" + work, answer


def _lines_with(original: str, question: str) -> Task | None:
    level = re.search(
        r"\bhow many ([\w-]+) (?:lines?|messages?|entries|events|records)\b|\b(?:how many|count(?: all)?(?: the)?|number of) ((?:error|warning|warn|info|debug|critical|fatal|exception|failure)s?)\b(?! lines? (?:contain|with))",
        question,
    )
    if level and (level.group(2) or level.group(1) not in _UNITS):
        return _level_lines((level.group(1) or level.group(2)).removesuffix("s"))
    if not re.search(r"\blines?\b", question) or not re.search(
        r"\b(?:contain|mention|includ|with|match|have|has|having|where|that say|start|begin|end)", question
    ):
        return None
    terms = quoted(original) or _bare_terms(
        question,
        r"(?:contain(?:s|ing)?|mention(?:s|ing)?|includ(?:es?|ing)|with|match(?:es|ing)?|have|has|having|say(?:s|ing)?)",
    )
    starts = re.search(r"(?:start|begin)(?:s|ning)? with\s+(.+?)[?.!]?$", question)
    ends = re.search(r"end(?:s|ing)? (?:with|in)\s+(.+?)[?.!]?$", question)
    if not terms and starts:
        terms = [starts.group(1).strip("\"'` ")]
    if not terms and ends:
        terms = [ends.group(1).strip("\"'` ")]
    if not terms:
        return None
    test = (
        "line.lower().lstrip().startswith(term.lower())"
        if starts
        else "line.lower().rstrip().endswith(term.lower())"
        if ends
        else "re.search(r'(?<!\\w)' + re.escape(term) + r'(?!\\w)', line, re.IGNORECASE)"
    )
    how = "that start with it" if starts else "that end with it" if ends else "with it as a whole word, any case"
    quantity = bool(re.search(r"how many|count|number of", question))
    work = f"""
import re
term = {terms[0]!r}
found[name] = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if {test}]
"""
    shown = "" if quantity else " + ''.join(f'\\n- line {number}: {line[:200]}' for number, line in value[:50])"
    answer = f"'\\n'.join(f'**{{len(value)}}** lines of {{name}} {how}: “{terms[0]}”.'{shown} for name, value in found.items())"
    if quantity:
        answer = f"'\\n'.join(f'**{{len(value)}}** lines of {{name}} contain “{terms[0]}” ({how}).' for name, value in found.items())"
    return f"Look at each line for {terms[0]!r}.", work, answer


def _definitions(question: str) -> Task:
    classes = "class" in question
    regex = r"^\s*class \w+" if classes else r"^\s*(?:async )?(?:def|function|func|fn) \w+"
    work = f'import re\nfound[name] = re.findall(r"{regex}", text, re.MULTILINE)'
    word = "classes" if classes else "functions"
    answer = f"""'\\n'.join(f'{{name}} defines **{{len(value)}}** {word}: ' + ', '.join(item.split()[-1] for item in value[:40]) for name, value in found.items())"""
    return f"Count the definitions of {word}.", work, answer


def _level_lines(word: str) -> Task:
    work = f"""
import re
found[name] = [line.strip() for line in text.splitlines() if re.search(r"(?<!\\w){re.escape(word)}s?(?!\\w)", line, re.IGNORECASE)]
"""
    answer = f"""'\\n'.join(f'**{{len(value)}}** lines of {{name}} contain “{word}” (whole word, any case).' + ''.join(f'\\n- {{line[:160]}}' for line in value[:5]) for name, value in found.items())"""
    return f"Count the lines with {word}.", work, answer


def _contains(original: str, question: str) -> Task | None:
    if not re.match(r"(?:does|do|is|are|can you (?:find|see)|did)\b", question) or not re.search(
        r"contain|mention|include|appear|occur|there|say|have|find|in the", question
    ):
        return None
    there = re.search(r"\b(?:is|are) there (?:a |an |any |the )?(?:word |phrase )?([\w-]+)", question)
    terms = _terms(original, question) or ([_as_written(original, there.group(1))] if there else [])
    if not terms:
        return None
    work = f"""
import re
term = {terms[0]!r}
lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if re.search(re.escape(term), line, re.IGNORECASE)]
found[name] = (len(re.findall(re.escape(term), text, re.IGNORECASE)), lines[:1])
"""
    answer = f"""'\\n'.join((f'Yes: {{name}} contains “{terms[0]}” **{{value[0]}}** times (any case, also inside words); the first is in line {{value[1][0][0]}}: {{value[1][0][1][:160]}}' if value[1] else f'Yes: {{name}} contains “{terms[0]}” across lines.' if value[0] else f'No: {{name}} does not contain “{terms[0]}” (any case).') for name, value in found.items())"""
    return f"Search for {terms[0]!r} in any case.", work, answer


def _sizes(original: str, question: str) -> Task | None:
    units: dict[str, tuple[str, str]] = {
        r"\bnon-?(?:empty|blank) lines?\b": ("non-empty lines", "sum(1 for line in text.splitlines() if line.strip())"),
        r"\b(?:empty|blank) lines?\b": ("empty lines", "sum(1 for line in text.splitlines() if not line.strip())"),
        r"\b(?:unique|distinct|different) words?\b|\bvocabulary\b": (
            "different words (any case)",
            'len(set(re.findall(r"\\w+(?:[\'’-]\\w+)*", text.lower())))',
        ),
        r"\blines?\b": ("lines", "len(text.splitlines())"),
        r"\bsentences?\b": ("sentences (ends with . ! or ?)", "len(re.findall(r'[.!?]+(?=\\s|$)', text))"),
        r"\bparagraphs?\b": ("paragraphs", "len([p for p in re.split(r'\\n\\s*\\n', text) if p.strip()])"),
        r"\b(?:characters?|chars?|letters?)\b": ("characters", "len(text)"),
        r"\bwords?\b": ("words (separated by white space)", "len(text.split())"),
    }
    if not re.search(r"\bhow (?:many|long)\b|\bcount\b|\bnumber of\b|\bword count\b|\bline count\b", question):
        return None
    if quoted(original) or re.search(r"\b(?:word|term|phrase|string)\s+(?!count|is\b|are\b|in\b|of\b)\w+", question):
        return None
    wanted = [(name, code) for pattern, (name, code) in units.items() if re.search(pattern, question)]
    if not wanted and "how long" in question:
        wanted = [units[r"\blines?\b"], units[r"\bwords?\b"]]
    if any(name.startswith(("non", "empty")) for name, _ in wanted):
        wanted = [item for item in wanted if item[0] != "lines"]
    if any(name.startswith("different") for name, _ in wanted):
        wanted = [item for item in wanted if not item[0].startswith("words")]
    if "letters" in question and "characters" not in question:
        wanted = [
            ("letters", "sum(c.isalpha() for c in text)") if name == "characters" else (name, code)
            for name, code in wanted
        ]
    if not wanted:
        return None
    values = ", ".join(f"{name!r}: {code}" for name, code in wanted)
    work = f"import re\nfound[name] = {{{values}}}"
    answer = _lines("", "f'{name} has ' + ' and '.join(f'**{count:,}** {unit}' for unit, count in value.items()) + '.'")
    return f"Count {', '.join(name for name, _ in wanted)}.", work, answer


def _edges(original: str, question: str) -> Task | None:
    match = re.search(
        r"\b(first|last|top|bottom|final|opening)\s+(\w+)?\s*(lines?|words?|sentences?|paragraphs?|characters?)\b",
        question,
    )
    if match is None or re.search(r"how many|contain|frequent|common|longest", question):
        return None
    count = first_count(match.group(2) or "", 1 if match.group(3).rstrip("s") == match.group(3) else 10)
    unit = match.group(3).rstrip("s")
    split = {
        "line": ("text.splitlines()", "\\n"),
        "word": ("text.split()", " "),
        "sentence": ("re.findall(r'[^.!?]+[.!?]+', ' '.join(text.split()))", " "),
        "paragraph": ("[p for p in re.split(r'\\n\\s*\\n', text) if p.strip()]", "\\n\\n"),
        "character": ("list(text)", ""),
    }[unit]
    head = match.group(1) in ("first", "top", "opening")
    part = f"[:{count}]" if head else f"[-{count}:]"
    where = "first" if head else "last"
    work = f'import re\nfound[name] = "{split[1]}".join({split[0]}{part})'
    plural = unit + ("s" if count != 1 else "")
    answer = f"""'\\n\\n'.join(f'The {where} {count} {plural} of {{name}}:\\n\\n```\\n{{value[:4000]}}\\n```' for name, value in found.items())"""
    return f"Take the {where} {count} {plural}.", work, answer


def _ordinal_line(original: str, question: str) -> Task | None:
    match = re.search(r"\bline (?:number |no\.? ?|#)?(\d+)\b|\b(\d+)(?:st|nd|rd|th) line\b", question)
    if match is None:
        return None
    number = int(match.group(1) or match.group(2))
    work = f"lines = text.splitlines()\nfound[name] = lines[{number - 1}] if len(lines) >= {number} else None"
    answer = f"""'\\n'.join(f'Line {number} of {{name}}:\\n\\n```\\n{{value}}\\n```' if value is not None else f'{{name}} has fewer than {number} lines.' for name, value in found.items())"""
    return f"Take line {number}.", work, answer


def _extremes(original: str, question: str) -> Task | None:
    match = re.search(r"\b(longest|shortest)\s+(line|word|sentence)", question)
    if match is None:
        return None
    which, unit = match.groups()
    pieces = {
        "line": "[line for line in text.splitlines() if line.strip()]",
        "word": 're.findall(r"[^\\W\\d_]+(?:[\'’-][^\\W\\d_]+)*", text)',
        "sentence": "[s.strip() for s in re.findall(r'[^.!?]+[.!?]+', ' '.join(text.split()))]",
    }[unit]
    chosen = "max" if which == "longest" else "min"
    work = f"import re\npieces = {pieces}\nfound[name] = {chosen}(pieces, key=len, default='')"
    if unit == "line":
        work += "\nfound[name] = (text.splitlines().index(found[name]) + 1 if found[name] else 0, found[name])"
        answer = f"""'\\n'.join(f'The {which} line of {{name}} is line **{{value[0]}}** with **{{len(value[1])}}** characters:\\n\\n```\\n{{value[1][:1500]}}\\n```' for name, value in found.items())"""
    else:
        answer = f"""'\\n'.join(f'The {which} {unit} of {{name}} is “{{value[:1500]}}” with **{{len(value)}}** characters.' for name, value in found.items())"""
    return f"Find the {which} {unit}.", work, answer


def _frequent(original: str, question: str) -> Task | None:
    if not re.search(
        r"\b(?:most (?:frequent|common|used|often)|top|frequenc(?:y|ies)|commonest|least common)\b", question
    ):
        return None
    letters = bool(re.search(r"\b(?:letters?|characters?)\b", question))
    if not letters and not re.search(r"\bwords?|terms?\b", question):
        return None
    count = first_count(
        re.sub(r"\b\d+[- ](?:letter|char)\w*", "", question),
        10 if re.search(r"words|terms|letters|characters", question) else 1,
    )
    longer = re.search(r"(?:longer than|more than|over|at least)\s+(\d+) (?:letters|characters)", question)
    least = int(longer.group(1)) + (0 if "at least" in question else 1) if longer else 1
    stop = (
        "without stop" in question
        or "excluding stop" in question
        or "ignoring stop" in question
        or "ignoring common" in question
    )
    pattern = "[^\\W\\d_]" if letters else "[^\\W\\d_]+(?:['’][^\\W\\d_]+)*"
    work = f"""
import re
from collections import Counter
words = [word for word in re.findall(r"{pattern}", text.lower()) if len(word) >= {least}]
"""
    if stop:
        work += "stop = set('the a an and or of to in is it that this for on with as are be by was at from not have has had but you your we they he she his her its our their i'.split())\nwords = [word for word in words if word not in stop]\n"
    work += f"found[name] = Counter(words).most_common({count})"
    kind = "letters" if letters else "words"
    answer = f"""'\\n'.join(f'The most frequent {kind} of {{name}} (any case{", without common words" if stop else ""}):\\n' + '\\n'.join(f'{{i}}. {{word}}: **{{n}}**' for i, (word, n) in enumerate(value, 1)) for name, value in found.items())"""
    return f"Count all {kind} in any case and take the {count} most frequent.", work, answer


def _digits(original: str, question: str) -> Task | None:
    match = re.search(r"(\w+)[- ]digit", question)
    hidden = re.search(
        r"\b(?:hidden|secret|magic|special|pass|access|only)\b.*\b(?:numbers?|codes?|keys?|passwords?|pin|passcodes?|tokens?)\b|\bneedle\b",
        question,
    )
    if match is None and hidden is None:
        return None
    if re.search(r"\bhow many\b", question) and match is None:
        return None
    size = first_count(match.group(1), 0) if match else 0
    pattern = f"(?<!\\\\d)\\\\d{{{size}}}(?!\\\\d)" if size else ""
    if size:
        work = f"import re\nhits = [(m.group(), m.start()) for m in re.finditer(r'{pattern.replace(chr(92) * 2, chr(92))}', text)]"
    else:
        work = """
import re
hits = [(m.group(1), m.start()) for m in re.finditer(
    r"(?i)(?:secret|hidden|magic|special|pass|access)[\\w -]{0,30}?(?:number|code|key|word|pin|token)?\\s*(?:is|=|:|was|equals|to)+\\s*['\\"“]?([\\w-]*\\d[\\w-]*|[A-Z][\\w-]{3,})", text)]
if not hits:
    runs = re.findall(r"(?<![\\w.,])\\d{5,}(?![\\w])", text)
    rare = [run for run in dict.fromkeys(runs) if runs.count(run) == 1]
    hits = [(run, text.index(run)) for run in (rare if len(rare) <= 20 else [])]
"""
    work += """
found[name] = [(value, text.count("\\n", 0, at) + 1, " ".join(text[max(0, at - 70):at + 70].split())) for value, at in hits]
"""
    noun = f"{size}-digit numbers" if size else "hidden values"
    answer = f"""'\\n'.join((f'{{name}}: **{{value[0][0]}}** (line {{value[0][1]}}: “…{{value[0][2]}}…”)' if len(value) == 1 else f'{{name}} has **{{len(value)}}** {noun}: ' + ', '.join(f'{{v}} (line {{line}})' for v, line, _ in value[:30]) if value else f'{{name}}: none found.') for name, value in found.items())"""
    return f"Search for {noun}.", work, answer


def _following(original: str, question: str) -> Task | None:
    match = re.search(
        r"\b(?:word|number|value|text|character)?s? ?(?:that )?(follows?|following|comes? (?:right |directly )?after|after|precedes?|before|comes? before)\s+(?:the )?(?:word |phrase |term |text )?(.+?)(?: in\b.*)?[?.!]?$",
        question,
    )
    if (
        match is None
        or not re.search(r"\b(?:what|which|find|give|show|tell)\b", question)
        or not re.search(r"\b(?:word|number|value|follow|comes|after)", question)
    ):
        return None
    terms = quoted(original)
    term = terms[0] if terms else match.group(2).strip("\"'` ")
    if len(term) > 60 or term in _STOP:
        return None
    before = match.group(1).startswith(("prece", "before", "come before", "comes before"))
    kind = "number" if re.search(r"\bnumber", question[: match.end(1)]) else "word"
    target = r"-?\d[\d.,]*" if kind == "number" else r"[\w'’-]+"
    gap = r"[^\w]*?" if kind == "word" else r"[^\d]{0,40}?"
    pattern = f'({target}){gap}" + re.escape(term) + r"' if before else f'" + re.escape(term) + r"{gap}({target})'
    work = f"""
import re
from collections import Counter
term = {term!r}
found[name] = Counter(re.findall(r"(?i){pattern}", text)).most_common(10)
"""
    side = "before" if before else "after"
    answer = f"""'\\n'.join((f'In {{name}} the {kind} {side} “{term}” is ' + ', '.join(f'**{{word}}**' + (f' ({{n}} times)' if n > 1 or len(value) > 1 else '') for word, n in value) + '.' if value else f'{{name}} has no {kind} {side} “{term}”.') for name, value in found.items())"""
    return f"Find the {kind} {side} {term!r}.", work, answer


def _patterns(original: str, question: str) -> Task | None:
    if quoted(original) or not re.search(
        r"\b(?:find|list|show|extract|what|which|how many|count|give|are there|any|all)\b", question
    ):
        return None
    chosen = next(((name, regex) for pattern, name, regex in _PATTERNS if re.search(pattern, question)), None)
    if (
        chosen is None
        and re.search(r"\b(?:all |the |which |what |every |extract |list )+(?:the )?numbers\b", question)
        and not re.search(r"primes?|fibonacci|even|odd|between|from \d|divisible|first \w+ ", question)
    ):
        chosen = ("numbers", r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?![\w])")
    if chosen is None:
        return None
    name, regex = chosen
    work = f"import re\nfound[name] = list(dict.fromkeys(m.group() for m in re.finditer(r'''{regex}''', text)))"
    answer = f"""'\\n'.join(f'{{name}} has **{{len(value)}}** different {name}' + (': ' + ', '.join(value[:60]) + (' …' if len(value) > 60 else '') if value else '') + '.' for name, value in found.items())"""
    return f"Extract {name}.", work, answer


def _find(original: str, question: str) -> Task | None:
    if not re.search(r"\b(?:find|where|search|locate|which line|what line|look for|show me|grep|on which)\b", question):
        return None
    terms = _terms(original, question)
    if not terms:
        return None
    work = f"""
import re
term = {terms[0]!r}
found[name] = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if re.search(re.escape(term), line, re.IGNORECASE)]
"""
    answer = f"""'\\n'.join((f'“{terms[0]}” is in **{{len(value)}}** lines of {{name}} (any case, also inside words):' + ''.join(f'\\n- line {{number}}: {{line[:200]}}' for number, line in value[:30])) if value else f'{{name}} has no line with “{terms[0]}” (any case).' for name, value in found.items())"""
    return f"Find the lines with {terms[0]!r}.", work, answer


def _terms(original: str, question: str) -> list[str]:
    """The terms a question asks about: quoted ones, else what follows a word such as “word” or “occurrences of”."""
    terms = quoted(original)
    if terms:
        return terms
    match = _TERM_AFTER.search(question) or re.search(
        r"\bhow many ((?!lines?\b|words?\b|characters?\b|times?\b|numbers?\b)[a-z][\w-]*)s? (?:are|is|do|does|can|in|there|occur|appear)",
        question,
    )
    if match is None:
        return []
    term = _cleaned(match.group(1))
    return [_as_written(original, term)] if term else []


def _bare_terms(question: str, verb: str) -> list[str]:
    match = re.search(
        rf"\b{verb}\s+(?:the |a |an )?(?:word |phrase |term |text |string )?([\w'.@/+#-]+(?: [\w'.@/+#-]+){{0,3}}?)(?=\s+(?:in|and|are|is|of)\b|[?.!,]|$)",
        question,
    )
    term = _cleaned(match.group(1)) if match else ""
    return [term] if term else []


def _cleaned(term: str) -> str:
    words = term.strip("\"'` .").split()
    while words and words[0] in _STOP:
        words.pop(0)
    while words and words[-1] in _STOP:
        words.pop()
    return " ".join(words)


def _as_written(original: str, term: str) -> str:
    at = original.lower().find(term)
    return original[at : at + len(term)] if at >= 0 else term
