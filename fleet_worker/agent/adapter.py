"""Reads a model's answer tolerantly, and asks again when it cannot be read, so that one bad answer ends no Turn."""

import re
from collections.abc import Callable
from typing import Any, Final

import dspy
from dspy.utils.exceptions import AdapterParseError

_HEAD: Final = re.compile(r"^\[\[ ## (\w+) ## \]\]", re.MULTILINE)
_COMPLETED: Final = re.compile(r"\[\[ ## completed ## \]\]\s*$")
_PYTHON: Final = frozenset({"python", "py", "python3", "py3", "repl", ""})
#: What three backticks inside the code become: DSPy strips fences after us, and would cut the code there.
_BACKTICKS: Final = "\\x60\\x60\\x60"
#: Times a model is asked again for an answer that can be read.
ASK_AGAIN: Final = 2


class TolerantAdapter(dspy.ChatAdapter):
    """ChatAdapter that also reads an action given as a bare fence or JSON, and code with fences or markers inside."""

    def __init__(self) -> None:
        super().__init__(use_json_adapter_fallback=False)

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """The fields of an answer. Raises AdapterParseError."""
        if set(signature.output_fields) != {"reasoning", "code"}:
            return dict(super().parse(signature, completion))
        found = read_action(completion) or self._from_json(signature, completion)
        if found is None or not found[1].strip():
            raise AdapterParseError(
                adapter_name="TolerantAdapter", signature=signature, lm_response=completion, parsed_result={}
            )
        return {"reasoning": found[0], "code": found[1].replace("```", _BACKTICKS)}

    def _from_json(self, signature: Any, completion: str) -> tuple[str, str] | None:
        if '"code"' not in completion:
            return None
        try:
            fields = dspy.JSONAdapter().parse(signature, completion)
        except (AdapterParseError, ValueError, TypeError):
            return None
        code = fields.get("code")
        if not isinstance(code, str) or code == "None":
            return None
        return str(fields.get("reasoning") or ""), _unfenced(code.strip())


def read_action(completion: str) -> tuple[str, str] | None:
    """(reasoning, code) of an answer with markers or with a fence; None when it has neither."""
    text = completion.strip()
    heads = [match for match in _HEAD.finditer(text) if match.group(1) in ("reasoning", "code")]
    first_code = next((match for match in heads if match.group(1) == "code"), None)
    if first_code is not None:
        reasoning = _HEAD.sub("", text[: first_code.start()]).strip()
        return reasoning, _unfenced(_COMPLETED.sub("", text[first_code.end() :]).strip())
    if text.startswith("{") or "```" not in text:
        return None
    start = text.index("```")
    return _HEAD.sub("", text[:start]).strip(), _unfenced(_COMPLETED.sub("", text[start:]).strip())


def _unfenced(code: str) -> str:
    """`code` without the fence around the whole of it; a fence in another language stays, DSPy then says so."""
    if re.fullmatch(r"```[^\n]*", code):
        return ""  # cut off right behind the fence
    match = re.match(r"```[ \t]*(\w*)[^\n]*\n", code)
    if match is None or match.group(1).lower() not in _PYTHON:
        return code
    body = code[match.end() :]
    end = body.rfind("```")
    if end < 0:
        return body
    inner = body[:end]
    # Two separate fences with prose between them: the code of both, in order.
    if re.search(r"^```[ \t]*\n(?:.*\n)*?```[ \t]*python", inner, re.MULTILINE):
        blocks = re.findall(r"```[ \t]*(?:python|py)[^\n]*\n(.*?)^```", code, re.DOTALL | re.MULTILINE)
        return "\n".join(block.rstrip("\n") for block in blocks)
    return inner.rstrip("\n")


class AskingPredict(dspy.Predict):
    """The loop's action predictor: remarks in the `iteration` field, and asking again for an unreadable answer."""

    def __init__(self, signature: Any, *, note: Callable[[str], str], unreadable: Callable[[], None]) -> None:
        """`note` gives what to add for an iteration `k/N`, and may raise to end the loop."""
        super().__init__(signature)
        self._note = note
        self._unreadable = unreadable

    def forward(self, **inputs: Any) -> Any:
        """The next action; a no-op cell when the model cannot be brought to give a readable one."""
        iteration = inputs["iteration"]
        remark = self._note(iteration)
        for attempt in range(ASK_AGAIN + 1):
            asked = f"{iteration}{remark}"
            if attempt:
                asked += " (your last answer could not be read: give both sections, reasoning and code, as described)"
            try:
                return super().forward(**{**inputs, "iteration": asked})
            except AdapterParseError:
                self._unreadable()
        return dspy.Prediction(
            reasoning="(the model gave no readable answer)",
            code="print('Your last answers could not be read, so no code was run. Answer with reasoning and code.')",
        )
