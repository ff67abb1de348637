"""The server and token a person uses, saved by the first run in a file only they can read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet_term.config import config_home


@dataclass(frozen=True, slots=True)
class Server:
    """Where Fleet is, and who asks."""

    url: str
    token: str


def saved_server(environment: Mapping[str, str]) -> Server | None:
    """The saved server; None when there is none or the file cannot be read."""
    try:
        found = json.loads(_file(environment).read_text(encoding="utf-8"))
        return Server(str(found["url"]), str(found["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_server(environment: Mapping[str, str], server: Server) -> Path:
    """Save a server; the file's path."""
    path = _file(environment)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_suffix(".part")
    partial.touch(mode=0o600)
    partial.write_text(json.dumps({"url": server.url, "token": server.token}), encoding="utf-8")
    partial.replace(path)
    return path


def _file(environment: Mapping[str, str]) -> Path:
    return config_home(environment) / "fleet" / "server.json"
