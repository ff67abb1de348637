"""Questions that need no file: arithmetic, sequences, primes, dates."""

import re

from fleet_worker.agent.demo.phrases import first_count, numbers, plain
from fleet_worker.agent.demo.plan import Plan, submit
from fleet_worker.agent.demo.reading import Reading
from fleet_worker.agent.demo.snippets import SHOW

_WORDS = (
    (r"\bdivided by\b|\bover\b", "/"),
    (r"\b(?:times|multiplied by)\b", "*"),
    (r"\bplus\b|\badded to\b", "+"),
    (r"\bminus\b", "-"),
    (r"\bto the power(?: of)?\b|\braised to(?: the power of)?\b|\^", "**"),
    (r"\bsquared\b", "**2"),
    (r"\bcubed\b", "**3"),
    (r"\bmod(?:ulo)?\b", "%"),
    (r"[×x](?=\s*\d)(?<=\s)|×", "*"),
    (r"÷", "/"),
)


def calculation_plan(reading: Reading) -> Plan | None:
    """The plan for a calculation, None when the question is none."""
    question = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain(reading.question)).rstrip("?.! ")
    task = _sequence(question) or _listed(question) or _special(question) or _dates(question) or _expression(question)
    if task is None:
        return None
    reasoning, code, answer = task
    if reading.outputs and not reading.failed:
        return submit(answer)
    return Plan(reasoning, f"{SHOW.strip(chr(10))}\n\n{code}\nprint(result)")


Task = tuple[str, str, str]


def _expression(question: str) -> Task | None:
    percent = re.search(r"(-?\d+(?:\.\d+)?)\s*(?:%|percent) (?:of|from) \$?(-?\d+(?:\.\d+)?)", question)
    if percent:
        share, whole = percent.groups()
        return (
            f"{share} % of {whole}.",
            f"result = {whole} * {share} / 100",
            f"f'{share} % of {whole} is **{{show(result)}}**.'",
        )
    what = re.search(r"(-?\d+(?:\.\d+)?) is what (?:percent|percentage|%) of (-?\d+(?:\.\d+)?)", question) or re.search(
        r"what (?:percent|percentage|%) (?:of (?P<whole>-?\d+(?:\.\d+)?) is (?P<part>-?\d+(?:\.\d+)?)|is (?P<part2>-?\d+(?:\.\d+)?) of (?P<whole2>-?\d+(?:\.\d+)?))",
        question,
    )
    if what:
        found = numbers(what.group())
        part, whole_ = (
            (found[1], found[0]) if "whole" in what.re.groupindex and what.group("whole") else (found[0], found[1])
        )
        return (
            "A share in percent.",
            f"result = {part:g} / {whole_:g} * 100",
            f"f'{part:g} is **{{show(result)}} %** of {whole_:g}.'",
        )
    text = question
    for pattern, sign in _WORDS:
        text = re.sub(pattern, sign, text)
    match = re.search(r"[-(\d.][\d\s.+\-*/()%]*[\d)]", text)
    candidates = [
        item.strip()
        for item in re.findall(r"[-+(\d.][\d\s.+\-*/()%]*", text)
        if re.search(r"\d\s*(?:\*\*|[+\-*/%])\s*[-(]*\d", item)
    ]
    if match is None or not candidates:
        return None
    expression = max(candidates, key=len).strip(" +*/%")
    if not _is_arithmetic(expression) or re.fullmatch(r"\d{4}-\d{1,2}-\d{1,2}", expression):
        return None
    return (
        f"Compute {expression}.",
        f"result = {expression}",
        f"f'{expression.replace('**', '^')} = **{{show(result)}}**'",
    )


def _is_arithmetic(expression: str) -> bool:
    """Whether a text is one arithmetic expression, with no power that would run for ever."""
    try:
        compile(expression, "expression", "eval")
    except (SyntaxError, ValueError):
        return False
    powers = re.findall(r"\*\*\s*\(?\s*(\d+)", expression)
    return all(int(power) <= 10_000 for power in powers) and expression.count("**") <= 2


