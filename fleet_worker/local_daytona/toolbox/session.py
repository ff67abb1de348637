"""One process session of a sandbox: a long-lived shell that runs its commands one after the other, each with a log
on disk.

The log format is the daemon's: each line of a stream carries a three-byte mark of that stream.
"""

import asyncio
import contextlib
import os
import re
import shlex
import uuid
from dataclasses import dataclass
from typing import Any, Final

from fleet_worker.local_daytona.jail.channel import AgentRefused, Channel, Process
from fleet_worker.local_daytona.toolbox.command import feed

OUT_MARK: Final = b"\x01\x01\x01"
ERR_MARK: Final = b"\x02\x02\x02"
EXIT_POLL_S: Final = 0.05
SCRIPT: Final = r"""{{ D={folder}; rm -f "$D/in" "$D/out" "$D/err"; mkfifo "$D/in" "$D/out" "$D/err"
( while IFS= read -r l || [ -n "$l" ]; do printf '\001\001\001%s\n' "$l"; done < "$D/out" ) >> "$D/output.log" & o=$!
( while IFS= read -r l || [ -n "$l" ]; do printf '\002\002\002%s\n' "$l"; done < "$D/err" ) >> "$D/output.log" & e=$!
{holder} > "$D/in" & h=$!
{{ . "$D/command.sh"; }} < "$D/in" > "$D/out" 2> "$D/err"
c=$?; kill $h 2>/dev/null; wait $h 2>/dev/null; wait $o $e; echo $c > "$D/exit.tmp"; mv "$D/exit.tmp" "$D/exit_code"
rm -f "$D/in" "$D/out" "$D/err"; }}
"""


@dataclass(slots=True)
class Command:
    """A command of a session: its text, its folder in the sandbox, and its exit code once known."""

    id: str
    text: str
    folder: str
    echoes_input: bool
    exit_code: int | None = None

    def info(self) -> dict[str, Any]:
        """The API's description."""
        return {"id": self.id, "command": self.text, **({} if self.exit_code is None else {"exitCode": self.exit_code})}


class Session:
    """A running session shell."""

    def __init__(self, *, name: str, folder: str, channel: Channel, process: Process, stdin: int) -> None:
        self.name = name
        self.commands: dict[str, Command] = {}
        self._folder = folder
        self._channel = channel
        self._process = process
        self._stdin = stdin
        self._typing = asyncio.Lock()

    @classmethod
    async def open(cls, *, name: str, folder: str, channel: Channel, env: dict[str, str], cwd: str) -> "Session":
        """Start the shell of a new session."""
        await channel.request("folder", path=folder, mode="755")
        stdin_read, stdin_write = os.pipe()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            process = await channel.start(argv=None, env=env, cwd=cwd, fds=(stdin_read, nowhere, nowhere))
        except BaseException:
            os.close(stdin_write)
            raise
        finally:
            os.close(stdin_read)
            os.close(nowhere)
        return cls(name=name, folder=folder, channel=channel, process=process, stdin=stdin_write)

    async def info(self) -> dict[str, Any]:
        """The API's description, with the commands' exit codes as of now."""
        for command in self.commands.values():
            await self.refresh(command)
        return {"sessionId": self.name, "commands": [command.info() for command in self.commands.values()]}

    async def close(self) -> None:
        """End the shell, its commands, and their logs."""
        await self._process.kill()
        os.close(self._stdin)
        with contextlib.suppress(AgentRefused):
            await self._channel.request("remove", path=self._folder, recursive=True)

    def abandon(self) -> None:
        """Let go of a shell that has ended with its sandbox."""
        os.close(self._stdin)

    async def execute(self, text: str, *, runs_on: bool, echoes_input: bool) -> Command:
        """Queue one command; returns at once. Raises `BrokenPipeError` when the shell has ended."""
        number = str(uuid.uuid4())
        command = Command(number, text, f"{self._folder}/{number}", echoes_input)
        await self._channel.request("folder", path=command.folder, mode="755")
        await self._put(f"{command.folder}/command.sh", text.encode() + b"\n")
        await self._put(f"{command.folder}/output.log", b"")
        if self._process.ended.done():
            raise BrokenPipeError
        self.commands[number] = command
        holder = "while :; do sleep 3600; done" if runs_on else ":"
        script = SCRIPT.format(folder=shlex.quote(command.folder), holder=holder)
        async with self._typing:
            await feed(os.dup(self._stdin), script.encode())
        return command

    async def wait(self, command: Command) -> int:
        """The exit code of a command, when it has ended."""
        while (code := await self.refresh(command)) is None:
            await asyncio.sleep(EXIT_POLL_S)
        return code

    async def refresh(self, command: Command) -> int | None:
        """Look whether a command has ended; its exit code, or None while it runs."""
        if command.exit_code is None:
            try:
                command.exit_code = int(await self.read(f"{command.folder}/exit_code"))
            except AgentRefused:
                if self._process.ended.done():
                    command.exit_code = -1
        return command.exit_code

    async def type(self, command: Command, data: str) -> None:
        """Give a running command a line of input; waits while it does not read."""
        line = data if data.endswith("\n") else data + "\n"
        while True:
            try:
                answer = await self._channel.request("open_fifo", path=f"{command.folder}/in")
                break
            except AgentRefused:
                # Nobody reads yet: the command is about to start, or waits behind another.
                if await self.refresh(command) is not None:
                    raise
                await asyncio.sleep(EXIT_POLL_S)
        await feed(answer.fds[0], line.encode())
        if command.echoes_input:
            await self._append(f"{command.folder}/output.log", OUT_MARK + line.encode())

    async def read(self, path: str) -> bytes:
        """The whole of a file of the sandbox."""
        fd, size = await self._channel.open_file(path, write=False)
        with os.fdopen(fd, "rb") as stream:
            return stream.read(size)

    async def open_log(self, command: Command) -> int:
        """A descriptor of a command's log."""
        return (await self._channel.open_file(f"{command.folder}/output.log", write=False))[0]

    async def _put(self, path: str, data: bytes) -> None:
        fd, _ = await self._channel.open_file(path, write=True)
        with os.fdopen(fd, "wb") as stream:
            stream.write(data)

    async def _append(self, path: str, data: bytes) -> None:
        answer = await self._channel.request("open_append", path=path)
        with os.fdopen(answer.fds[0], "ab") as stream:
            stream.write(data)


def split_log(log: bytes) -> tuple[bytes, bytes]:
    """What of a log came from standard output, and what from standard error."""
    streams: dict[bytes, bytearray] = {OUT_MARK: bytearray(), ERR_MARK: bytearray()}
    current = b""
    for part in re.split(b"(\x01\x01\x01|\x02\x02\x02)", log):
        if part in streams:
            current = part
        elif current:
            streams[current] += part
    return bytes(streams[OUT_MARK]), bytes(streams[ERR_MARK])
