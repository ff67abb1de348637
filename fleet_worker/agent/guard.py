"""Refuses to start on another DSPy than 3.4.0, and sets what has to be set before DSPy is imported.

The loop relies on a few names that DSPy does not promise (facts, §11); they are looked up here, at start, so that a
changed installation fails with one line instead of in the middle of a Turn.
"""

import importlib
import importlib.metadata
from collections.abc import MutableMapping
from typing import Final

from fleet_shared.domain.errors import FleetError

DSPY_VERSION: Final = "3.4.0"

#: (module, dotted name) of everything private or easily changed that the agent and the interpreter touch.
TOUCH_POINTS: Final = (
    ("dspy", "RLM"),
    ("dspy", "ChatAdapter.parse"),
    ("dspy", "Predict.forward"),
    ("dspy.lm15", "RouterConfig"),
    ("dspy.clients.engines.lm15_engine", "LM15Engine.stream"),
    ("dspy._vendor.lm15.transports", "StdlibTransport._open"),
    ("dspy._vendor.lm15.result", "StreamAccumulator.push"),
    ("dspy.clients.costs", "estimate_cost"),
    ("dspy.primitives.code_interpreter", "CodeExecutionError"),
    ("dspy.primitives.repl_types", "REPLHistory.append"),
    ("dspy.utils.callback", "with_callbacks"),
    ("dspy.utils.callback", "ACTIVE_CALL_ID"),
    ("dspy.utils.exceptions", "AdapterParseError"),
)


class WrongDspy(FleetError):
    """The installed DSPy is not the one this release was built for."""


def prepare_environment(environment: MutableMapping[str, str]) -> None:
    """Set what DSPy reads at import: no price list from the internet, no cache directory anywhere."""
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"
    environment["DSPY_CACHEDIR"] = "/proc/fleet-has-no-cache"
    local = "127.0.0.1,localhost"
    for name in ("NO_PROXY", "no_proxy"):
        environment[name] = ",".join(filter(None, [environment.get(name, ""), local]))


def require_dspy() -> None:
    """Raise WrongDspy, naming what is wrong and what to do. Turns DSPy's caches off."""
    try:
        version = importlib.metadata.version("dspy")
    except importlib.metadata.PackageNotFoundError:
        raise WrongDspy(f"dspy is not installed; run: pip install dspy=={DSPY_VERSION}") from None
    if version != DSPY_VERSION:
        raise WrongDspy(f"dspy {version} is installed; run: pip install dspy=={DSPY_VERSION}")
    for module, name in TOUCH_POINTS:
        try:
            found: object = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            raise WrongDspy(f"dspy {version} lacks {module}:{name}; reinstall dspy=={DSPY_VERSION}") from None
    dspy = importlib.import_module("dspy")
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