def _special(question: str) -> Task | None:
    order = re.search(r"\b(divide|subtract|multiply) (-?[\d.]+) (by|from|with) (-?[\d.]+)", question)
    if order:
        verb, first, _, second = order.groups()
        signs = {"divide": f"{first} / {second}", "subtract": f"{second} - {first}", "multiply": f"{first} * {second}"}
        return f"Compute {signs[verb]}.", f"result = {signs[verb]}", f"f'{signs[verb]} = **{{show(result)}}**'"
    root = re.search(r"\b(square|cube) root of (\d+(?:\.\d+)?)", question) or re.search(
        r"\b(sqrt)\s*\(?\s*(\d+(?:\.\d+)?)", question
    )
    if root:
        kind, value = root.groups()
        power = "1/3" if kind == "cube" else "1/2"
        code = f"import math\nresult = {'round(' + value + ' ** (1/3), 10)' if power == '1/3' else 'math.sqrt(' + value + ')'}"
        return (
            f"The root of {value}.",
            code,
            f"f'The {'cube' if kind == 'cube' else 'square'} root of {value} is **{{result:.10g}}**.'",
        )
    factorial = re.search(r"\b(\d+) ?(?:factorial\b|!(?!=))", question + " ") or re.search(
        r"\bfactorial of (\d+)", question
    )
    if factorial and int(factorial.group(1)) <= 2000:
        n = factorial.group(1)
        return f"{n} factorial.", f"import math\nresult = math.factorial({n})", f"f'{n}! = **{{result}}**'"
    prime = re.search(r"\bis (\d+) (?:a )?prime", question)
    if prime and len(prime.group(1)) <= 14:
        n = prime.group(1)
        code = f"n = {n}\nfactor = next((d for d in range(2, int(n ** 0.5) + 1) if n % d == 0), None)\nresult = n > 1 and factor is None"
        return (
            f"Look for a factor of {n}.",
            code,
            f"f'{n} is **' + ('a prime' if result else 'not a prime') + '** number' + ('.' if result or not factor else f': {{factor}} × {{n // factor}} = {n}.')",
        )
    factors = re.search(r"\b(prime )?(?:factors|factori[sz]ation|divisors) of (\d+)", question) or re.search(
        r"\b(factori[sz]e) (\d+)", question
    )
    if factors and len(factors.group(2)) <= 14:
        n = factors.group(2)
        if "divisors" in question or (
            "factors" in question and "prime" not in question and not question.startswith("factor")
        ):
            code = f"n = {n}\nsmall = [d for d in range(1, int(n ** 0.5) + 1) if n % d == 0]\nresult = sorted(set(small + [n // d for d in small]))"
            return (
                f"All divisors of {n}.",
                code,
                f"f'The divisors of {n} are ' + ', '.join(map(str, result)) + f' (**{{len(result)}}**).'",
            )
        code = f"n, result, d = {n}, [], 2\nwhile d * d <= n:\n    while n % d == 0:\n        result.append(d)\n        n //= d\n    d += 1\nif n > 1:\n    result.append(n)"
        return f"Divide {n} by primes.", code, f"f'{n} = **' + ' × '.join(map(str, result)) + '**'"
    pair = re.search(
        r"\b(gcd|greatest common divisor|lcm|least common multiple|lowest common multiple)\b.*?(\d+)\D+(\d+)", question
    )
    if pair:
        name = "lcm" if pair.group(1)[0] == "l" else "gcd"
        return (
            f"The {name} of two numbers.",
            f"import math\nresult = math.{name}({pair.group(2)}, {pair.group(3)})",
            f"f'The {name} of {pair.group(2)} and {pair.group(3)} is **{{show(result)}}**.'",
        )
    nth = re.search(r"\b(\d+)(?:st|nd|rd|th) (prime|fibonacci)", question)
    if nth:
        n, kind = int(nth.group(1)), nth.group(2)
        if n > 20_000:
            return None
        return (
            f"Count up to the {n}th {kind} number.",
            _first(kind, n) + "\nresult = result[-1]",
            f"f'The {nth.group(1)}{question[nth.end(1) : nth.end(1) + 2]} {kind} number is **{{result}}**.'",
        )
    return None


