"""The engine behind every `dspy.LM` of a Turn: streams, can be cancelled, retries within bounds, tells what it cost.

DSPy sees an ordinary blocking call. Inside, the answer is streamed, so that a stop is noticed between pieces, drafts
can be shown, and a trickling endpoint meets the Turn's deadline.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dspy import lm15
from dspy._vendor.lm15.result import StreamAccumulator
from dspy.clients.costs import estimate_cost
from dspy.lm15 import Message, Response, Usage

from fleet_shared.domain.events import CodeDelta, DraftSnapshot, Fact, LmFinished, ReasoningDelta
from fleet_shared.domain.events import Scope as EventScope
from fleet_worker.agent.budget import Budget
from fleet_worker.agent.seams import Emit, Journal, JournalKey
from fleet_worker.agent.splitter import FieldSplitter
from fleet_worker.scope import Scope

log = logging.getLogger(__name__)

#: Tries of a call after the first, and the longest wait between two, whatever `Retry-After` says.
RETRIES: Final = 2
RETRY_WAIT_S: Final = 30.0
#: Seconds between two drafts.
DRAFT_S: Final = 0.03
_RETRIED: Final = (lm15.RateLimitError, lm15.ServerError, lm15.TimeoutError, lm15.TransportError)


@dataclass(frozen=True, slots=True)
class Route:
    """Which model is called, in which role (root, sub or child), and what a million tokens cost when it is known."""

    role: str
    model: str
    provider: str | None
    input_price: float | None = None
    output_price: float | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the Turn a call is made: the child path and a function that tells the iteration."""

    path: EventScope
    iteration: Callable[[], int]


class Engine:
    """One model's calls within one loop. Safe to call from several threads at once."""

    supports_function_calling = False
    supports_reasoning = False
    supports_response_schema = False
    supported_params = frozenset({"temperature", "max_tokens"})

    def __init__(
        self,
        inner: Any,
        *,
        route: Route,
        place: Place,
        scope: Scope,
        abort: Callable[[], None],
        emit: Emit,
        budget: Budget,
        journal: Journal,
    ) -> None:
        """`inner` is an lm15 engine (or the demo model); `abort` ends its calls under way."""
        self._inner = inner
        self._route = route
        self._place = place
        self._scope = scope
        self._abort = abort
        self._emit = emit
        self._budget = budget
        self._journal = journal

    def complete(self, request: Any) -> Any:
        """The model's answer. Raises lm15's errors, RunStopped, or RuntimeError when a budget is used up."""
        self._scope.check()
        self._budget.before_call(self._route.role, _request_characters(request))
        key = JournalKey("/".join(self._place.path), self._place.iteration(), _digest(self._route, request))
        stored = self._journal.lookup(key)
        if stored is not None:
            return self._replayed(request, stored)
        response = self._called(request)
        self._journal.record(key, _to_text(response))
        return response

    def stream(self, request: Any) -> Any:
        """The answer as events; DSPy asks for it only when it streams itself."""
        return lm15.response_to_events(self.complete(request))

    def close(self) -> None:
        """Close connections."""
        self._inner.close()

    def _called(self, request: Any) -> Any:
        attempt = 0
        while True:
            began = time.monotonic()
            draft = _Drafts(self._emit, self._place) if self._route.role in ("root", "child") else None
            try:
                response = self._streamed(request, draft)
                self._told(request, response, began)
                return response
            except lm15.LM15Error as error:
                self._scope.check()
                if draft is not None:
                    draft.discard()
                attempt += 1
                if not isinstance(error, _RETRIED) or attempt > RETRIES:
                    self._told_failure(error, began)
                    raise
                wait = getattr(error, "retry_after", None)
                pause = min(wait if wait is not None else float(2 ** (attempt - 1)), RETRY_WAIT_S)
                log.info("model.retry", extra={"model": self._route.model, "reason": type(error).__name__})
                if pause >= self._scope.remaining():
                    self._told_failure(error, began)
                    raise
                self._scope.wait(pause)

    def _streamed(self, request: Any, draft: "_Drafts | None") -> Any:
        with self._scope.on_stop(self._abort):
            self._scope.check()
            total = StreamAccumulator(request)
            for event in self._inner.stream(request):
                self._scope.check()
                total.push(event)
                if draft is not None and event.type == "delta" and event.delta.type == "text":
                    draft.show(event.delta.text)
            if draft is not None:
                draft.finish()
            return total.response()

    def _told(self, request: Any, response: Any, began: float) -> None:
        tokens_in, tokens_out, estimated = _tokens(request, response)
        cost = self._cost(response, tokens_in, tokens_out)
        self._budget.after_call(
            self._route.role, self._route.model, tokens_in, tokens_out, cost_usd=cost, estimated=estimated
        )
        self._finished(tokens_in, tokens_out, cost, began)

    def _told_failure(self, error: Exception, began: float) -> None:
        self._finished(0, 0, None, began, error=type(error).__name__)

    def _replayed(self, request: Any, stored: str) -> Any:
        response = _from_text(stored, self._route.model)
        tokens_in, tokens_out, _ = _tokens(request, response)
        self._budget.replayed(self._route.role)
        self._finished(tokens_in, tokens_out, None, time.monotonic(), replayed=True)
        return response

    def _finished(
        self,
        tokens_in: int,
        tokens_out: int,
        cost: float | None,
        began: float,
        *,
        replayed: bool = False,
        error: str | None = None,
    ) -> None:
        fact: Fact = LmFinished(
            role=self._route.role,
            model=self._route.model,
            input_tokens=tokens_in,
            output_tokens=tokens_out,
            cost_usd=cost,
            duration_ms=int((time.monotonic() - began) * 1000),
            replayed=replayed,
            error=error,
        )
        self._emit(fact, self._place.path)

    def _cost(self, response: Any, tokens_in: int, tokens_out: int) -> float | None:
        route = self._route
        if route.input_price is not None and route.output_price is not None:
            return (tokens_in * route.input_price + tokens_out * route.output_price) / 1_000_000
        if route.provider is None:
            return None
        cost, _ = estimate_cost(response, provider=route.provider, requested_model=route.model)
        return float(cost) if cost is not None else None


