"""What a rule gives back: the next action, or nothing when the rule does not apply."""

import ast
from dataclasses import dataclass
from typing import Final

#: Columns of a line of code that is still read at a glance.
LINE: Final = 80
MARK: Final = "\n\n— demo model (rules, no language model)"


@dataclass(frozen=True, slots=True)
class Plan:
    """One action: why, and the Python that does it."""

    reasoning: str
    code: str


def submit(expression: str, reasoning: str = "The result is there: answer with how it was found.") -> Plan:
    """The plan that answers with a Python expression for the text; the demo model's mark is put below it."""
    first, *more = _operands(expression)
    lines = [f"answer = {_laid_out(first)}", *(f"answer += {_laid_out(operand)}" for operand in more)]
    return Plan(reasoning, "\n".join([*lines, f"SUBMIT(answer + {MARK!r})"]))


def say(text: str, reasoning: str = "No computation is needed.") -> Plan:
    """The plan that answers with a fixed text."""
    return submit(repr(text), reasoning)


def _operands(expression: str) -> list[str]:
    """The parts of a long sum of texts, so that each gets a line; a short one stays whole."""
    node = ast.parse(expression, mode="eval").body
    if len(expression) <= LINE or not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return [expression]
    return [*_operands(_source(expression, node.left)), *_operands(_source(expression, node.right))]


def _laid_out(expression: str) -> str:
    """A long `"…".join(… for …)` over several lines."""
    match ast.parse(expression, mode="eval").body:
        case ast.Call(func=func, args=[ast.GeneratorExp(elt=item, generators=loops)]) if len(expression) > LINE:
            head, each = _source(expression, func), _source(expression, item)
            loop = expression[expression.index(each) + len(each) :].strip() if len(loops) == 1 else ""
            if loop.startswith("for ") and loop.endswith(")"):
                parts = "\n    + ".join(_operands(each))
                return f"{head}(\n    {parts}\n    {loop[:-1].strip()}\n)"
    return expression


def _source(expression: str, node: ast.expr) -> str:
    found = ast.get_source_segment(expression, node)
    assert found is not None
    return found
