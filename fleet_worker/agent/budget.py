"""What one Turn may use over all its loops and attempts, and what it has used."""

import threading
from dataclasses import replace

from fleet_shared.domain.turn import ModelUsage, Usage
from fleet_shared.settings import RlmSettings

#: Characters of one sub-call's prompt; longer ones are refused before they are sent.
SUB_PROMPT_LIMIT = 2_000_000


class BudgetUsedUp(RuntimeError):
    """A limit of the Turn is reached; the model sees the message and can go on with what it has."""


class Budget:
    """Counts calls, tokens, cost and children. Safe to use from any thread."""

    def __init__(self, limits: RlmSettings, used: Usage | None = None) -> None:
        """`used` is what earlier attempts of the Turn have used already."""
        self._limits = limits
        self._lock = threading.Lock()
        self._usage = used or Usage()
        self._has_cost = used is None or used.cost_usd is not None or used.lm_calls == 0
        self._cost = (used.cost_usd or 0.0) if used is not None else 0.0

    @property
    def usage(self) -> Usage:
        """What was used so far."""
        with self._lock:
            cost = self._cost if self._has_cost and self._usage.lm_calls else None
            return replace(self._usage, cost_usd=cost)

    @property
    def is_spent(self) -> bool:
        """Whether the limit of tokens or cost is reached."""
        limits, usage = self._limits, self._usage
        tokens = usage.input_tokens + usage.output_tokens
        return (0 < limits.max_tokens_total <= tokens) or (0 < limits.max_cost_usd <= self._cost)

    def before_call(self, role: str, characters: int) -> None:
        """A model is about to be called. Raises BudgetUsedUp for a sub-call that is one too many or too long."""
        if role != "sub":
            return
        if characters > SUB_PROMPT_LIMIT:
            raise BudgetUsedUp(f"the prompt has {characters} characters; at most {SUB_PROMPT_LIMIT} can be sent")
        with self._lock:
            if self._usage.sub_lm_calls >= self._limits.max_sub_lm_calls:
                raise BudgetUsedUp(f"all {self._limits.max_sub_lm_calls} llm_query calls of this Turn are used")
            self._usage = replace(self._usage, sub_lm_calls=self._usage.sub_lm_calls + 1)

    def after_call(
        self, role: str, model: str, tokens_in: int, tokens_out: int, *, cost_usd: float | None, estimated: bool
    ) -> None:
        """A model has answered."""
        with self._lock:
            known = self._usage.by_model.get(model, ModelUsage())
            model_cost = (known.cost_usd or 0.0) + cost_usd if cost_usd is not None else known.cost_usd
            counts = ModelUsage(
                known.calls + 1, known.input_tokens + tokens_in, known.output_tokens + tokens_out, model_cost
            )
            if cost_usd is None:
                self._has_cost = False
            else:
                self._cost += cost_usd
            self._usage = replace(
                self._usage,
                lm_calls=self._usage.lm_calls + 1,
                input_tokens=self._usage.input_tokens + tokens_in,
                output_tokens=self._usage.output_tokens + tokens_out,
                estimated=self._usage.estimated or estimated,
                by_model={**self._usage.by_model, model: counts},
            )

    def replayed(self, role: str) -> None:
        """An answer came from the journal; nothing was paid."""
        with self._lock:
            self._usage = replace(self._usage, replayed_calls=self._usage.replayed_calls + 1)

    def iteration(self) -> None:
        """An iteration began."""
        with self._lock:
            self._usage = replace(self._usage, iterations=self._usage.iterations + 1)

    def tool_call(self) -> None:
        """A tool is about to be called. Raises BudgetUsedUp."""
        with self._lock:
            if self._usage.tool_calls >= self._limits.max_tool_calls:
                raise BudgetUsedUp(f"all {self._limits.max_tool_calls} tool calls of this Turn are used")
            self._usage = replace(self._usage, tool_calls=self._usage.tool_calls + 1)

    def children(self, count: int) -> None:
        """`count` child RLMs are about to begin. Raises BudgetUsedUp."""
        with self._lock:
            left = self._limits.max_children - self._usage.children
            if count > left:
                raise BudgetUsedUp(f"{count} child RLMs were asked for and {left} of this Turn are left")
            self._usage = replace(self._usage, children=self._usage.children + count)
