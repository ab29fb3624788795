"""The page over HTTP: files, a stream of events, a table; nothing that could change anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from infra import requests
from pipeline.errors import ConfigError
from pipeline.page.content import Watched

#: What a browser may load: nothing from any other address.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}
COOKIE = "veilstream-page"
#: Seconds between two looks for something new, between two events with estimates, of which each
#: has all that came, and between two reports of what is around. Browsers draw each event.
LOOK_SECONDS, EVENT_SECONDS, AROUND_SECONDS = 0.05, 0.4, 1.0
#: Browsers at once, at most: each costs a little of this process for every estimate.
BROWSERS = 40
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer:
    """Serves what was watched.

    token: Who asks must bring it once; empty on loopback alone, where the name that a browser asks
        for must be a loopback name, too, or a page elsewhere could read this one.
    """

    def __init__(self, watched: Watched, token: str = "") -> None:
        self._watched, self._token = watched, token
        self._runner: web.AppRunner | None = None
        self._files = {
            path.name: path.read_bytes()
            for path in (files("pipeline.page") / "assets").iterdir()
            if "." + path.name.rpartition(".")[2] in TYPES
        }
        self._browsers = 0

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port; ConfigError if it cannot be had."""
        app = web.Application(middlewares=[self._guard()])
        app.router.add_get("/events", self._events, allow_head=False)
        app.router.add_get("/estimates.csv", self._table)
        app.router.add_get("/{name:[A-Za-z.]*}", self._file)
        self._runner = requests.runner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            await self._runner.cleanup()
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigError(
                f"the page cannot listen on {host}:{port} ({reason}): another page or program may "
                "have it; name a port that is free with --port, or 0 for any"
            ) from error
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _guard(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                refused = self._refused(request)
                response = await handler(request) if refused is None else refused
            except web.HTTPException as error:
                response = _said(error.status, error.reason)
            if not response.prepared:
                response.headers.update(HEADERS)
            return response

        return guard

    def _refused(self, request: web.Request) -> web.StreamResponse | None:
        """Return the answer to somebody who may not see the page, or brings the token just now."""
        if not self._token:
            if requests.names_loopback(request.headers.get("Host", "")):
                return None
            return _said(403, "this page is for the machine it runs on: ask for 127.0.0.1")
        given = dict(parse_qsl(request.query_string, keep_blank_values=True)).get("token")
        if requests.same(given or request.cookies.get(COOKIE, ""), self._token):
            if given is None:
                return None
            # the address bar, and what is copied from it, is free of it from here on; two slashes
            # would lead to another machine
            there = "/" + request.rel_url.raw_path.lstrip("/\\")
            answer = web.Response(status=303, headers={"Location": there})
            answer.set_cookie(
                COOKIE, self._token, httponly=True, samesite="Strict", secure=request.secure
            )
            return answer
        wrong = "that token is not this page's" if given else "this page asks for its token"
        return _said(401, f"{wrong}: open the address that `veilstream page` has printed, whole")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"] or "index.html"
        if name not in self._files:
            return _said(404, "there is nothing here; the page is at /")
        kind = TYPES["." + name.rpartition(".")[2]]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8")

    async def _table(self, _request: web.Request) -> web.StreamResponse:
        # by whoever asks: a thread, as it may be long
        text = await asyncio.to_thread(self._watched.csv)
        named = {"Content-Disposition": 'attachment; filename="estimates.csv"'}
        return web.Response(text=text, content_type="text/csv", headers=named)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send all estimates that are kept, then each that comes, until the browser goes."""
        if self._browsers >= BROWSERS:
            return _said(503, f"{BROWSERS} browsers look at this page already: close one")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._browsers += 1
        try:
            await response.prepare(request)
            await self._tell(response)
        except (ConnectionResetError, asyncio.CancelledError):
            # the browser has gone, or the page ends
            return response
        finally:
            self._browsers -= 1
        return response

    async def _tell(self, response: web.StreamResponse) -> None:
        whole = self._watched.whole()
        version = whole["version"]
        await _send(response, "history", whole)
        loop, next_event, next_around = asyncio.get_running_loop(), 0.0, 0.0
        while True:
            if self._watched.version != version and loop.time() >= next_event:
                next_event = loop.time() + EVENT_SECONDS
                news = self._watched.since(version)
                version = news["version"]
                await _send(response, "estimate", news)
            if loop.time() >= next_around:
                next_around = loop.time() + AROUND_SECONDS
                await _send(response, "around", self._watched.around())
            await asyncio.sleep(LOOK_SECONDS)


async def _send(response: web.StreamResponse, event: str, data: dict[str, Any]) -> None:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    await response.write(f"event: {event}\ndata: {text}\n\n".encode())


def _said(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
