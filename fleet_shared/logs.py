"""Structured logs on stderr: a line per record, a constant event name plus ids as fields. Never prompts or secrets."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

#: Libraries that tell of every step at INFO what our own events tell once.
CHATTY: Final = ("alembic", "celery.worker.strategy", "celery.app.trace", "httpx", "httpcore")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, event, extra fields, and the traceback when there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(_extra(record))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """The same for human eyes: time, level, event and `key=value` fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        fields = "".join(f" {key}={value}" for key, value in _extra(record).items())
        line = f"{at} {record.levelname.lower():7} {record.name}: {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def start_logging(*, form: Literal["json", "text"], level: str) -> None:
    """Send every record of this process to stderr in the given form. Called once, by entry files."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if level.upper() != "DEBUG":
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD and not key.startswith("_")}
