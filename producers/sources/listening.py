"""Records that are posted over HTTP: answered once they are on disk.

`POST /` with JSON lines, or an array of objects, and a header `Idempotency-Key` that names the
request: a sender that got no answer repeats it under its key, and it is stored once. Browsers send
no such header to a foreign address without asking. Where no token is wanted, who asks must also
call this machine by its own name and bring no origin: no web page can post here, even if it has its
name point to loopback.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import threading
from concurrent.futures import Future
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from infra import requests
from pipeline.errors import ConfigError, DataError, VeilstreamError
from pipeline.settings import Settings
from producers.sources.base import Known, Opening, Source
from producers.sources.inbox import Inbox, Push
from producers.sources.jsonl_file import json_object
from producers.sources.pushed import Pushed
from producers.sources.tape import RECORD_LIMIT

KIND = "input"
#: Bytes of one request, and characters of its key.
BODY, KEY = 16 << 20, 200
#: The header with that key.
NAMED = "Idempotency-Key"


def known_as(spec: str) -> Known:
    """Return the same for any address: what comes once lies nowhere."""
    _address(spec)
    return Known("http", None)


def opened(spec: str, asked: Opening) -> Source:
    """Listen; raises as `Listener`."""
    address, settings = _address(spec), asked.settings or Settings()
    context = _context(settings)
    token = settings.listen_token
    if not ipaddress.ip_address(address[0]).is_loopback and (not token or context is None):
        raise ConfigError(
            f"--listen: {address[0]} can be reached from other machines; the operator must set "
            "VEILSTREAM_LISTEN_TOKEN, VEILSTREAM_LISTEN_CERTIFICATE and VEILSTREAM_LISTEN_KEY, or "
            "listen on 127.0.0.1 behind a proxy that has them"
        )
    inbox = Inbox(asked.folder)

    def listen() -> Listener:
        listener = Listener(address, inbox, token, context)
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        scheme = "https" if context else "http"
        asked.say(f"listening on {scheme}://{host}:{listener.port}/ for posted records")
        return listener

    return Pushed("http", inbox, listen, asked.position, skip_lost=asked.skip_lost)


class Listener:
    """A server in a thread of its own that puts what is posted into an inbox.

    address: Host and port.
    token: What senders must show as `Authorization: Bearer`; "" for nothing.
    context: For TLS.

    Raises DataError if it cannot listen there.
    """

    def __init__(
        self, address: tuple[str, int], inbox: Inbox, token: str, context: ssl.SSLContext | None
    ) -> None:
        self.fault: VeilstreamError | None = None
        self._inbox, self._token, self._context = inbox, token, context
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise DataError(
                f"--listen: {address[0]}:{address[1]} cannot be listened on ({error.strerror}); "
                "the operator must end what listens there, or choose another port"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(requests.on_fault)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = self._wait(self._start())

    def close(self) -> None:
        """Answer what is being stored, and take nothing more."""
        if not self._loop.is_closed():
            self._wait(self._runner.cleanup())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=BODY)
        app.router.add_post("/", self._post)
        runner = requests.runner(app, handle_signals=False)
        await runner.setup()
        await web.SockSite(runner, self._socket, ssl_context=self._context).start()
        return runner

    async def _post(self, request: web.Request) -> web.Response:
        refused = self._refused(request)
        if refused is not None:
            return refused
        if not self._inbox.has_room or self.fault is not None:
            return _answer(503, "no room now; repeat the request later", {"Retry-After": "1"})
        try:
            body = await request.read()
        except web.RequestPayloadError:
            return _answer(400, "the body is not what Content-Encoding says, or breaks off; send "
                                "the request again, whole")  # fmt: skip
        lines = records_in(body)
        if lines is None:
            return _answer(400, "no line of the body is a JSON object; send one a line, or an "
                                "array of objects, in UTF-8; nothing of it was kept")  # fmt: skip
        try:
            push = Push(lines, request.headers[NAMED], again=True)
            (new,) = await asyncio.to_thread(self._inbox.put, [push])
        except VeilstreamError as error:
            self.fault = error
            return _answer(503, "the records cannot be kept; repeat the request later")
        return web.json_response({"records": len(lines), "new": new})

    def _refused(self, request: web.Request) -> web.Response | None:
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self._token and not requests.same(shown, self._token):
            return _answer(401, "show the token of this client as Authorization: Bearer TOKEN")
        host = request.headers.get("Host", "")
        foreign = "Origin" in request.headers or not requests.names_loopback(host)
        if foreign and not self._token:
            return _answer(403, "post to 127.0.0.1, and not from a web page; else the operator "
                                "must set VEILSTREAM_LISTEN_TOKEN")  # fmt: skip
        key = request.headers.get(NAMED, "")
        if not 0 < len(key) <= KEY or not key.isprintable():
            return _answer(
                400,
                "Idempotency-Key: name each request in 1 to 200 printable "
                "characters, a repeated one as before: then it is stored once",
            )
        return None

    def _wait(self, work: object) -> web.AppRunner:
        found: Future[web.AppRunner] = asyncio.run_coroutine_threadsafe(work, self._loop)  # type: ignore[arg-type]
        return found.result()


def records_in(body: bytes) -> list[bytes] | None:
    """Return the records of a request: lines, or the objects of one array, or one object.

    None if there are several lines, or an array, and no object. Of a record that is too long, its
    reader needs no more than to see that it is.
    """
    lines = [line for line in body.split(b"\n") if line.strip()]
    first, wanted = body.lstrip()[:1], len(lines) > 1
    try:
        # one object of several lines, or an array; more than one object is no JSON as a whole
        if first == b"[":
            lines, wanted = [bytes(each) for each in _array(body)], True
        elif wanted and first == b"{":
            lines = [bytes(_whole(body))]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # an array that breaks off, unless it is a line that is none of an object
        if first == b"[" and json_object(lines[0])[1] != "not a JSON object":
            return None
    if wanted and not any(json_object(line)[0] is not None for line in lines):
        return None
    return [line[: RECORD_LIMIT + 1] for line in lines]


_whole = msgspec.json.Decoder(msgspec.Raw).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _answer(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": reason}, status=status, headers=headers)


def _address(spec: str) -> tuple[str, int]:
    parts = urlsplit(spec)
    try:
        host = "127.0.0.1" if parts.hostname == "localhost" else str(parts.hostname)
        return str(ipaddress.ip_address(host)), parts.port or 0
    except ValueError:
        raise DataError(
            "--listen: the operator must write an address of this machine and a port, such as "
            "127.0.0.1:8080"
        ) from None


def _context(settings: Settings) -> ssl.SSLContext | None:
    if not settings.listen_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.listen_certificate, settings.listen_key or None)
    except OSError as error:
        raise ConfigError(
            "VEILSTREAM_LISTEN_CERTIFICATE, VEILSTREAM_LISTEN_KEY: they cannot be read "
            f"({error.strerror or type(error).__name__}); the operator must name PEM files"
        ) from error
    return context
