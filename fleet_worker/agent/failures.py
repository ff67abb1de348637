"""DSPy's errors as the domain's: one text per kind, safe to show; the original goes to the log."""

import logging
from typing import Final

import dspy

from fleet_shared.domain.errors import (
    ContextOverflow,
    InternalFailure,
    ModelAuth,
    ModelInvalidRequest,
    ModelRateLimited,
    ModelUnavailable,
    NoAnswer,
    RunFailure,
)

log = logging.getLogger(__name__)

#: In this order: the first that fits counts.
_KINDS: Final[tuple[tuple[str, type[RunFailure]], ...]] = (
    ("ContextWindowExceededError", ContextOverflow),
    ("LMAuthError", ModelAuth),
    ("LMBillingError", ModelAuth),
    ("LMRateLimitError", ModelRateLimited),
    ("LMServerError", ModelUnavailable),
    ("LMTimeoutError", ModelUnavailable),
    ("LMTransportError", ModelUnavailable),
    ("LMStreamAssemblyError", ModelUnavailable),
    ("LMInvalidRequestError", ModelInvalidRequest),
    ("LMConfigurationError", ModelInvalidRequest),
    ("LMNotConfiguredError", ModelInvalidRequest),
    ("LMUnsupportedFeatureError", ModelInvalidRequest),
)


def failure_of(error: BaseException) -> RunFailure:
    """What a failed model call means for the Turn."""
    log.warning("model.failed", extra={"kind": type(error).__name__}, exc_info=error)
    names = {base.__name__ for base in type(error).__mro__}
    for name, failure in _KINDS:
        if name in names:
            return failure()
    if isinstance(error, dspy.LMError):
        return ModelUnavailable()
    return NoAnswer("The model's answers could not be read.") if "AdapterParseError" in names else InternalFailure()
