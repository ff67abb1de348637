"""The one tree of errors. Vendor errors are wrapped into it at their door; the web maps it to HTTP, a Run stores it.

FleetError
  InvalidInput, Malformed, NotFound, Unauthorized, Forbidden     asked wrongly, never retried as it is
  Conflict > SessionBusy;  Gone;  PreconditionFailed             the state says no
  TooLarge, LimitReached                                         a bound was reached
  Unavailable                                                    database or peer away, retry later
  IllegalTransition                                              a command that the Turn's state forbids
  RunFailure > Model…, Sandbox…, BudgetExceeded, …               ends a Run; stored as the Turn's error
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar


class FleetError(Exception):
    """Something went wrong inside Fleet. `detail` is one sentence that is safe to show to the caller."""

    code: str = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str = "") -> None:
        self.detail = detail or (self.__doc__ or "").strip().splitlines()[0]
        super().__init__(self.detail)


class InvalidInput(FleetError):
    """The request is well formed but its values are not acceptable."""

    code = "invalid_request"

    def __init__(self, detail: str = "", *, errors: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(detail)
        self.errors: dict[str, list[str]] = {name: list(messages) for name, messages in (errors or {}).items()}


class Malformed(FleetError):
    """The request body is not valid JSON in UTF-8, or is nested too deeply."""

    code = "malformed"


class NotFound(FleetError):
    """There is no such thing, or it belongs to somebody else."""

    def __init__(self, kind: str = "", detail: str = "") -> None:
        """`kind` is session, turn, attachment, artifact, file, skill or memory; empty for an unknown address."""
        self.code = f"{kind}_not_found" if kind else "not_found"
        super().__init__(detail or f"There is no such {kind or 'address'}.")


class Unauthorized(FleetError):
    """A valid token is needed: send it as `Authorization: Bearer <token>`."""

    code = "unauthorized"


class Forbidden(FleetError):
    """This is not allowed."""

    code = "forbidden"


class ForbiddenOrigin(Forbidden):
    """Requests from other hosts or web pages are refused in local mode."""

    code = "forbidden_origin"


class Conflict(FleetError):
    """The request does not fit the present state."""

    def __init__(self, code: str, detail: str) -> None:
        """`code` is session_archived, idempotency_mismatch, attachment_in_use, skill_read_only or revision_conflict."""
        self.code = code
        super().__init__(detail)


class SessionBusy(Conflict):
    """Another Turn of this Session is queued or running."""

    def __init__(self, turn_id: str) -> None:
        super().__init__("session_busy", "Another Turn of this Session is queued or running; wait for it or cancel it.")
        self.turn_id = turn_id


class Gone(FleetError):
    """The events of this Turn are no longer kept."""

    code = "events_expired"


class PreconditionFailed(FleetError):
    """The file is not the version that If-Match or If-None-Match names."""

    code = "precondition_failed"


class TooLarge(FleetError):
    """The content is larger than allowed."""

    code = "payload_too_large"


class LimitReached(FleetError):
    """A limit is reached; try again later."""

    retryable = True

    def __init__(self, code: str, detail: str, *, retry_after_s: int) -> None:
        """`code` is rate_limited, too_many_streams or owner_limit."""
        self.code = code
        self.retry_after_s = retry_after_s
        super().__init__(detail)


class Unavailable(FleetError):
    """The database cannot be used right now."""

    code = "unavailable"
    retryable = True

    def __init__(self, detail: str = "", *, retry_after_s: int = 2) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(detail)


class IllegalTransition(FleetError):
    """The Turn's state does not allow this command."""


class RunFailure(FleetError):
    """The Run cannot go on. Its code becomes the Turn's `error.code`."""


class RunTimedOut(RunFailure):
    """The Turn used up its time."""

    code = "timeout"


class QueueTimedOut(RunFailure):
    """No worker took the Turn in time."""

    code = "queue_timeout"
    retryable = True


class WorkerLost(RunFailure):
    """The workers of this Turn were lost too often."""

    code = "worker_lost"
    retryable = True


class SandboxUnavailable(RunFailure):
    """No sandbox could be had."""

    code = "sandbox_unavailable"
    retryable = True


class SandboxQuota(RunFailure):
    """The sandbox provider's quota is used up."""

    code = "sandbox_quota"
    retryable = True


class SandboxLost(RunFailure):
    """The sandbox went away while the Turn was using it."""

    code = "sandbox_lost"
    retryable = True


class ModelAuth(RunFailure):
    """The model endpoint refused the credentials."""

    code = "model_auth"


class ModelRateLimited(RunFailure):
    """The model endpoint limits the rate of requests."""

    code = "model_rate_limited"
    retryable = True


class ModelUnavailable(RunFailure):
    """The model endpoint does not answer."""

    code = "model_unavailable"
    retryable = True


class ModelInvalidRequest(RunFailure):
    """The model endpoint refused the request."""

    code = "model_invalid_request"


class ContextOverflow(RunFailure):
    """The conversation no longer fits the model's context."""

    code = "context_overflow"


class BudgetExceeded(RunFailure):
    """The Turn's budget of tokens or cost is used up."""

    code = "budget_exceeded"


class NoAnswer(RunFailure):
    """The model gave no answer."""

    code = "no_answer"
    retryable = True


class StorageFull(RunFailure):
    """There is no room to store the Turn's results."""

    code = "storage_full"


class InternalFailure(RunFailure):
    """An unexpected error inside Fleet ended the Turn."""

    code = "internal"
    retryable = True
