"""The command-line twins of the slash commands: lists and single things, as text or with `--json`."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fleet_term.client import Client
from fleet_term.errors import Exit, UsageError
from fleet_term.state import size_text
from fleet_term.view import safe

_ACTIONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "sessions": ("Sessions", ("list", "show", "new", "rename", "archive", "delete")),
    "turns": ("Turns", ("list", "show", "follow", "cancel", "feedback")),
    "files": ("files of a Session's Workspace", ("list", "get")),
    "artifacts": ("Artifacts", ("list", "get")),
    "settings": ("settings", ("list", "get", "set")),
}


def add_commands(commands: Any, server_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to an argparse parser."""
    for name, (text, actions) in _ACTIONS.items():
        command = commands.add_parser(name, help=text)
        server_options(command)
        command.add_argument("action", nargs="?", default="list", choices=actions)
        command.add_argument("id", nargs="?", help="an id; for settings a key")
        command.add_argument("value", nargs="?", help="a title, a path, a rating or a value")
        command.add_argument("-o", "--output", type=Path, help="where to save")
        command.add_argument("--force", action="store_true", help="overwrite")
        command.add_argument("--json", dest="form", action="store_const", const="json", default="text")
        command.add_argument("--jsonl", dest="form", action="store_const", const="jsonl")


def run(client: Client, chosen: argparse.Namespace) -> Exit:
    """Do what was asked for."""
    if chosen.command == "doctor":
        return _doctor(client)
    handler = _HANDLERS.get((chosen.command, chosen.action))
    if handler is None:
        raise UsageError(f"fleet-term {chosen.command} {chosen.action} is not there")
    handler(client, chosen)
    return Exit.ANSWERED


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A completion script made of the parser."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    words = {name: _words(sub) for name, sub in groups[0].choices.items()}
    top = [*words, *(option for action in parser._actions for option in action.option_strings)]
    match shell:
        case "bash":
            cases = "".join(f'    {name}) words="{" ".join(items)}" ;;\n' for name, items in words.items())
            return (
                "_fleet_term() {\n  local words\n  case ${COMP_WORDS[1]} in\n"
                f'{cases}    *) words="{" ".join(top)}" ;;\n  esac\n'
                '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))\n}\n'
                "complete -o default -F _fleet_term fleet-term\n"
            )
        case "zsh":
            cases = "".join(f"    {name}) compadd -- {' '.join(items)} ;;\n" for name, items in words.items())
            return (
                "#compdef fleet-term\n_fleet_term() {\n  if (( CURRENT == 2 )); then compadd -- "
                f"{' '.join(top)}; return; fi\n  case $words[2] in\n{cases}  esac\n  _files\n}}\n_fleet_term\n"
            )
        case _:
            lines = [f"complete -c fleet-term -n __fish_use_subcommand -a '{' '.join(words)}'"]
            lines += [
                f"complete -c fleet-term -n '__fish_seen_subcommand_from {name}' -a '{' '.join(items)}'"
                for name, items in words.items()
            ]
            return "\n".join(lines) + "\n"


def _words(parser: argparse.ArgumentParser) -> list[str]:
    words: list[str] = []
    for action in parser._actions:
        words += action.option_strings
        if action.choices and not action.option_strings:
            words += [str(choice) for choice in action.choices]
    return words


def _sessions(client: Client, chosen: argparse.Namespace) -> None:
    items = list(client.items("/api/sessions", limit=100))
    _print(
        chosen, items, lambda item: f"{item['id']}  {item['updated_at'][:16]}  {item['turn_count']:4}  {item['title']}"
    )


def _session(client: Client, chosen: argparse.Namespace) -> None:
    path = f"/api/sessions/{_id(chosen)}"
    turns = client.get(f"{path}/turns", limit=100)["items"]
    _print(chosen, turns, lambda turn: f"> {turn['prompt']}\n{turn['answer'] or turn['status']}\n")


def _session_new(client: Client, chosen: argparse.Namespace) -> None:
    _one(chosen, client.create_session(chosen.id), lambda item: item["id"])


def _session_rename(client: Client, chosen: argparse.Namespace) -> None:
    if not chosen.value:
        raise UsageError("give an id and a title")
    item = client.send("PATCH", f"/api/sessions/{_id(chosen)}", {"title": chosen.value})
    _one(chosen, item, lambda item: item["title"])


def _session_archive(client: Client, chosen: argparse.Namespace) -> None:
    item = client.send("PATCH", f"/api/sessions/{_id(chosen)}", {"status": "archived"})
    _one(chosen, item, lambda item: item["status"])


def _session_delete(client: Client, chosen: argparse.Namespace) -> None:
    client.send("DELETE", f"/api/sessions/{_id(chosen)}")


def _turns(client: Client, chosen: argparse.Namespace) -> None:
    turns = client.get(f"/api/sessions/{_id(chosen)}/turns", limit=100)["items"]
    _print(chosen, turns, lambda turn: f"{turn['id']}  {turn['sequence']:4}  {turn['status']:9}  {turn['prompt'][:60]}")


def _turn(client: Client, chosen: argparse.Namespace) -> None:
    _one(chosen, client.turn(_id(chosen)), lambda turn: json.dumps(turn, indent=2, ensure_ascii=False))


