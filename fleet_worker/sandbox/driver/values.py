"""Values of a cell as JSON data, and as text for the model."""


def plain_value(value, strict=False):
    """`value` as JSON data: sets, tuples, dates, numpy, pandas, pydantic and dataclasses are converted.

    What cannot be converted becomes its str, or with `strict` a TypeError.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return _builtin(value)
    if isinstance(value, dict):
        return {str(key): plain_value(item, strict) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = list(value)
        if isinstance(value, (set, frozenset)):
            try:
                items.sort()
            except TypeError:
                items.sort(key=repr)
        return [plain_value(item, strict) for item in items]
    for name in ("model_dump", "tolist", "to_dict", "_asdict", "isoformat"):
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            try:
                return plain_value(method(orient="records") if _is_frame(value) else method(), strict)
            except (TypeError, ValueError):
                continue
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: plain_value(getattr(value, name), strict) for name in value.__dataclass_fields__}
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if strict:
        raise TypeError("SUBMIT cannot send a %s; convert it to text, numbers, lists or dicts" % type(value).__name__)
    return str(value)


def shown(value):
    """The repr of a cell's last expression."""
    try:
        return repr(value)
    except Exception as error:
        return "<%s whose repr fails: %s>" % (type(value).__name__, error)


def _builtin(value):
    # Subclasses (enums, numpy.float64) may lie in __repr__ or __str__, which JSON would use.
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    return value


def _is_frame(value):
    return type(value).__name__ == "DataFrame" and hasattr(value, "columns")
