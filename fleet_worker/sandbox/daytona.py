"""The only importer of the Daytona SDK: sandboxes, files and one raw terminal stream, on one private event loop.

Vendor errors become the domain's at this door. The SDK's own time limits use signals or cannot interrupt a hung socket,
so every call has a watchdog here; credentials are passed explicitly, and a foreign `.env` in the working directory is
never consulted for them.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from daytona import (
    AsyncDaytona,
    AsyncSandbox,
    CreateSandboxFromSnapshotParams,
    DaytonaConfig,
    FileDownloadRequest,
    FileUpload,
    ListSandboxesQuery,
)
from daytona.common.errors import (
    DaytonaAuthenticationError,
    DaytonaConflictError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaRateLimitError,
)
from daytona_toolbox_api_client_async import PtyCreateRequest

from fleet_shared.domain.errors import RunFailure, SandboxLost, SandboxQuota, SandboxUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds for one control-plane call, one transfer, and one attachment of the terminal.
CALL_S: Final = 30.0
TRANSFER_S: Final = 600.0
ATTACH_S: Final = 15.0
#: Bytes of one frame to the terminal; the daemon closes the stream above 64 KiB.
FRAME_BYTES: Final = 32 * 1024
_GONE_STATES: Final = frozenset({"destroyed", "destroying", "error", "build_failed", "archived", "archiving"})


@dataclass(frozen=True, slots=True)
class Account:
    """Where Daytona is and who we are."""

    api_key: str = field(repr=False)
    api_url: str | None = None
    target: str | None = None
    organization_id: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """How a sandbox is created. Intervals are minutes; `network` is none, allowlist or full."""

    name: str
    labels: Mapping[str, str]
    auto_stop_min: int
    auto_delete_min: int
    snapshot: str | None = None
    network: str = "none"
    allowlist: str = ""


@dataclass(frozen=True, slots=True)
class KnownSandbox:
    """A sandbox as the provider lists it."""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]


class Loop:
    """One event loop on one thread for the whole process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="daytona-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """The result of a coroutine; cancelled, with TimeoutError, when it takes longer."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout=timeout_s)
        except FutureTimeout:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Run a callback on the loop's thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def stop(self) -> None:
        """End the loop."""
        self.call_soon(self._loop.stop)
        self._thread.join(timeout=2)


