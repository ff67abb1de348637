"""Values on their way into the sandbox: as JSON data, named by their digest; and what tools take."""

import contextlib
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from fleet_shared.domain.text import clean_text


class VariableTexts:
    """The digests of variables. RLM hands over the same objects in every iteration: those are not read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, int, str]] = {}
        self._fresh: dict[str, tuple[str, str]] = {}

    def digest(self, name: str, value: Any) -> str:
        """The digest of a variable's JSON. Raises TypeError when it is no JSON data."""
        size = len(value) if isinstance(value, str | list | dict) else 0
        known = self._known.get(name)
        if known is not None and known[0] is value and known[1] == size:
            return known[2]
        try:
            text = json.dumps(plain(value, strict=True))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"The variable {name} cannot be sent to the sandbox: {error}") from error
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._known[name] = (value, size, digest)
        self._fresh[name] = (digest, text)
        return digest

    def text(self, name: str) -> str:
        """The JSON of a variable whose digest was asked before."""
        value, _, digest = self._known[name]
        fresh = self._fresh.pop(name, None)
        return fresh[1] if fresh is not None and fresh[0] == digest else json.dumps(plain(value, strict=True))

    def forget_texts(self) -> None:
        """Keep the digests alone."""
        self._fresh.clear()


def parameters_of(tool: Callable[..., Any]) -> list[str]:
    """The names of a tool's parameters, in the order in which positional arguments bind to them."""
    with contextlib.suppress(TypeError, ValueError):
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return [item.name for item in inspect.signature(tool).parameters.values() if item.kind not in kinds]
    return []


def plain(value: Any, *, strict: bool = False) -> Any:
    """`value` as JSON data; what cannot be converted becomes its str, or with `strict` a TypeError."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): plain(item, strict=strict) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, strict=strict) for item in value]
    if isinstance(value, set | frozenset):
        return [plain(item, strict=strict) for item in sorted(value, key=repr)]
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(), strict=strict)
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value), strict=strict)
    if strict:
        raise TypeError(f"a {type(value).__name__} is not JSON data")
    return clean_text(str(value))