def _first(kind: str, count: int) -> str:
    if kind.startswith("prime"):
        return f"result, n = [], 2\nwhile len(result) < {count}:\n    if all(n % p for p in result if p * p <= n):\n        result.append(n)\n    n += 1"
    if kind.startswith("fib"):
        return f"result, a, b = [], 0, 1\nwhile len(result) < {count}:\n    result.append(a)\n    a, b = b, a + b"
    formulas = {
        "square": "n * n",
        "cube": "n ** 3",
        "even": "2 * n",
        "odd": "2 * n - 1",
        "triang": "n * (n + 1) // 2",
        "power": "2 ** (n - 1)",
        "natural": "n",
        "positive": "n",
        "multiple": "n",
    }
    formula = next((code for name, code in formulas.items() if kind.startswith(name)), "n")
    return f"result = [{formula} for n in range(1, {count} + 1)]"


def _sequence(question: str) -> Task | None:
    first = re.search(
        r"\bfirst (\w+) (prime|fibonacci|square|cube|even|odd|triangular|powers? of (?:2|two)|natural|positive|multiples? of \d+)",
        question,
    )
    if first:
        count = min(first_count(first.group(1), 10), 5000)
        code = _first(first.group(2), count)
        base = re.search(r"multiples? of (\d+)", question)
        if base:
            code = f"result = [{base.group(1)} * n for n in range(1, {count} + 1)]"
        name = first.group(2).rstrip("s")
        if re.search(r"\b(?:sum|total|add)\b", question):
            return (
                f"Sum the first {count} of them.",
                code + "\nitems = result\nresult = sum(items)",
                f"f'The sum of the first {count} {name} numbers is **{{show(result)}}**.'",
            )
        return f"Make the first {count}.", code, f"f'The first {count} {name} numbers: ' + ', '.join(map(str, result))"
    span = re.search(r"\b(?:between|from) (\d+) (?:and|to|through) (\d+)|\b(\d+) (?:to|through|-) (\d+)\b", question)
    below = re.search(r"\b(?:below|under|less than|smaller than|up to) (\d+)", question)
    if (span or below) and re.search(
        r"\b(?:primes?|even|odd|divisible|multiples?|squares?|numbers|integers|sum|count|sequence)\b", question
    ):
        if span:
            low, high = (int(group) for group in span.groups() if group)
        else:
            assert below is not None
            low, high = 1, int(below.group(1)) - (0 if "up to" in question else 1)
        if high - low > 5_000_000:
            return None
        tests = []
        told = []
        divisors = re.search(r"(?:divisible by|multiples? of) (\d+)(?: (and|or) (?:by )?(\d+))?", question)
        if divisors:
            joiner = divisors.group(2) or "and"
            tests.append("(" + f" {joiner} ".join(f"n % {d} == 0" for d in divisors.groups()[::2] if d) + ")")
            told.append("divisible by " + f" {joiner} ".join(d for d in divisors.groups()[::2] if d))
        if re.search(r"\bprimes?\b", question):
            tests.append("n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))")
            told.append("prime")
        for word, rest in (("even", 0), ("odd", 1)):
            if re.search(rf"\b{word}\b", question):
                tests.append(f"n % 2 == {rest}")
                told.append(word)
        if re.search(r"\b(?:perfect )?squares?\b", question):
            tests.append("int(n ** 0.5 + 0.5) ** 2 == n")
            told.append("square")
        code = (
            f"items = [n for n in range({low}, {high + 1}){' if ' + ' and '.join(tests) if tests else ''}]\nresult = "
        )
        name = (
            f"{' '.join(told)} numbers"
            if told and not told[0].startswith("div")
            else f"numbers {' and '.join(told)}".strip()
        )
        if re.search(r"\b(?:sum|total|add)\b", question):
            return (
                f"Sum the {name}.",
                code + "sum(items)",
                f"f'The sum of the {name} from {low} to {high} is **{{show(result)}}**.'",
            )
        if re.search(r"\b(?:average|mean)\b", question):
            return (
                f"Average the {name}.",
                code + "sum(items) / len(items)",
                f"f'The average of the {name} from {low} to {high} is **{{show(result)}}**.'",
            )
        if re.search(r"\b(?:how many|count|number of)\b", question):
            return (
                f"Count the {name}.",
                code + "len(items)",
                f"f'There are **{{show(result)}}** {name} from {low} to {high}.'",
            )
        return (
            f"List the {name}.",
            code + "items[:500]",
            f"f'The {name} from {low} to {high} ({{len(items)}}): ' + ', '.join(map(str, result))",
        )
    return None


