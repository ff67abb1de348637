"""Questions about tables: a first cell looks at the columns, a second computes, a third answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleet_worker.agent.demo.phrases import first_count, numbers, plain, quoted
from fleet_worker.agent.demo.plan import Plan, submit
from fleet_worker.agent.demo.reading import File, Reading
from fleet_worker.agent.demo.snippets import LOOK_AT_TABLE, NUMBER, READ_TABLE, READ_TEXT, SHOW, joined

_TABLES = (".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson")
_AGGREGATES = (
    ("median", r"\bmedian\b"),
    ("stdev", r"\b(?:standard deviation|std ?dev|stdev|std)\b"),
    ("mean", r"\b(?:average|mean|avg|on average)\b"),
    (
        "max",
        r"\b(?:max(?:imum)?|highest|largest|biggest|greatest|most expensive|best|longest|oldest|latest|newest|peak|top|the most)\b",
    ),
    ("min", r"\b(?:min(?:imum)?|lowest|smallest|least|cheapest|worst|shortest|youngest|earliest|fewest)\b"),
    ("range", r"\brange\b"),
    ("sum", r"\b(?:sum|total|totals|add(?:s|ed)? up|altogether|combined|overall|how much)\b"),
    ("distinct", r"\b(?:distinct|unique|different)\b"),
    ("count", r"\b(?:how many|count|number of)\b"),
)


@dataclass(frozen=True, slots=True)
class Table:
    """What the first cell printed of a table."""

    rows: int
    columns: dict[str, dict[str, Any]]

    @property
    def numeric(self) -> list[str]:
        """The columns that hold numbers."""
        return [name for name, look in self.columns.items() if look["numbers"]]

    @property
    def texts(self) -> list[str]:
        """The other columns."""
        return [name for name, look in self.columns.items() if not look["numbers"]]


def table_plan(reading: Reading, files: Sequence[File]) -> Plan | None:
    """The plan for a question about a table, None when it is none."""
    question = plain(reading.question)
    tables = [file for file in files if file.name.lower().endswith(_TABLES)]
    if not tables:
        return None
    if re.search(r"\b(?:lines?|words?|characters?)\b", question) and not re.search(
        r"\b(?:sum|total|average|mean|per)\b", question
    ):
        return None
    if quoted(reading.question) and re.search(r"\b(?:appear|occur|word|how (?:many times|often)|mention)", question):
        return None
    found = reading.found("TABLE ")
    if found is None:
        if reading.outputs:
            return None
        return _look(tables[0])
    table = Table(found["rows"], found["columns"])
    if any(output.startswith("RESULT") or "\nRESULT" in output for output in reading.outputs):
        return submit("result")
    return _compute(table, reading.question, question, tables[0])


def _look(file: File) -> Plan:
    code = joined(READ_TEXT, READ_TABLE, NUMBER, SHOW, f"path = {file.path!r}\n" + LOOK_AT_TABLE)
    return Plan(f"Look at the table {file.name}: its columns, types and first records.", code)


def _compute(table: Table, original: str, question: str, file: File) -> Plan | None:
    if re.search(
        r"\b(?:what|which|list|name|show|how many)\b.*\b(?:columns?|fields?|keys?|headers?)\b", question
    ) and not re.search(r"\b(?:sum|total|average|mean|max|min)\b", question):
        return _result(
            f"f'{file.name} has **{{len(columns)}}** columns: ' + ', '.join(columns) + f' ({{show(len(rows))}} records).'",
            "Name the columns.",
        )
    mentioned = _mentioned(table, question)
    condition, told = _conditions(table, original, question, mentioned)
    aggregate = _aggregate(question)
    if (
        not mentioned
        and not condition
        and not re.search(
            r"\b(?:rows?|records?|entries|items|lines|table|total|sum|average|mean|max\w*|min\w*|median|highest|lowest|most|least|how many|count)\b",
            question,
        )
    ):
        return None
    group = _group(table, question, mentioned)
    value = _value(table, question, mentioned, group, aggregate)
    chosen = f"chosen = [row for row in rows if {condition}]" if condition else "chosen = rows"
    where = f" where {told}" if told else ""
    if group is not None:
        return _grouped(group, value, aggregate, chosen, where, question, file)
    if value is None or aggregate == "count" or (aggregate == "distinct" and value is None):
        return _counted(table, question, mentioned, aggregate, chosen, where, file)
    if aggregate == "distinct":
        return _result(
            f"f'**{{show(len(kinds))}}** different values of {value}{where}: ' + ', '.join(kinds[:40])",
            f"List the different values of {value}.",
            f"{chosen}\nkinds = list(dict.fromkeys(str(row.get({value!r})) for row in chosen if row.get({value!r}) not in ('', None)))",
        )
    if value not in table.numeric:
        return _counted(table, question, mentioned, "count", chosen, where, file)
    if aggregate in ("max", "min"):
        return _extreme(value, aggregate, chosen, where, question)
    formulas = {
        "sum": ("sum(values)", "The total of"),
        "mean": ("sum(values) / len(values)", "The average of"),
        "median": ("statistics.median(values)", "The median of"),
        "stdev": ("statistics.stdev(values)", "The standard deviation (sample) of"),
        "range": ("max(values) - min(values)", "The range (highest minus lowest) of"),
    }
    if re.search(r"\b(?:sort|order|rank)(?:ed)?\b", question):
        low = re.search(r"ascend|lowest|smallest|cheapest", question)
        return _extreme(value, "min" if low else "max", chosen, where, "top 20 values")
    if aggregate is None and where:
        return _result(
            f"f'{value}{where}: ' + ', '.join(f'**{{show(item)}}**' for item in values[:50])",
            f"Read {value} of these records.",
            f"{chosen}\nvalues = numbers_of(chosen, {value!r})",
        )
    formula, words = formulas[aggregate or "sum"]
    return _result(
        f"f'{words} {value}{where} is **{{show(found)}}** (from {{show(len(values))}} records with a number).'",
        f"Compute {words.lower()} {value}.",
        f"import statistics\n{chosen}\nvalues = numbers_of(chosen, {value!r})\nfound = {formula} if values else 'unknown, there are no values'",
    )


def _counted(
    table: Table, question: str, mentioned: list[str], aggregate: str | None, chosen: str, where: str, file: File
) -> Plan:
    if aggregate == "distinct" and mentioned:
        column = mentioned[0]
        return _result(
            f"f'There are **{{show(len(kinds))}}** different values of {column}{where}: ' + ', '.join(kinds[:40])",
            f"Count the different values of {column}.",
            f"{chosen}\nkinds = list(dict.fromkeys(str(row.get({column!r})) for row in chosen if row.get({column!r}) not in ('', None)))",
        )
    if re.search(r"\b(?:list|show|which|who|what are|names?)\b", question) and where:
        shown = next((name for name in mentioned if name in table.texts and f"{name} " not in where), None)
        pick = f"str(row.get({shown!r}))" if shown else "', '.join(str(v) for v in row.values())"
        return _result(
            f"f'**{{show(len(chosen))}}** records{where}:' + ''.join(f'\\n- {{item}}' for item in items[:50])",
            "Select the records.",
            f"{chosen}\nitems = [{pick} for row in chosen]",
        )
    return _result(
        f"f'{file.name} has **{{show(len(chosen))}}** records{where}' + (f' of {{show(len(rows))}} in all.' if len(chosen) != len(rows) else '.')",
        "Count the records.",
        chosen,
    )


def _grouped(
    group: str, value: str | None, aggregate: str | None, chosen: str, where: str, question: str, file: File
) -> Plan:
    superlative = re.search(
        r"\b(?:which|what|who)\b.*\b(?:most|highest|largest|best|biggest|greatest|top|least|lowest|smallest|worst|fewest)\b",
        question,
    )
    lowest = bool(re.search(r"\b(?:least|lowest|smallest|worst|fewest)\b", question))
    inner = re.search(r"\b(average|mean|median|max(?:imum)?|min(?:imum)?)\b", question)
    kind = {"average": "mean", "mean": "mean", "median": "median", "max": "max", "min": "min"}.get(
        (inner.group(1) if inner else "").replace("imum", ""), "sum" if value else "count"
    )
    if value is None:
        kind = "count"
    formula = {
        "sum": "sum(values)",
        "count": "len(members)",
        "mean": "sum(values) / len(values) if values else 0",
        "median": "statistics.median(values) if values else 0",
        "max": "max(values, default=0)",
        "min": "min(values, default=0)",
    }[kind]
    words = {"sum": f"total {value}", "count": "records", "mean": f"average {value}", "median": f"median {value}",
             "max": f"highest {value}", "min": f"lowest {value}"}[kind]  # fmt: skip
    values = f"values = numbers_of(members, {value!r})" if value else "values = members"
    work = f"""
