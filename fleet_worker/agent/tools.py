"""The functions the model may call besides DSPy's own llm_query: each counted, each failing with what to do."""

import threading
from collections.abc import Callable
from typing import Any

from fleet_worker.agent.budget import Budget
from fleet_worker.agent.seams import Publication, Publish

TITLE_LIMIT = 255


class Tools:
    """The host tools of one Turn and what they collected."""

    def __init__(self, budget: Budget, publish: Publish) -> None:
        self._budget = budget
        self._publish = publish
        self._lock = threading.Lock()
        self._publications: dict[str, Publication] = {}

    @property
    def publications(self) -> tuple[Publication, ...]:
        """What was published, in order; the same path counts once, with its last content."""
        with self._lock:
            return tuple(self._publications.values())

    def functions(self) -> list[Callable[..., Any]]:
        """The tools as DSPy takes them: their names, signatures and docstrings are shown to the model."""

        def publish(path: str, title: str = "") -> str:
            """Give the person a file of /workspace as an Artifact, with the content it has now."""
            self._budget.tool_call()
            if len(title) > TITLE_LIMIT:
                raise ValueError(f"the title is longer than {TITLE_LIMIT} characters")
            published = self._publish(path, title)
            with self._lock:
                self._publications.pop(published.path, None)
                self._publications[published.path] = published
            return f"published {published.path} ({published.bytes} bytes)"

        return [publish]