class Daytona:
    """A client for one organisation. Safe to share between threads."""

    def __init__(self, account: Account) -> None:
        self._loop = Loop()
        self._account = account
        self._client: AsyncDaytona | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close connections and end the loop."""
        if self._client is not None:
            with contextlib.suppress(TimeoutError, DaytonaError):
                self._loop.run(self._client.close(), timeout_s=5)  # type: ignore[no-untyped-call]
        self._loop.stop()

    def create(self, spec: SandboxSpec, *, timeout_s: float) -> "Machine":
        """A started sandbox. Its name makes this idempotent: one that exists already is taken over.

        Raises SandboxQuota, SandboxUnavailable.
        """
        deadline = time.monotonic() + timeout_s
        delay = 0.5
        while True:
            try:
                sandbox = self._run(self._create(spec, deadline), max(1.0, deadline - time.monotonic()))
                return Machine(self, sandbox)
            except _Again as again:
                pause = min(max(again.after_s, delay), max(0.0, deadline - time.monotonic()))
                if time.monotonic() + pause >= deadline:
                    raise again.failure from again
                time.sleep(pause)
                delay = min(delay * 2, 8.0)

    def find(self, name_or_id: str) -> "Machine | None":
        """A sandbox that can be used, started when it was stopped; None when there is none."""
        try:
            sandbox = self._run(self._find(name_or_id), CALL_S * 2)
        except RunFailure as failure:
            log.info("sandbox.not_found", extra={"sandbox": name_or_id, "reason": failure.detail})
            return None
        return Machine(self, sandbox) if sandbox is not None else None

    def delete(self, name_or_id: str) -> bool:
        """Delete a sandbox; True when it is gone, False when it has to be tried again later."""
        try:
            return self._run(self._delete(name_or_id), CALL_S)
        except RunFailure as failure:
            log.warning("sandbox.not_deleted", extra={"sandbox": name_or_id, "reason": failure.detail})
            return False

    def labelled(self, labels: Mapping[str, str]) -> Sequence[KnownSandbox]:
        """Every sandbox with these labels; may lag behind. Raises SandboxUnavailable."""
        return self._run(self._labelled(labels), CALL_S)

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        try:
            return self._loop.run(work, timeout_s=timeout_s)
        except TimeoutError as error:
            raise SandboxUnavailable("The sandbox provider does not answer.") from error

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

    async def _create(self, spec: SandboxSpec, deadline: float) -> AsyncSandbox:
        params = CreateSandboxFromSnapshotParams(
            name=spec.name,
            snapshot=spec.snapshot,
            labels=dict(spec.labels),
            auto_stop_interval=spec.auto_stop_min,
            auto_delete_interval=spec.auto_delete_min,
            network_block_all=True if spec.network == "none" else None,
            network_allow_list=spec.allowlist if spec.network == "allowlist" else None,
        )
        client = self._connected()
        try:
            return await client.create(params, timeout=max(1.0, deadline - time.monotonic()))
        except DaytonaConflictError as error:
            found = await self._find(spec.name)
            if found is None:
                raise _Again(SandboxUnavailable("The sandbox provider is still busy."), 1.0) from error
            return found
        except DaytonaError as error:
            raise _create_failure(error) from error

    async def _find(self, name_or_id: str) -> AsyncSandbox | None:
        client = self._connected()
        try:
            sandbox = await client.get(name_or_id, request_timeout=CALL_S)
            if str(getattr(sandbox.state, "value", sandbox.state)) in ("stopped", "stopping"):
                await sandbox.start(timeout=CALL_S)
        except DaytonaNotFoundError:
            return None
        except DaytonaError as error:
            raise SandboxUnavailable(f"The sandbox cannot be used: {_told(error)}.") from error
        state = str(getattr(sandbox.state, "value", sandbox.state))
        if state in _GONE_STATES:
            return None
        if state != "started":
            await sandbox.wait_for_sandbox_start(timeout=CALL_S)
        return sandbox

    async def _delete(self, name_or_id: str) -> bool:
        client = self._connected()
        try:
            sandbox = await client.get(name_or_id, request_timeout=CALL_S)
            await sandbox.delete(timeout=CALL_S)
        except DaytonaNotFoundError:
            return True
        except DaytonaError as error:
            raise SandboxUnavailable(_told(error)) from error
        return True

    async def _labelled(self, labels: Mapping[str, str]) -> list[KnownSandbox]:
        client = self._connected()
        try:
            found = [item async for item in client.list(ListSandboxesQuery(labels=dict(labels)))]
        except DaytonaError as error:
            raise SandboxUnavailable(_told(error)) from error
        return [
            KnownSandbox(item.id, item.name, str(getattr(item.state, "value", item.state)), dict(item.labels or {}))
            for item in found
        ]


class Machine:
    """One started sandbox: its files and its terminals."""

    def __init__(self, daytona: Daytona, sandbox: AsyncSandbox) -> None:
        self._daytona = daytona
        self._sandbox = sandbox
        self.id: str = sandbox.id
        self.name: str = sandbox.name

    def upload(self, files: Mapping[str, bytes | str]) -> None:
        """Write files by absolute path in one request; a `str` source is the path of a local file.

        Raises SandboxLost.
        """
        uploads = [FileUpload(source=source, destination=path) for path, source in files.items()]
        self._run(self._sandbox.fs.upload_files(uploads, timeout=int(TRANSFER_S)), TRANSFER_S, "upload files")

    def download(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The content of files by absolute path in one request. Raises SandboxLost."""
        requests = [FileDownloadRequest(source=path) for path in paths]
        work = self._sandbox.fs.download_files(requests, timeout=int(TRANSFER_S))
        found: dict[str, bytes] = {}
        for item in self._run(work, TRANSFER_S, "download files"):
            if item.error or item.result is None:
                raise SandboxLost(f"A file could not be read from the sandbox: {item.source}.")
            found[item.source] = item.result.encode() if isinstance(item.result, str) else bytes(item.result)
        return found

    def open_terminal(
        self,
        terminal_id: str,
        *,
        create: bool,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[], None],
    ) -> "Terminal":
        """Attach to a terminal, made first with `create`. Raises SandboxLost.

        Callbacks run on the loop's thread and must not block.
        """
        terminal = Terminal(self._daytona._loop, on_lost)
        work = self._attach(terminal_id, on_data, create)
        terminal.attached(self._run(work, ATTACH_S, "open a terminal"))
        return terminal

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
        try:
            return self._daytona._loop.run(work, timeout_s=timeout_s)
        except TimeoutError as error:
            raise SandboxLost(f"The sandbox took too long to {what}.") from error
        except (DaytonaError, OSError) as error:
            raise SandboxLost(f"The sandbox could not {what}: {_told(error)}.") from error

    async def _attach(self, terminal_id: str, on_data: Callable[[bytes], None], create: bool) -> Any:
        process = self._sandbox.process
        if not create:
            return await process.connect_pty_session(terminal_id, on_data)
        try:
            return await process.create_pty_session(id=terminal_id, on_data=on_data)
        except DaytonaNotFoundError:
            # Daemons before v0.200 have no combined endpoint (measured): create, then connect.
            request = PtyCreateRequest(id=terminal_id, cols=80, rows=24)
            await process._api_client.create_pty_session(request=request)
            return await process.connect_pty_session(terminal_id, on_data)