import statistics
from collections import defaultdict
{chosen}
groups = defaultdict(list)
for row in chosen:
    groups[str(row.get({group!r}) if row.get({group!r}) not in ("", None) else "(empty)")].append(row)
table = []
for name, members in groups.items():
    {values}
    if values:
        table.append((name, {formula}))
table.sort(key=lambda item: item[1], reverse={not lowest})
for name, value in table[:20]:
    print(name, show(value))
"""
    if superlative:
        word = "lowest" if lowest else "highest"
        text = f"f'**{{table[0][0]}}** has the {word} {words}{where}: **{{show(table[0][1])}}**.' + ''.join(f'\\n- {{name}}: {{show(value)}}' for name, value in table[:10])"
    else:
        count = first_count(re.sub(r".*\btop\b", "", question), 50) if re.search(r"\btop \w+", question) else 50
        text = f"f'{words.capitalize()} by {group}{where}:' + ''.join(f'\\n- {{name}}: **{{show(value)}}**' for name, value in table[:{count}])"
    return _result(text, f"Group by {group}: {words}.", work)


def _extreme(value: str, aggregate: str, chosen: str, where: str, question: str) -> Plan:
    top = re.search(
        r"\b(?:top|bottom|(?:highest|largest|biggest|lowest|smallest|cheapest|best|most expensive))\s+(\w+)", question
    )
    count = first_count(top.group(1), 1) if top else 1
    before = re.search(r"\b(\w+) (?:highest|largest|biggest|lowest|smallest|cheapest|best|most expensive)\b", question)
    count = max(count, first_count(before.group(1), 1) if before else 1)
    word = "highest" if aggregate == "max" else "lowest"
    work = f"""
{chosen}
valued = [(number(row.get({value!r})), row) for row in chosen if number(row.get({value!r})) is not None]
valued.sort(key=lambda pair: pair[0], reverse={aggregate == "max"})
for amount, row in valued[:{max(count, 3)}]:
    print(show(amount), row)