class _Drafts:
    """Shows what a root or child model is writing, at most every DRAFT_S."""

    def __init__(self, emit: Emit, place: Place) -> None:
        self._emit = emit
        self._place = place
        self._splitter = FieldSplitter()
        self._pending: list[tuple[str, str]] = []
        self._shown = False
        self._at = 0.0

    def show(self, text: str) -> None:
        """More text arrived."""
        self._pending += self._splitter.feed(text)
        if time.monotonic() - self._at >= DRAFT_S:
            self._flush()

    def finish(self) -> None:
        """The answer is complete."""
        self._pending += self._splitter.close()
        self._flush()

    def discard(self) -> None:
        """The call failed: what was shown is void."""
        if self._shown:
            self._emit(DraftSnapshot(self._place.iteration(), "", ""), self._place.path)

    def _flush(self) -> None:
        self._at = time.monotonic()
        pending, self._pending = self._pending, []
        for field in ("reasoning", "code"):
            text = "".join(piece for name, piece in pending if name == field)
            if text:
                self._shown = True
                kind = ReasoningDelta if field == "reasoning" else CodeDelta
                for start in range(0, len(text), 8000):
                    self._emit(kind(self._place.iteration(), text[start : start + 8000]), self._place.path)


def _request_characters(request: Any) -> int:
    return sum(len(message.text or "") for message in request.messages)


def _digest(route: Route, request: Any) -> str:
    content = [route.role, route.model, *((str(message.role), message.text or "") for message in request.messages)]
    system = getattr(request, "system", None)
    return hashlib.sha256(json.dumps([content, str(system)]).encode("utf-8", "surrogatepass")).hexdigest()


def _tokens(request: Any, response: Any) -> tuple[int, int, bool]:
    """(input, output, estimated): the endpoint's counts, else four characters a token."""
    usage = response.usage
    known_in = getattr(usage, "input_tokens", None) if usage is not None else None
    known_out = getattr(usage, "output_tokens", None) if usage is not None else None
    tokens_in = known_in if known_in is not None else _request_characters(request) // 4 + 1
    tokens_out = known_out if known_out is not None else len(response.text or "") // 4 + 1
    return int(tokens_in), int(tokens_out), known_in is None or known_out is None


def _to_text(response: Any) -> str:
    usage = response.usage
    counts = [getattr(usage, "input_tokens", None), getattr(usage, "output_tokens", None)] if usage else [None, None]
    return json.dumps({"text": response.text or "", "tokens": counts, "finish": str(response.finish_reason)})


def _from_text(stored: str, model: str) -> Any:
    kept = json.loads(stored)
    tokens_in, tokens_out = kept["tokens"]
    return Response(
        id=None,
        model=model,
        message=Message.assistant(kept["text"]),
        finish_reason=kept["finish"],
        usage=Usage(input_tokens=tokens_in, output_tokens=tokens_out),
    )
