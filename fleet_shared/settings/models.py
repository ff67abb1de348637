"""The models a deployment offers: `FLEET_MODEL`, `FLEET_SUB_MODEL` and the TOML file of further choices."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fleet_shared.settings.environment import BadSetting

DEMO_MODEL: Final = "demo/rules"


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where a model is reached: a DSPy model name, and an address and key when they are not the provider's own."""

    model: str
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model an owner may choose by `name`. Prices are US dollars per million tokens, None when unknown."""

    name: str
    endpoint: ModelEndpoint
    input_price: float | None = None
    output_price: float | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """The configured models: the default root and sub model and every choice by name."""

    default: str
    default_sub: str
    choices: dict[str, ModelChoice]

    def named(self, name: str) -> ModelChoice | None:
        """The choice of that name."""
        return self.choices.get(name)


def load_models(environment: Mapping[str, str]) -> Models:
    """The models that `environment` configures. Raises BadSetting, also when FLEET_MODEL is missing.

    The web process needs the names alone; keys are read here because only this room may read the environment.
    """
    name = environment.get("FLEET_MODEL", "").strip()
    if not name:
        raise BadSetting("FLEET_MODEL", f"is not set; name a DSPy model such as openai/gpt-…, or {DEMO_MODEL}")
    root = ModelChoice(name, _endpoint(environment, "FLEET_MODEL", name))
    choices = {name: root}
    sub_name = environment.get("FLEET_SUB_MODEL", "").strip() or name
    own_address = environment.get("FLEET_SUB_MODEL_API_BASE") or environment.get("FLEET_SUB_MODEL_API_KEY")
    if sub_name != name or own_address:
        sub_key = sub_name if sub_name != name else f"{sub_name} (sub)"
        choices[sub_key] = ModelChoice(sub_key, _endpoint(environment, "FLEET_SUB_MODEL", sub_name))
        sub_name = sub_key
    path = environment.get("FLEET_MODELS_FILE", "").strip()
    if path:
        choices.update(_read_file(Path(path), environment))
    return Models(default=name, default_sub=sub_name, choices=choices)


def _endpoint(environment: Mapping[str, str], prefix: str, model: str) -> ModelEndpoint:
    if "/" not in model:
        raise BadSetting(prefix, "must be provider/model, for example openai/gpt-… or ollama_chat/…")
    api_base = environment.get(f"{prefix}_API_BASE", "").strip() or None
    if api_base is not None and not api_base.startswith(("http://", "https://")):
        raise BadSetting(f"{prefix}_API_BASE", "must be an http:// or https:// URL")
    return ModelEndpoint(model, api_base, environment.get(f"{prefix}_API_KEY", "").strip() or None)


def _read_file(path: Path, environment: Mapping[str, str]) -> dict[str, ModelChoice]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSetting("FLEET_MODELS_FILE", f"cannot be read: {error}") from None
    entries = document.get("models")
    if not isinstance(entries, list):
        raise BadSetting("FLEET_MODELS_FILE", "must hold [[models]] tables")
    return {choice.name: choice for choice in (_entry(entry, environment) for entry in entries)}


def _entry(entry: Any, environment: Mapping[str, str]) -> ModelChoice:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in ("name", "model")):
        raise BadSetting("FLEET_MODELS_FILE", "has an entry without name and model")
    unknown = set(entry) - {"name", "model", "api_base", "api_key_variable", "input_price", "output_price"}
    if unknown:
        raise BadSetting("FLEET_MODELS_FILE", f"has the unknown key {min(unknown)} in {entry['name']}")
    variable = entry.get("api_key_variable")
    key = environment.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise BadSetting("FLEET_MODELS_FILE", f"names the key variable {variable}, which is not set")
    endpoint = ModelEndpoint(entry["model"], entry.get("api_base"), key or None)
    return ModelChoice(entry["name"], endpoint, entry.get("input_price"), entry.get("output_price"))
