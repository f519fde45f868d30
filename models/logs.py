"""Lines of a log: as text for people, or as JSON, with the request that each is about."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""The request that the running task is about."""


class TextFormatter(logging.Formatter):
    """A line: when, where, what, and fields behind it.

    Args:
        always: Fields of every line.
    """

    def __init__(self, always: Mapping[str, Any]) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields = {**self._always, **_request(), **getattr(record, "fields", {})}
        shown = " ".join(f"{key}={value}" for key, value in fields.items() if key not in _SAID)
        head = f"{_when(record)} {record.levelname} {record.name}: "
        # what a client sent stays in its line
        line = head + " ".join(f"{record.getMessage()} {shown}".split())
        return line + self._traceback(record)

    def _traceback(self, record: logging.LogRecord) -> str:
        return f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""


class JsonFormatter(logging.Formatter):
    """A JSON object a line.

    Args:
        always: Fields of every line.
    """

    def __init__(self, always: Mapping[str, Any]) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **_request(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_SAID = ("method", "path", "status")
"""Fields that the text of an access line has."""


def _request() -> dict[str, str]:
    name = REQUEST_ID.get()
    return {"request_id": name} if name else {}


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def log_to_stderr(form: LogFormat, **always: Any) -> None:
    """Has all that is logged in this process go to standard error, in one form.

    Args:
        form: Which.
        **always: Fields of every line, such as what this process is.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(always) if form == "json" else TextFormatter(always))
    logging.basicConfig(handlers=[handler], force=True)


def chosen_format() -> LogFormat | None:
    """The form in which this process logs; None where that is not one of these."""
    for handler in logging.getLogger().handlers:
        match handler.formatter:
            case JsonFormatter():
                return "json"
            case TextFormatter():
                return "text"
    return None
