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
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

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
