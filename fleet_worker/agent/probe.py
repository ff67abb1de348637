"""One short call to the model, for `doctor --live`: does it answer, stream, keep the format, count tokens?"""

import time
from collections.abc import Mapping
from typing import Any

import dspy

from fleet_shared.domain.errors import FleetError
from fleet_shared.domain.events import Draft, Fact, LmFinished
from fleet_shared.domain.events import Scope as EventScope
from fleet_shared.settings import RlmSettings, load_models
from fleet_worker.agent.adapter import TolerantAdapter
from fleet_worker.agent.budget import Budget
from fleet_worker.agent.engine import Place
from fleet_worker.agent.failures import failure_of
from fleet_worker.agent.models import DEMO, TurnModels
from fleet_worker.agent.seams import NoJournal
from fleet_worker.scope import Scope

#: Seconds the call may take.
PROBE_S = 60.0


class ProbeFailed(FleetError):
    """The model does not answer as it should."""


def probe_model(environment: Mapping[str, str]) -> str:
    """What the configured root model did with a tiny task. Raises ProbeFailed with the cause."""
    told: list[Any] = []

    def emit(fact: Fact | Draft, scope: EventScope) -> None:
        told.append(fact)

    models = load_models(environment)
    if models.choices[models.default].endpoint.model == DEMO:
        return f"{DEMO} has no endpoint; it answers by rules"
    turn_models = TurnModels(emit=emit, budget=Budget(RlmSettings()), journal=NoJournal())
    began = time.monotonic()
    place = Place((), lambda: 1)
    lm = turn_models.make(models.choices[models.default], role="root", place=place, scope=Scope.lasting(PROBE_S))
    signature = dspy.Signature("question -> reasoning: str, code: str", "Answer with one line of Python that prints 4.")
    try:
        with dspy.context(lm=lm, adapter=TolerantAdapter(), trace=None, disable_history=True):
            answer = dspy.Predict(signature)(question="What is 2 + 2?")
    except Exception as error:  # whatever it was is the finding
        raise ProbeFailed(f"{failure_of(error).detail} ({type(error).__name__})") from error
    finally:
        turn_models.close()
    counted = next((fact for fact in told if isinstance(fact, LmFinished)), None)
    drafts = sum(isinstance(fact, Draft) for fact in told)
    tokens = f"{counted.input_tokens}+{counted.output_tokens} tokens" if counted is not None else "no token counts"
    took = time.monotonic() - began
    return f"{models.default} answered in {took:.1f} s, {drafts} drafts, {tokens}: {answer.code[:40]!r}"
