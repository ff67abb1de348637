"""The models of one Turn: `dspy.LM` objects over our engine, made fresh and closed with it."""

import threading
from typing import Any, Final
from urllib.parse import urlsplit

import dspy
from dspy import lm15
from dspy.clients.engines.lm15_engine import LM15Engine

from fleet_shared.domain.errors import ModelInvalidRequest
from fleet_shared.settings import ModelChoice
from fleet_worker.agent.budget import Budget
from fleet_worker.agent.demo.engine import DemoEngine
from fleet_worker.agent.engine import Engine, Place, Route
from fleet_worker.agent.seams import Emit, Journal
from fleet_worker.agent.transport import AbortableTransport
from fleet_worker.scope import Scope

DEMO: Final = "demo/rules"
#: Seconds to connect, and of silence on a connection, before a call counts as failed.
CONNECT_S: Final = 10.0
READ_S: Final = 300.0


class TurnModels:
    """Makes the language models of one Turn and closes what they opened."""

    def __init__(self, *, emit: Emit, budget: Budget, journal: Journal) -> None:
        self._emit = emit
        self._budget = budget
        self._journal = journal
        self._opened: list[Any] = []
        self._lock = threading.Lock()

    def make(self, choice: ModelChoice, *, role: str, place: Place, scope: Scope) -> Any:
        """A `dspy.LM` that calls the chosen model in a role, within a scope. Raises ModelInvalidRequest."""
        inner, provider, abort = self._inner(choice)
        route = Route(role, choice.endpoint.model, provider, choice.input_price, choice.output_price)
        engine = Engine(
            inner,
            route=route,
            place=place,
            scope=scope,
            abort=abort,
            emit=self._emit,
            budget=self._budget,
            journal=self._journal,
        )
        with self._lock:
            self._opened.append(inner)
        return dspy.LM(choice.endpoint.model, engine=engine, cache=False, num_retries=0)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            opened, self._opened = self._opened, []
        for inner in opened:
            inner.close()

    def _inner(self, choice: ModelChoice) -> tuple[Any, str | None, Any]:
        endpoint = choice.endpoint
        if endpoint.model == DEMO:
            return DemoEngine(), None, lambda: None
        host = urlsplit(endpoint.api_base).hostname if endpoint.api_base else None
        transport = AbortableTransport(
            may_reach=lambda asked: host is None or asked == host,
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
        )
        try:
            # The route's own id, not the name's prefix: a base URL under another key is silently ignored (measured).
            provider = LM15Engine().resolve(endpoint.model).provider
        except (lm15.LM15Error, ValueError) as error:
            raise ModelInvalidRequest(f"The model name {endpoint.model} is not known.") from error
        config = lm15.RouterConfig(
            api_keys={provider: endpoint.api_key} if endpoint.api_key else None,
            base_urls={provider: endpoint.api_base} if endpoint.api_base else None,
            transport=transport,
        )
        return LM15Engine(config), provider, transport.abort
