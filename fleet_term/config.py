"""What the client reads from its environment: variables and folders. The only reader of `os.environ` here."""

import os
from collections.abc import Mapping
from pathlib import Path


def environ() -> Mapping[str, str]:
    """The environment of this process; entry files read it once and pass it on."""
    return os.environ  # noqa: TID251  # the one place


def data_home(environment: Mapping[str, str]) -> Path:
    """The folder of the user's own data, by the XDG rules: an unset, empty or relative value means the default."""
    return _folder(environment, "XDG_DATA_HOME", ".local/share")


def config_home(environment: Mapping[str, str]) -> Path:
    """The folder of the user's configuration, by the XDG rules."""
    return _folder(environment, "XDG_CONFIG_HOME", ".config")


def state_home(environment: Mapping[str, str]) -> Path:
    """The folder of what should survive restarts but is not the user's data (histories, drafts), by the XDG rules."""
    return _folder(environment, "XDG_STATE_HOME", ".local/state")


def local_data_dir(environment: Mapping[str, str]) -> Path:
    """The data directory of local mode when `--data-dir` does not name another."""
    return data_home(environment) / "fleet"


def _folder(environment: Mapping[str, str], variable: str, default: str) -> Path:
    given = Path(environment.get(variable, ""))
    return given if given.is_absolute() else Path.home() / default
