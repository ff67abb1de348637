"""What the SDK's errors mean (facts measured with SDK 0.226.1; its classes and status codes have holes)."""

from daytona.common.errors import DaytonaAuthenticationError, DaytonaError, DaytonaForbiddenError, DaytonaRateLimitError

from fleet_shared.domain.errors import RunFailure, SandboxQuota, SandboxUnavailable

#: The longest wait that a rate limit may ask for.
RETRY_AFTER_MAX_S = 30.0


class TryAgain(Exception):
    """What was asked for may work when it is tried again after `after_s` seconds; `failure` is told at the end."""

    def __init__(self, failure: RunFailure, after_s: float) -> None:
        super().__init__(failure.detail)
        self.failure = failure
        self.after_s = after_s


def control_failure(error: DaytonaError) -> TryAgain | RunFailure:
    """What a failed call of the control plane means."""
    status, text = getattr(error, "status_code", None), told(error)
    if isinstance(error, DaytonaAuthenticationError | DaytonaForbiddenError) or status in (401, 403):
        return SandboxUnavailable("The sandbox provider refuses the API key; check DAYTONA_API_KEY.")
    if isinstance(error, DaytonaRateLimitError) or status == 429:
        return TryAgain(SandboxUnavailable("The sandbox provider limits the rate of requests."), _retry_after_s(error))
    if status == 400 and "limit exceeded" in text.lower():
        return TryAgain(SandboxQuota(f"The sandbox provider's quota is used up: {text}."), 1.0)
    # A refused connection has no status, and neither has a start that failed or took too long.
    if status is None or status in (408, 409) or status >= 500:
        return TryAgain(SandboxUnavailable(f"The sandbox provider has trouble: {text}."), 0.3)
    return SandboxUnavailable(f"The sandbox provider refuses: {text}.")


def told(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200].rstrip(".")


def _retry_after_s(error: DaytonaError) -> float:
    """The wait a rate limit asks for: its header carries the limiter's name behind `Retry-After`."""
    for name, value in (getattr(error, "headers", None) or {}).items():
        if str(name).lower().startswith("retry-after"):
            try:
                return min(max(0.0, float(value)), RETRY_AFTER_MAX_S)
            except (TypeError, ValueError):
                break
    return 2.0
