"""What long-running processes share: orderly ends, waits that are said, and lines for people."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from pipeline.errors import WaitTimeout

#: Seconds after which a wait is worth a line, and between two lines of one wait.
FIRST, AGAIN = 5.0, 60.0
_NUMBER = re.compile(r"\d+")
#: Who brings what is waited for; a first model may need more releases.
_WHO = {
    "model": "`veilstream worker` must be running on this study; `veilstream watch` says what it "
    "lacks",
    "an estimate": "it takes a `veilstream worker` and a `veilstream produce` of this study",
}


class Waiting:
    """What a command waits for.

    first: Seconds before a wait is said.
    clock: Seconds since 1970.
    rhythm: Seconds between two models of the study, at most: to wait so long for one is normal.
    timeout: A wait ends after so many seconds; None: never.
    """

    def __init__(
        self, first: float = FIRST, clock: Callable[[], float] = time.time, rhythm: float = 0.0,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        self._first, self._clock, self._timeout = first, clock, timeout
        self._first_of_model = max(first, min(AGAIN, 2 * rhythm))
        self._kind, self._since = ("", 0), 0.0
        #: When each was said last.
        self._said: dict[str, float] = {}

    def hint(self, what: str, done: int = 0) -> str:
        """Return what to say now, mostly nothing.

        what: What is waited for, such as "Kafka"; empty: nothing. Numbers in it may change.
        done: A count of what was done so far: where it has grown, a wait begins anew.

        Raises WaitTimeout once a wait has taken as long as it may.
        """
        now, name = self._clock(), _NUMBER.sub("", what)
        if (name, done) != self._kind:
            self._kind, self._since = (name, done), now
        who = "".join(f": {said}" for kind, said in _WHO.items() if kind in what)
        if what and self._timeout is not None and now - self._since >= self._timeout:
            raise WaitTimeout(f"--timeout: {self._timeout:g} s without {what}{who}")
        first = self._first_of_model if "model" in what else self._first
        if not what or now - self._since < first or now - self._said.get(name, -AGAIN) < AGAIN:
            return ""
        self._said[name] = now
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        return f"waiting for {what} since {since}{who}"


class Stopping:
    """From now on, SIGINT and SIGTERM of this process ask for an orderly end.

    asked: Whether one of them has come.
    """

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


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
