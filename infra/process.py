"""What long-running processes share: orderly ends, waits that are said, logs, and who may ask.

aiohttp logs a request that it cannot parse with the bytes that it stumbled over, and those may be
of a record: the web servers here log without them.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import re
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from pipeline.errors import WaitTimeout

#: Seconds after which a wait is worth a line, and between two lines of one wait.
FIRST, AGAIN = 5.0, 60.0
_NUMBER = re.compile(r"\d+")
#: Who brings what is waited for; a first model may need more releases.
_WHO = {
    "model": "`veilstream worker` must be running on this study; `veilstream watch` says what it "
    "lacks",
    "estimate": "it takes a `veilstream worker` and a `veilstream produce` of this study",
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


log = logging.getLogger("veilstream.requests")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
#: Said to who asks a server on loopback by another name.
ELSEWHERE = "this is for the machine it runs on: ask for 127.0.0.1"


class Wordless(logging.Filter):
    """Leaves of a fault its class and its place in the code."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Take out what could quote a request; drop a body that its handler has answered."""
        fault = record.exc_info[1] if record.exc_info else None
        if isinstance(fault, web.RequestPayloadError):
            return False
        record.msg, record.args = f"a request could not be read or answered{_told(fault)}", ()
        record.exc_info = record.exc_text = record.stack_info = None
        return True


log.addFilter(Wordless())


def runner(app: web.Application, **options: Any) -> web.AppRunner:
    """Return what runs a server; options as those of `aiohttp.web.AppRunner`."""
    return web.AppRunner(app, access_log=None, logger=log, **options)


def on_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a fault that no request's handler has seen; an event loop's exception handler."""
    fault = context.get("exception")
    log.error("", exc_info=fault if isinstance(fault, Exception) else None)


def is_loopback(host: str) -> bool:
    """Whether a host name is this machine's own loopback."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_loopback(host: str) -> bool:
    """Whether who asks calls this server by a name of loopback.

    host: The header of the request that says so. A browser has another one there where a page
        elsewhere has had its own name point to this machine.
    """
    try:
        return is_loopback(urlsplit("//" + host).hostname or "")
    except ValueError:
        return False


@web.middleware
async def by_own_name(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what comes in on loopback under another name."""
    at = request.transport.get_extra_info("sockname") if request.transport else None
    if at and is_loopback(at[0]) and not names_loopback(request.headers.get("Host", "")):
        return web.Response(status=403, text=ELSEWHERE)
    return await handler(request)


def same(given: str, token: str) -> bool:
    """Whether somebody has brought a token, whatever bytes they sent; in constant time."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


def _told(fault: BaseException | None) -> str:
    if fault is None:
        return ""
    frames = traceback.extract_tb(fault.__traceback__)
    place = f", {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f" ({type(fault).__name__}{place})"
