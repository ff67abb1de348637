"""The demo model behind the ordinary `dspy.LM` path: no key, no network, no randomness, rules alone."""

from typing import Any, Final

from dspy import lm15
from dspy.lm15 import Message, Response, Usage

from fleet_worker.agent.demo.plans import action, summary, unanswered
from fleet_worker.agent.demo.reading import Reading, read

_CHARACTERS_A_TOKEN: Final = 4


class DemoEngine:
    """Answers action calls with a plan, sub-calls with an extract of the prompt. Its token counts are estimates."""

    supports_function_calling = False
    supports_reasoning = False
    supports_response_schema = False
    supported_params: frozenset[str] = frozenset()

    def complete(self, request: Any) -> Any:
        """The whole answer to a request."""
        prompt = request.messages[-1].text or ""
        text = _answer(read(prompt), prompt)
        usage = Usage(
            input_tokens=len(prompt) // _CHARACTERS_A_TOKEN + 1, output_tokens=len(text) // _CHARACTERS_A_TOKEN + 1
        )
        message = Message.assistant(text)
        return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)

    def stream(self, request: Any) -> Any:
        """The same as events."""
        return lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing is open."""


def _answer(reading: Reading | None, prompt: str) -> str:
    if reading is None:
        return summary(prompt)
    if reading.iteration is None:
        fields = {name: unanswered(reading) for name in reading.wanted}
        return "\n\n".join([*(f"[[ ## {name} ## ]]\n{text}" for name, text in fields.items()), "[[ ## completed ## ]]"])
    plan = action(reading)
    return (
        f"[[ ## reasoning ## ]]\n{plan.reasoning}\n\n[[ ## code ## ]]\n```python\n{plan.code}\n```\n\n"
        "[[ ## completed ## ]]"
    )
