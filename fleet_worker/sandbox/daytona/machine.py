"""One started sandbox: its files, its terminals, and commands in a session of its own."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import aiohttp
from daytona import AsyncSandbox, FileDownloadRequest, FileUpload
from daytona.common.errors import DaytonaError
from daytona_toolbox_api_client_async import PtyCreateRequest

from fleet_shared.domain.errors import SandboxLost
from fleet_worker.sandbox.daytona.failures import told
from fleet_worker.sandbox.daytona.loops import Loop
from fleet_worker.sandbox.daytona.terminal import Frames, PtyHandle, Terminal

T = TypeVar("T")

#: Seconds for one transfer, and for one attachment of a terminal.
TRANSFER_S: Final = 600.0
ATTACH_S: Final = 15.0


class Machine:
    """A sandbox that was started. Safe to use from any thread; every method blocks its caller."""

    def __init__(self, sandbox: AsyncSandbox, calls: Loop, frames: Frames) -> None:
        self._sandbox = sandbox
        self._calls = calls
        self._frames = frames
        self.id: str = sandbox.id
        self.name: str = sandbox.name

    def upload(self, files: Mapping[str, bytes | str]) -> None:
        """Write files by absolute path in one request; a `str` source is the path of a local file.

        Raises SandboxLost.
        """
        uploads = [FileUpload(source=source, destination=path) for path, source in files.items()]
        work = self._sandbox.fs.upload_files(uploads, timeout=int(TRANSFER_S))
        self._run(self._calls, work, TRANSFER_S, "upload files")

    def download(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The content of files by absolute path in one request. Raises SandboxLost."""
        requests = [FileDownloadRequest(source=path) for path in paths]
        work = self._sandbox.fs.download_files(requests, timeout=int(TRANSFER_S))
        found: dict[str, bytes] = {}
        for item in self._run(self._calls, work, TRANSFER_S, "download files"):
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
    ) -> Terminal:
        """Attach to a terminal, made first with `create`. Raises SandboxLost.

        Callbacks run on the frames' thread and must not block.
        """
        terminal = Terminal(self._frames.loop, on_lost)
        if create:
            try:
                handle = self._open(self._frames.create(self._sandbox.process, terminal_id, on_data))
            except _NotThere:
                handle = self._create_then_connect(terminal_id, on_data)
        else:
            handle = self._open(self._frames.connect(self._sandbox.process, terminal_id, on_data))
        self._frames.loop.call_soon(terminal.attached, handle)
        return terminal

    def _create_then_connect(self, terminal_id: str, on_data: Callable[[bytes], None]) -> PtyHandle:
        process = self._sandbox.process
        request = PtyCreateRequest(id=terminal_id, cols=80, rows=24)
        self._run(self._calls, process._api_client.create_pty_session(request=request), ATTACH_S, "open a terminal")
        return self._open(self._frames.connect(process, terminal_id, on_data))

    def _open(self, work: Coroutine[Any, Any, PtyHandle]) -> PtyHandle:
        try:
            return self._run(self._frames.loop, work, ATTACH_S, "open a terminal")
        except SandboxLost as lost:
            if isinstance(lost.__cause__, aiohttp.WSServerHandshakeError) and lost.__cause__.status == 404:
                raise _NotThere(lost.detail) from lost
            raise

    def _run(self, loop: Loop, work: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
        try:
            return loop.run(work, timeout_s=timeout_s)
        except TimeoutError as error:
            raise SandboxLost(f"The sandbox took too long to {what}.") from error
        except (DaytonaError, aiohttp.ClientError, OSError) as error:
            raise SandboxLost(f"The sandbox could not {what}: {told(error)}.") from error


class _NotThere(SandboxLost):
    """The address of the terminal does not exist."""
