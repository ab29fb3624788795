"""What the web servers here share: who may ask on loopback, and a log without what was asked.

aiohttp logs a request that it cannot parse with the bytes that it stumbled over, and those may be
of a record.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import traceback
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

log = logging.getLogger("veilstream.requests")


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


def names_loopback(request: web.Request) -> bool:
    """Whether who asks calls this server by a name of loopback.

    A browser does not where a page elsewhere has had its own name point to this machine.
    """
    try:
        return is_loopback(urlsplit("//" + request.headers.get("Host", "")).hostname or "")
    except ValueError:
        return False


def same(given: str, token: str) -> bool:
    """Whether somebody has brought a token, whatever bytes they sent; in constant time."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())


def _told(fault: BaseException | None) -> str:
    if fault is None:
        return ""
    frames = traceback.extract_tb(fault.__traceback__)
    place = f", {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f" ({type(fault).__name__}{place})"
