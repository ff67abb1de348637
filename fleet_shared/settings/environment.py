"""Reads `FLEET_<SECTION>_<KEY>` variables; a bad value stops the start, an unknown variable is a warning."""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from fleet_shared.settings.declared import Option, Settings, options

#: Names of cli-and-environment.md that are matched before the sections.
FIXED_NAMES: Final = frozenset(
    {
        "FLEET_SNAPSHOT",
        "FLEET_MODEL",
        "FLEET_SUB_MODEL",
        "FLEET_MODELS_FILE",
        "FLEET_MODEL_API_BASE",
        "FLEET_MODEL_API_KEY",
        "FLEET_SUB_MODEL_API_BASE",
        "FLEET_SUB_MODEL_API_KEY",
        "FLEET_SECRET_KEY",
        "FLEET_METRICS_TOKEN",
        "FLEET_LOG_FORMAT",
        "FLEET_LOG_LEVEL",
        "FLEET_URL",
        "FLEET_TOKEN",
    }
)


class BadSetting(Exception):
    """A variable has a value that cannot be used; the message is one line that names it."""

    def __init__(self, variable: str, problem: str) -> None:
        super().__init__(f"{variable} {problem}")
        self.variable = variable


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings of a process: what is in force, which keys the environment set, caps for owners, unknown variables."""

    settings: Settings
    from_environment: frozenset[str]
    caps: dict[str, Any]
    unknown: tuple[str, ...]

    def for_owner(self, values: Mapping[str, Any]) -> Settings:
        """The settings of an owner: default < environment < the owner's value, capped by `FLEET_<…>_MAX`."""
        declared = options()
        chosen: dict[str, Any] = {}
        for key, value in values.items():
            option = declared.get(key)
            if option is None or option.scope != "owner":
                continue
            cap = self.caps.get(key)
            chosen[key] = min(value, cap) if cap is not None else value
        return self.settings.with_values(chosen)


def process_environment() -> MutableMapping[str, str]:
    """The environment of this process; entry files read it once and pass it on."""
    return os.environ  # noqa: TID251  # the one place


def load_settings(environment: Mapping[str, str]) -> LoadedSettings:
    """The settings that `environment` gives. Raises BadSetting."""
    by_variable = {option.variable: option for option in options().values()}
    values: dict[str, Any] = {}
    caps: dict[str, Any] = {}
    unknown: list[str] = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith("FLEET_") or variable in FIXED_NAMES or variable.startswith("FLEET_TERM_"):
            continue
        option = by_variable.get(variable)
        cap_of = by_variable.get(variable.removesuffix("_MAX")) if variable.endswith("_MAX") else None
        if option is not None:
            values[option.key] = _parse(option, variable, text)
        elif cap_of is not None and cap_of.scope == "owner" and cap_of.type in ("int", "float"):
            caps[cap_of.key] = _parse(cap_of, variable, text)
        else:
            unknown.append(variable)
    return LoadedSettings(Settings().with_values(values), frozenset(values), caps, tuple(unknown))


def _parse(option: Option, variable: str, text: str) -> Any:
    try:
        return option.parse(text)
    except ValueError as error:
        raise BadSetting(variable, str(error)) from None
