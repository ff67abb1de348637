"""The slash commands: one table for dispatch, help and completion."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its name, what it takes, what it does."""

    name: str
    usage: str
    help: str


COMMANDS: Final = (
    Command("attach", "PATH… | list | clear", "attach files to the next question"),
    Command("sessions", "[NUMBER]", "list Sessions, or go to one"),
    Command("new", "[TITLE]", "begin a new Session"),
    Command("files", "", "list the files of the Workspace"),
    Command("artifacts", "", "list the Artifacts of this Session"),
    Command("get", "ID|NUMBER [FILE]", "save an Artifact"),
    Command("cancel", "", "cancel the running question"),
    Command("retry", "", "ask the last question again"),
    Command("help", "", "this list"),
    Command("exit", "", "leave; a running question goes on"),
)
_ALIASES: Final = {"quit": "exit", "q": "exit", "?": "help"}


def parse(line: str) -> tuple[str, str] | None:
    """(name, arguments) of a slash command, None for a question."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, rest = line[1:].partition(" ")
    return _ALIASES.get(name.lower(), name.lower()), rest.strip()


def find(name: str) -> Command | None:
    """The command of a name, or the only one that begins with it."""
    exact = [command for command in COMMANDS if command.name == name]
    begun = [command for command in COMMANDS if command.name.startswith(name)] if name else []
    return exact[0] if exact else begun[0] if len(begun) == 1 else None


def help_lines() -> list[str]:
    """The commands and keys, for people."""
    width = max(len(f"/{command.name} {command.usage}") for command in COMMANDS)
    lines = [f"  {f'/{command.name} {command.usage}':{width}}  {command.help}" for command in COMMANDS]
    keys = "  Enter sends · Ctrl+J or Alt+Enter new line · Esc cancels · Ctrl+C clears, twice leaves · Ctrl+D leaves"
    return [*lines, keys]
