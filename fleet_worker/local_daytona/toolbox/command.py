"""Runs one program in a sandbox and collects what it prints, bounded in size and time."""

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import Final

from fleet_worker.local_daytona.jail.channel import Channel, Process

OUTPUT_BYTES: Final = 64 * 1024 * 1024
"""What is kept of one program's output; the real daemon keeps all of it, which a shared machine cannot."""


class TimedOut(Exception):
    """The program was killed at its time limit; its output is lost, as with the real daemon."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended (-1: by a signal) and what it wrote on both streams, as text."""

    exit_code: int
    output: str


async def run(
    channel: Channel, *, argv: list[str] | None, text: bytes, env: dict[str, str], cwd: str, timeout_s: float | None
) -> Ran:
    """Run `argv` (None: the shell) with `text` on its standard input. Raises `TimedOut`.

    Like the real thing it waits for both the program's end and the end of its output, which a background child may
    hold open.
    """
    input_read, input_write = os.pipe()
    output_read, output_write = os.pipe()
    try:
        process = await channel.start(argv=argv, env=env, cwd=cwd, fds=(input_read, output_write, output_write))
    except BaseException:
        os.close(input_write)
        os.close(output_read)
        raise
    finally:
        os.close(input_read)
        os.close(output_write)
    feeding = asyncio.create_task(feed(input_write, text))
    collecting = asyncio.create_task(_collect(output_read))
    try:
        async with asyncio.timeout(timeout_s or None):
            status = await process.wait()
            output = await collecting
    except TimeoutError as error:
        raise TimedOut from error
    finally:
        await _give_up(process, feeding, collecting)
    return Ran(status if status >= 0 else -1, output.decode("utf-8", "replace"))


async def _give_up(process: Process, *tasks: asyncio.Task[object] | asyncio.Task[bytes] | asyncio.Task[None]) -> None:
    if not process.ended.done():
        await process.kill()
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await task


async def feed(fd: int, data: bytes) -> None:
    """Write all of `data` into a pipe and close it; a reader that went away is no error."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    view = memoryview(data)
    try:
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                ready: asyncio.Future[None] = loop.create_future()
                loop.add_writer(fd, _resolve, ready)
                try:
                    await ready
                finally:
                    loop.remove_writer(fd)
    except BrokenPipeError:
        pass
    finally:
        os.close(fd)


async def _collect(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    kept = bytearray()
    try:
        while True:
            try:
                data = os.read(fd, 1 << 18)
            except BlockingIOError:
                ready: asyncio.Future[None] = loop.create_future()
                loop.add_reader(fd, _resolve, ready)
                try:
                    await ready
                finally:
                    loop.remove_reader(fd)
                continue
            if not data:
                return bytes(kept)
            kept += data[: max(0, OUTPUT_BYTES - len(kept))]
    finally:
        os.close(fd)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
