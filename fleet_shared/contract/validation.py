"""Data in and out through schemas; what a schema refuses becomes InvalidInput with a message per field."""

from typing import Any

from marshmallow import Schema, ValidationError

from fleet_shared.domain.errors import InvalidInput


def load(schema: Schema, data: Any) -> Any:
    """The value a schema makes of JSON data. Raises InvalidInput naming the fields."""
    try:
        return schema.load(data)
    except ValidationError as error:
        errors = _flat(error.messages)
        first, messages = next(iter(errors.items()), ("body", ["Not acceptable."]))
        raise InvalidInput(f"{first}: {messages[0]}", errors=errors) from error


def dump(schema: Schema, value: Any) -> Any:
    """The JSON data of a value, or of a list when the schema is for many."""
    return schema.dump(value)


def _flat(messages: Any, prefix: str = "") -> dict[str, list[str]]:
    """Nested messages as `outer.inner` -> texts."""
    if isinstance(messages, dict):
        found: dict[str, list[str]] = {}
        for name, item in messages.items():
            path = str(name) if name != "_schema" else "body"
            found.update(_flat(item, f"{prefix}.{path}" if prefix else path))
        return found
    texts = messages if isinstance(messages, list) else [messages]
    return {prefix or "body": [str(text) for text in texts]}