def _listed(question: str) -> Task | None:
    match = re.search(
        r"\b(sum|total|average|mean|median|product|max(?:imum)?|min(?:imum)?|largest|smallest|highest|lowest|range|sort|order|add(?: up)?|multiply|standard deviation)\b",
        question,
    )
    tail = question[match.end() :] if match else ""
    found = numbers(re.sub(r"[a-z]{2,}", " ", tail)) if match else []
    if (
        match is None
        or len(found) < 2
        or re.search(r"\b(?:between|from) \d+ (?:and|to)\b|first \d+|\bcolumn|\brow|\bfile\b", question)
    ):
        return None
    word = match.group(1)
    values = ", ".join(f"{number:g}" if number != int(number) else str(int(number)) for number in found)
    formulas = {
        "sum": "sum(values)", "total": "sum(values)", "add": "sum(values)", "add up": "sum(values)",
        "average": "sum(values) / len(values)", "mean": "sum(values) / len(values)", "median": "statistics.median(values)",
        "product": "math.prod(values)", "multiply": "math.prod(values)", "maximum": "max(values)", "max": "max(values)",
        "largest": "max(values)", "highest": "max(values)", "minimum": "min(values)", "min": "min(values)",
        "smallest": "min(values)", "lowest": "min(values)", "range": "max(values) - min(values)",
        "standard deviation": "statistics.stdev(values)",
    }  # fmt: skip
    if word in ("sort", "order"):
        down = "reverse=True" if re.search(r"descend|largest first|high", question) else ""
        return (
            "Sort the numbers.",
            f"values = [{values}]\nresult = sorted(values{', ' + down if down else ''})",
            "'Sorted: ' + ', '.join(map(str, result))",
        )
    code = f"import math, statistics\nvalues = [{values}]\nresult = {formulas[word]}"
    names = {"add": "sum", "add up": "sum", "multiply": "product"}
    return (
        f"The {word} of {len(found)} numbers.",
        code,
        f"f'The {names.get(word, word)} of {values} is **{{show(result)}}**.'",
    )


def _dates(question: str) -> Task | None:
    found = re.findall(r"\b(\d{4})-(\d{1,2})-(\d{1,2})\b", question)
    if len(found) == 2 and re.search(r"\b(?:days|weeks|between|difference|until|from)\b", question):
        dates = [f"date({int(y)}, {int(m)}, {int(d)})" for y, m, d in found]
        weeks = " // 7" if "weeks" in question else ""
        unit = "whole weeks" if weeks else "days"
        code = f"from datetime import date\nresult = abs({dates[1]} - {dates[0]}).days{weeks}"
        return (
            "Subtract the dates.",
            code,
            f"f'There are **{{show(result)}}** {unit} between {'-'.join(found[0])} and {'-'.join(found[1])}.'",
        )
    if len(found) == 1 and re.search(r"\b(?:day of the week|weekday|what day|which day)\b", question):
        y, m, d = found[0]
        code = f"from datetime import date\nresult = date({int(y)}, {int(m)}, {int(d)}).strftime('%A')"
        return "Look the day up.", code, f"f'{y}-{m}-{d} is a **{{result}}**.'"
    return None