"""
    if count > 1:
        text = f"f'The {count} {word} values of {value}{where}:' + ''.join(f'\\n{{i}}. **{{show(amount)}}** — ' + ', '.join(f'{{k}}: {{v}}' for k, v in row.items() if k != {value!r}) for i, (amount, row) in enumerate(valued[:{count}], 1))"
    else:
        text = f"(f'The {word} {value}{where} is **{{show(valued[0][0])}}**: ' + ', '.join(f'{{k}}: {{v}}' for k, v in valued[0][1].items() if k != {value!r}) + '.') if valued else 'There is no record with a number in {value}{where}.'"
    return _result(text, f"Find the {word} {value}.", work)


def _result(text: str, reasoning: str, work: str = "") -> Plan:
    return Plan(reasoning, f"{work.strip(chr(10))}\nresult = {text}\nprint('RESULT', result)".strip("\n"))


def _mentioned(table: Table, question: str) -> list[str]:
    """The columns a question names, in the order of their mention; plural and singular are the same."""
    found: list[tuple[int, int, str]] = []
    for name in table.columns:
        words = re.sub(r"[^a-z0-9]+", " ", _spaced(name).lower()).strip()
        if not words:
            continue
        for form in {words, _singular(words), words + "s", words + "es", re.sub(r"y$", "ies", words)}:
            match = re.search(rf"(?<!\w){re.escape(form)}(?!\w)", question)
            if match:
                found.append((match.start(), -len(form), name))
                break
        else:
            parts = [part for part in words.split() if len(part) > 3]
            match = next(
                (m for part in parts if (m := re.search(rf"(?<!\w){re.escape(part)}s?(?!\w)", question))), None
            )
            if match:
                found.append((match.start() + 10_000, 0, name))
    return list(dict.fromkeys(name for _, _, name in sorted(found)))


_BEST = r"\b(?:most|highest|largest|biggest|best|greatest|top|least|lowest|smallest|worst|fewest)\b"


def _group(table: Table, question: str, mentioned: list[str]) -> str | None:
    """The column to group by, None when the question asks for no groups."""
    ranked = re.search(r"\b(?:top|sort|rank|order|best|highest|lowest)\b.*\bby ([\w ]+)", question)
    if ranked and [name for name in _mentioned(table, ranked.group(1)) if name in table.numeric]:
        return next((name for name in mentioned if name in table.texts and _repeats(table, name)), None)
    spread = r"\b(?:per|by|for each|for every|grouped by|group by|in each|of each|each|across)\s+(?:the |each |every )?([\w ]+)"
    for match in re.finditer(spread, question):
        named = [name for name in _mentioned(table, match.group(1)) if name in table.texts or len(mentioned) > 1]
        if named:
            return named[0]
    chosen = re.search(
        r"\b(?:which|what) ([\w ]+?) (?:has|have|had|is|are|was|were|sold|sells|made|earned|earns|got|spent|with|generated|brought|appears|contributed)\b",
        question,
    )
    if chosen and re.search(_BEST, question):
        named = [name for name in _mentioned(table, chosen.group(1)) if name in table.texts]
        if named and _repeats(table, named[0]):
            return named[0]
    return None


def _repeats(table: Table, column: str) -> bool:
    """Whether the values of a column repeat, so that grouping says more than the records themselves."""
    kinds = table.columns[column]["values"]
    return bool(kinds) and len(kinds) < table.rows


def _aggregate(question: str) -> str | None:
    return next((name for name, pattern in _AGGREGATES if re.search(pattern, question)), None)


def _value(table: Table, question: str, mentioned: list[str], group: str | None, aggregate: str | None) -> str | None:
    """The column whose numbers the question asks for."""
    others = [name for name in mentioned if name != group]
    if aggregate == "distinct":
        return others[0] if others else None
    numeric = [name for name in others if name in table.numeric]
    if numeric:
        return numeric[0]
    if aggregate in ("count", None) or re.search(r"\b(?:how many|number of)\b", question):
        return None
    guessed = _guessed(table, question, group)
    if guessed is not None:
        return guessed
    counting = re.compile(r"(?i)\b(?:id|year|zip|no|nr|index|number)\b")
    plausible = [name for name in table.numeric if name != group and not counting.search(_spaced(name))]
    return plausible[-1] if plausible else None


def _guessed(table: Table, question: str, group: str | None) -> str | None:
    """The column that a verb suggests: who earns means a salary, what sold means units or revenue."""
    guesses = {
        r"expensive|cheap|cost": ("price", "cost", "amount"),
        r"sold|sell|sales": ("sales", "units", "quantity", "qty", "revenue", "amount"),
        r"earn|make|paid|revenue|income|money|much": ("revenue", "amount", "total", "sales", "salary", "pay", "price"),
        r"old|young|age": ("age",),
    }
    for pattern, names in guesses.items():
        if re.search(pattern, question):
            for wanted in names:
                for name in table.numeric:
                    if wanted in name.lower() and name != group:
                        return name
    return None


def _conditions(table: Table, original: str, question: str, mentioned: list[str]) -> tuple[str, str]:
    """The filter of a question as a Python expression over `row`, and in words; both empty when there is none."""
    tests: list[str] = []
    told: list[str] = []
    for column, look in table.columns.items():
        if look["numbers"]:
            continue
        kinds = [kind for kind in look["values"] if kind and _names(kind, original)]
        if kinds:
            tests.append(f"str(row.get({column!r})).strip() in {kinds!r}")
            told.append(f"{column} is {' or '.join(kinds)}")
    for words, sign in (
        (r"(?:greater|more|higher|larger|bigger|older) than|over|above|exceed(?:s|ing)?|>(?!=)", ">"),
        (r"(?:less|fewer|lower|smaller|younger|cheaper) than|under|below|<(?!=)", "<"),
        (r"at least|>=|no less than", ">="),
        (r"at most|<=|no more than|up to", "<="),
        (r"exactly|equals?(?: to)?|==?", "=="),
    ):
        match = re.search(rf"(?:{words})\s*[$€£]?\s*(-?\d[\d,]*(?:\.\d+)?)", question)
        if match is None:
            continue
        amount = numbers(match.group(1))[0]
        before = [name for name in _mentioned(table, question[: match.start()]) if name in table.numeric]
        after = [name for name in _mentioned(table, question[match.end() :]) if name in table.numeric]
        column = before[-1] if before else after[0] if after else _only(table, question)
        if column:
            tests.append(f"(number(row.get({column!r})) is not None and number(row.get({column!r})) {sign} {amount:g})")
            told.append(f"{column} {sign} {amount:g}")
    for year in re.findall(r"\b(?:in|during|for|of) ((?:19|20)\d\d)\b", question):
        dated = [name for name in table.columns if re.search(r"(?i)date|year|day|time|created|when", name)]
        if dated and not tests:
            tests.append(f"str(row.get({dated[0]!r})).find({year!r}) >= 0")
            told.append(f"{dated[0]} has {year}")
    return " and ".join(tests), " and ".join(told)


def _only(table: Table, question: str) -> str:
    """The column a comparison means when it names none."""
    return _guessed(table, question, None) or (table.numeric[0] if len(table.numeric) == 1 else "")


def _names(kind: str, original: str) -> bool:
    """Whether the question names a value: as a word, in any case unless it is very short."""
    if len(kind) < 2 or kind.lower() in (
        "the",
        "in",
        "of",
        "is",
        "no",
        "all",
        "total",
        "and",
        "or",
        "a",
        "to",
        "by",
        "on",
        "it",
    ):
        return kind in quoted(original)
    flags = re.IGNORECASE if len(kind) > 2 else 0
    return re.search(rf"(?<!\w){re.escape(kind)}(?:s|es)?(?!\w)", original, flags) is not None


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_|-", " ", name)


def _singular(words: str) -> str:
    return re.sub(r"(?<=[^s])s$", "", re.sub(r"ies$", "y", words))