def _turn_cancel(client: Client, chosen: argparse.Namespace) -> None:
    _one(chosen, client.cancel(_id(chosen)), lambda turn: turn["status"])


def _turn_feedback(client: Client, chosen: argparse.Namespace) -> None:
    if chosen.value not in ("up", "down"):
        raise UsageError("give an id and up or down")
    client.send("POST", f"/api/turns/{_id(chosen)}/feedback", {"rating": chosen.value})


def _files(client: Client, chosen: argparse.Namespace) -> None:
    items = client.get(f"/api/sessions/{_id(chosen)}/files", recursive="true")["items"]
    _print(chosen, items, lambda item: f"{size_text(item['bytes']):>8}  {item['path']}")


def _file_get(client: Client, chosen: argparse.Namespace) -> None:
    if not chosen.value:
        raise UsageError("give a Session's id and a path")

    path = f"/api/sessions/{_id(chosen)}/files/content?path={quote(chosen.value, safe='')}"
    _save(client, path, chosen, chosen.value.rpartition("/")[2])


def _artifacts(client: Client, chosen: argparse.Namespace) -> None:
    items = list(client.items(f"/api/sessions/{_id(chosen)}/artifacts", limit=1000))
    _print(chosen, items, lambda item: f"{item['id']}  {size_text(item['bytes']):>8}  {item['path']}  {item['title']}")


def _artifact_get(client: Client, chosen: argparse.Namespace) -> None:
    artifact = client.get(f"/api/artifacts/{_id(chosen)}")
    _save(client, f"/api/artifacts/{artifact['id']}/content", chosen, Path(artifact["name"]).name)


def _settings(client: Client, chosen: argparse.Namespace) -> None:
    items = client.get("/api/settings")["settings"]
    _print(chosen, items, lambda item: f"{item['key']:32} {item['value']!s:10} {item['source']:12} {item['help']}")


def _setting(client: Client, chosen: argparse.Namespace) -> None:
    found = [item for item in client.get("/api/settings")["settings"] if item["key"] == _id(chosen)]
    if not found:
        raise UsageError(f"there is no setting {chosen.id}")
    _one(chosen, found[0], lambda item: str(item["value"]))


def _setting_set(client: Client, chosen: argparse.Namespace) -> None:
    present = client.get("/api/settings")
    try:
        value = json.loads(chosen.value) if chosen.value is not None else None
    except ValueError:
        value = chosen.value
    changed = {"revision": present["revision"], "changes": {_id(chosen): value}}
    client.send("PATCH", "/api/settings", changed)


def _doctor(client: Client) -> Exit:
    ready = client.get("/health/ready")
    meta, models = client.get("/api/meta"), client.get("/api/models")
    lines = {
        "server": f"{client.url}, version {meta['version']}",
        "token": "accepted",
        "model": models["default"],
        "database": "answers" if ready["database"] else "away",
        "redis": "answers" if ready["redis"] else "away: Turns are accepted and wait",
        "workers": f"{ready['workers']} alive" if ready["workers"] else "none alive: Turns wait",
    }
    healthy = ready["database"] and ready["redis"] and ready["workers"]
    for name, text in lines.items():
        sys.stdout.write(f"{name:10} {text}\n")
    return Exit.ANSWERED if healthy else Exit.FAILED


def _save(client: Client, path: str, chosen: argparse.Namespace, name: str) -> None:
    target = chosen.output or Path(name)
    try:
        size = client.download(path, target, overwrite=chosen.force)
    except FileExistsError:
        raise UsageError(f"{target} exists; --force overwrites it, -o names another") from None
    sys.stderr.write(f"· {target} · {size_text(size)}\n")


def _print(chosen: argparse.Namespace, items: list[Any], line: Callable[[Any], str]) -> None:
    if chosen.form == "json":
        sys.stdout.write(json.dumps(items, ensure_ascii=False) + "\n")
        return
    for item in items:
        sys.stdout.write(safe(line(item)) + "\n")


def _one(chosen: argparse.Namespace, item: Any, line: Callable[[Any], str]) -> None:
    text = json.dumps(item, ensure_ascii=False) if chosen.form == "json" else safe(line(item))
    sys.stdout.write(text + "\n")


def _id(chosen: argparse.Namespace) -> str:
    if not chosen.id:
        raise UsageError(f"fleet-term {chosen.command} {chosen.action} needs an id")
    return str(chosen.id)


_HANDLERS: Final[dict[tuple[str, str], Callable[[Client, argparse.Namespace], None]]] = {
    ("sessions", "list"): _sessions,
    ("sessions", "show"): _session,
    ("sessions", "new"): _session_new,
    ("sessions", "rename"): _session_rename,
    ("sessions", "archive"): _session_archive,
    ("sessions", "delete"): _session_delete,
    ("turns", "list"): _turns,
    ("turns", "show"): _turn,
    ("turns", "cancel"): _turn_cancel,
    ("turns", "feedback"): _turn_feedback,
    ("files", "list"): _files,
    ("files", "get"): _file_get,
    ("artifacts", "list"): _artifacts,
    ("artifacts", "get"): _artifact_get,
    ("settings", "list"): _settings,
    ("settings", "get"): _setting,
    ("settings", "set"): _setting_set,
}
