"""What a program tells people on standard error: lines, or one JSON object for each."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Any

WARNING = "WARNING: "
#: Where everything is JSON, what writes the records of Python's own logging.
_handler = logging.StreamHandler()
_as_json = False


class JsonFormatter(logging.Formatter):
    """A record of logging as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return it; a traceback is one member."""
        more = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        name, text = record.levelname.lower(), record.getMessage()
        return _line(record.created, name, text, logger=record.name, **more)


def use(form: str) -> None:
    """Speak as "text" or "json" from here on; libraries that log do so, too."""
    global _as_json  # noqa: PLW0603  standard error is one, too
    _as_json = form == "json"
    root = logging.getLogger()
    root.removeHandler(_handler)
    logging.captureWarnings(_as_json)
    if _as_json:
        _handler.setFormatter(JsonFormatter())
        _handler.setStream(sys.stderr)
        root.addHandler(_handler)


def logging_config() -> dict[str, Any] | None:
    """Return what a library that sets up logging by itself is to do; None: as it likes."""
    if not _as_json:
        return None
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"said": {"()": lambda: _handler}},
        "root": {"handlers": ["said"], "level": "WARNING"},
    }


def is_json() -> bool:
    """Whether everything is said as JSON."""
    return _as_json


def say(line: str, level: str = "info", **more: Any) -> None:
    """Say something; a line that has the word of a warning is one.

    more: Members of the JSON object, which a line for people leaves out.
    """
    if _as_json:
        if WARNING in line:
            line, level = line.replace(WARNING, "", 1), "warning"
        line = _line(time.time(), level, line, **more)
    print(line, file=sys.stderr, flush=True)


def _line(at: float, level: str, message: str, **more: Any) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": moment, "level": level, "message": message, **more})