class Terminal:
    """A byte stream over a terminal. `send` queues and returns at once; a failed write shows as a loss."""

    def __init__(self, loop: Loop, on_lost: Callable[[], None]) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._handle: Any = None
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False

    def attached(self, handle: Any) -> None:
        """Begin to write and to watch for the end."""
        self._handle = handle
        self._loop.call_soon(self._start)

    def send(self, data: bytes) -> None:
        """Queue bytes."""
        for start in range(0, len(data), FRAME_BYTES):
            self._loop.call_soon(self._outgoing.put_nowait, data[start : start + FRAME_BYTES])

    def close(self) -> None:
        """Detach; what runs on the terminal lives on."""
        self._closed = True
        self._loop.call_soon(self._outgoing.put_nowait, None)

    def _start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._wait())]

    async def _write(self) -> None:
        while True:
            data = await self._outgoing.get()
            if data is None:
                await self._handle.disconnect()
                return
            pieces = [data]
            size = len(data)
            while not self._outgoing.empty() and size < FRAME_BYTES // 2:
                following = self._outgoing.get_nowait()
                if following is None:
                    self._outgoing.put_nowait(None)
                    break
                pieces.append(following)
                size += len(following)
            try:
                await self._handle.send_input(b"".join(pieces))
            except DaytonaError:
                self._lost()
                return

    async def _wait(self) -> None:
        await self._handle.wait()
        self._lost()

    def _lost(self) -> None:
        if not self._closed:
            self._on_lost()


class _Again(Exception):
    """The creation may work when tried again after `after_s` seconds."""

    def __init__(self, failure: RunFailure, after_s: float) -> None:
        super().__init__(failure.detail)
        self.failure = failure
        self.after_s = after_s


def _create_failure(error: DaytonaError) -> Exception:
    """What a failed creation means (facts: quota comes as 400, a refused connection without a status)."""
    status = getattr(error, "status_code", None)
    text = _told(error)
    if isinstance(error, DaytonaAuthenticationError):
        return SandboxUnavailable("The sandbox provider refuses the API key; check DAYTONA_API_KEY.")
    if isinstance(error, DaytonaRateLimitError):
        headers = {str(name).lower(): value for name, value in (getattr(error, "headers", None) or {}).items()}
        after = [value for name, value in headers.items() if name.startswith("retry-after")]
        seconds = float(after[0]) if after and str(after[0]).replace(".", "", 1).isdigit() else 2.0
        return _Again(SandboxUnavailable("The sandbox provider limits the rate of creations."), min(seconds, 30.0))
    if status == 400 and "limit exceeded" in text.lower():
        return _Again(SandboxQuota(f"The sandbox provider's quota is used up: {text}."), 2.0)
    if status is None or status >= 500:
        return _Again(SandboxUnavailable(f"The sandbox provider does not answer: {text}."), 0.5)
    return SandboxUnavailable(f"The sandbox provider refused to create a sandbox: {text}.")


def _told(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:200].rstrip(".")
