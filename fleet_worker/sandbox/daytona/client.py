"""The control plane: sandboxes are made, found, listed and deleted, each call under a watchdog of ours.

A name is the key that makes creation idempotent: whatever became of an earlier request, the sandbox with that name is
the one that was wanted, or one that is in the way and is deleted.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from daytona import AsyncDaytona, AsyncSandbox, CreateSandboxFromSnapshotParams, DaytonaConfig, ListSandboxesQuery
from daytona.common.errors import DaytonaConflictError, DaytonaError, DaytonaNotFoundError

from fleet_shared.domain.errors import RunFailure, SandboxQuota, SandboxUnavailable
from fleet_worker.sandbox.daytona.failures import TryAgain, control_failure
from fleet_worker.sandbox.daytona.loops import Loop
from fleet_worker.sandbox.daytona.machine import Machine
from fleet_worker.sandbox.daytona.terminal import Frames
from fleet_worker.sandbox.daytona.values import Account, KnownSandbox, SandboxSpec

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds for one call, for the start of a stopped sandbox, and for one try to create; the server holds the reply to a
#: create for up to 30 s while the sandbox starts.
CALL_S: Final = 15.0
START_S: Final = 40.0
CREATE_TRY_S: Final = 40.0
#: Seconds within which a call that may be repeated is repeated.
PATIENCE_S: Final = 20.0
PAUSE_MAX_S: Final = 8.0
#: States of a sandbox that will not come back, or only after minutes.
_GONE: Final = frozenset({"destroyed", "destroying", "error", "build_failed", "archived", "archiving"})
_ASLEEP: Final = frozenset({"stopped", "stopping", "paused", "pausing"})
#: What makes a sandbox ours.
_OWN_LABELS: Final = ("app", "deployment")


class Daytona:
    """A client for one organisation. Safe to share between threads; every method blocks its caller."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._calls = Loop("sandbox-calls")
        self._frames = Frames()
        self._client: AsyncDaytona | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close connections and end the loops."""
        if self._client is not None:
            with contextlib.suppress(TimeoutError, OSError, DaytonaError):
                self._calls.run(self._client.close(), timeout_s=5)  # type: ignore[no-untyped-call]
        self._frames.stop()
        self._calls.stop()

    def create(self, spec: SandboxSpec, *, timeout_s: float, make_room: Callable[[], bool] = lambda: False) -> Machine:
        """A started sandbox; one of ours that has the name already is taken over.

        `make_room` is called when the quota is short and tells whether it has freed some. Raises SandboxQuota,
        SandboxUnavailable.
        """
        deadline, pause_s = time.monotonic() + timeout_s, 0.3
        while True:
            left = deadline - time.monotonic()
            try:
                return self._machine(self._run(self._created(spec, left), min(left, CREATE_TRY_S)))
            except TryAgain as again:
                failure, after_s = again.failure, max(again.after_s, pause_s)
                if isinstance(failure, SandboxQuota) and make_room():
                    after_s = 0.2
            left = deadline - time.monotonic()
            if after_s >= left:
                raise failure
            log.info("sandbox.create_again", extra={"sandbox": spec.name, "reason": failure.detail})
            time.sleep(after_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def find(self, name_or_id: str) -> Machine | None:
        """A sandbox that can be used, started when it was stopped; None when there is none any more.

        Raises SandboxUnavailable.
        """
        sandbox = self._patiently(lambda: self._usable(name_or_id), START_S)
        return self._machine(sandbox) if sandbox is not None else None

    def delete(self, name_or_id: str) -> bool:
        """Delete a sandbox; True when it is gone, False when it has to be tried again later."""
        try:
            self._run(self._deleted(name_or_id), CALL_S)
        except (TryAgain, RunFailure) as problem:
            log.warning("sandbox.not_deleted", extra={"sandbox": name_or_id, "reason": str(problem)})
            return False
        return True

    def labelled(self, labels: Mapping[str, str]) -> Sequence[KnownSandbox]:
        """Every sandbox with these labels; may lag behind. Raises SandboxUnavailable."""
        return self._patiently(lambda: self._listed(labels), CALL_S)

    def _machine(self, sandbox: AsyncSandbox) -> Machine:
        return Machine(sandbox, self._calls, self._frames)

    def _patiently(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Repeat a call that changes nothing while the provider has trouble."""
        deadline, pause_s = time.monotonic() + PATIENCE_S, 0.3
        while True:
            try:
                return self._run(work(), timeout_s)
            except TryAgain as again:
                after_s = max(again.after_s, pause_s)
                if time.monotonic() + after_s >= deadline:
                    raise again.failure from again
            time.sleep(after_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Raises TryAgain or SandboxUnavailable."""
        try:
            return self._calls.run(work, timeout_s=max(1.0, timeout_s))
        except (TimeoutError, OSError) as error:
            raise TryAgain(SandboxUnavailable("The sandbox provider does not answer."), 0.0) from error
        except DaytonaError as error:
            raise control_failure(error) from error

    def _connected(self) -> AsyncDaytona:
        with self._lock:
            if self._client is None:
                account = self._account
                config = DaytonaConfig(
                    api_key=account.api_key,
                    api_url=account.api_url,
                    target=account.target,
                    organization_id=account.organization_id,
                    otel_enabled=False,
                    use_deprecated_polling=True,
                )
                self._client = AsyncDaytona(config)
            return self._client

    async def _created(self, spec: SandboxSpec, left_s: float) -> AsyncSandbox:
        params = CreateSandboxFromSnapshotParams(
            name=spec.name,
            snapshot=spec.snapshot,
            labels=dict(spec.labels),
            auto_stop_interval=spec.auto_stop_min,
            auto_delete_interval=spec.auto_delete_min,
            network_block_all=True if spec.network == "none" else None,
            network_allow_list=spec.allowlist if spec.network == "allowlist" else None,
        )
        try:
            return await self._connected().create(params, timeout=max(1.0, left_s))
        except DaytonaConflictError as conflict:
            return await self._taken_over(spec, conflict)

    async def _taken_over(self, spec: SandboxSpec, conflict: DaytonaError) -> AsyncSandbox:
        """The sandbox that has the wanted name, once it runs."""
        sandbox = await self._get(spec.name)
        if sandbox is None:  # a lookup may be some seconds behind
            raise TryAgain(SandboxUnavailable("The sandbox provider is still busy with it."), 0.5) from conflict
        labels = dict(sandbox.labels or {})
        if any(labels.get(name) != spec.labels.get(name) for name in _OWN_LABELS):
            raise SandboxUnavailable("A sandbox of somebody else has the wanted name.")
        if _state(sandbox) in _GONE:
            await self._deleted(sandbox.id)
            raise TryAgain(SandboxUnavailable("The sandbox did not start."), 0.3) from conflict
        return await _awake(sandbox)

    async def _usable(self, name_or_id: str) -> AsyncSandbox | None:
        sandbox = await self._get(name_or_id)
        if sandbox is None or _state(sandbox) in _GONE:
            return None
        return await _awake(sandbox)

    async def _get(self, name_or_id: str) -> AsyncSandbox | None:
        try:
            return await self._connected().get(name_or_id, request_timeout=CALL_S)
        except DaytonaNotFoundError:
            return None

    async def _deleted(self, name_or_id: str) -> None:
        sandbox = await self._get(name_or_id)
        if sandbox is None or _state(sandbox) == "destroyed":
            return
        with contextlib.suppress(DaytonaNotFoundError):
            await sandbox.delete(timeout=CALL_S)

    async def _listed(self, labels: Mapping[str, str]) -> list[KnownSandbox]:
        query = ListSandboxesQuery(labels=dict(labels))
        return [
            KnownSandbox(item.id, item.name, _state(item), dict(item.labels or {}))
            async for item in self._connected().list(query, request_timeout=CALL_S)
        ]


async def _awake(sandbox: AsyncSandbox) -> AsyncSandbox:
    """The sandbox, started when it was stopped."""
    if _state(sandbox) in _ASLEEP:
        await sandbox.start(timeout=START_S)
    elif _state(sandbox) != "started":
        await sandbox.wait_for_sandbox_start(timeout=START_S)
    return sandbox


def _state(sandbox: AsyncSandbox) -> str:
    return str(getattr(sandbox.state, "value", sandbox.state))
