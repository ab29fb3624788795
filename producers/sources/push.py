"""A source whose records are sent to the client: stored before they are acknowledged, each once.

Raw data at rest (mode 0600), in a folder of one study. A push has a key; one that says it may be a
repetition is stored only if the same content was not stored under that key before. Records and keys
are in one transaction, so no crash can come between them.

`POST /` takes JSON lines, or an array of objects, and a header `Idempotency-Key` that names the
request: a sender that got no answer repeats it under its key, and it is stored once. Browsers send
no such header to a foreign address without asking. Where no token is wanted, who asks must also
call this machine by its own name and bring no origin: no web page can post here, even if it has its
name point to loopback.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import secrets
import socket
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from infra import requests
from pipeline.errors import ConfigError, DataError, LocalStoreError, VeilstreamError
from pipeline.settings import Settings
from producers.sources.base import (
    Known,
    Opening,
    Position,
    Slot,
    Slots,
    Source,
    decode_position,
)
from producers.sources.json_lines import Objects, json_object
from producers.sources.text import RECORD_LIMIT

#: Bytes that may wait unread before nothing more is taken.
ROOM = 64 << 20
#: Released records that stay, at most, and keys that are remembered, about.
FORGET, KEYS = 1000, 100_000

_TABLES = """
CREATE TABLE IF NOT EXISTS records (at INTEGER PRIMARY KEY AUTOINCREMENT, line BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS pushes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, digest BLOB NOT NULL,
  UNIQUE (key, digest)
);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class Push(NamedTuple):
    """Records that came together.

    lines: Their bytes, a record each.
    key: What the sender calls them.
    again: Whether it may have sent them before.
    reused: Whether the key is given to other content later: then only the last one counts.
    """

    lines: Sequence[bytes]
    key: str
    again: bool
    reused: bool = False


class Inbox:
    """The records of one study that wait for their release; any thread may use it.

    folder: Where it lies; the caller must hold this folder for itself.

    Raises LocalStoreError, by every method, if it cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        path = folder / "inbox.db"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # before there is anything in it that others could read
            path.touch(mode=0o600)
        except OSError as error:
            raise _unusable(error.strerror) from error
        with _faults():
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA secure_delete = ON")
            self._db.executescript(_TABLES)
            self._highest = self._number(
                "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'records'"
            )
            query = f"SELECT coalesce(min(at) - 1, {self._highest}) FROM records"  # noqa: S608
            self._forgotten = self._number(query)
        self._unread = 0

    def begin(self, at: int | None, *, skip_lost: bool = False) -> None:
        """Check that all that came behind a record is here; None: behind none.

        skip_lost: Whether to go on behind that record though the inbox is older than it.

        DataError if some was forgotten, or is lost.
        """
        if (at or 0) > self._highest:
            if not skip_lost:
                raise DataError(
                    f"the inbox: this client has read record {at} of it, and it has only ever held "
                    f"{self._highest}: it is gone, or an old copy. What was acknowledged behind "
                    f"record {at} is lost; the data owner must bring the newest inbox back, or "
                    "start once with --skip-lost to go on without that"
                )
            with self._lock, _faults():
                # a number that was read must not be given again
                self._db.execute("INSERT INTO records (at, line) VALUES (?, x'')", (at,))
                self._db.execute("DELETE FROM records WHERE at <= ?", (at,))
            self._highest = self._forgotten = at or 0
        if self._forgotten > (at or 0):
            raise DataError(
                "the inbox: its first records were released from and forgotten, but this client "
                "has no position behind them; the data owner must bring the client's own database "
                "back; if it is gone, remove the inbox as well, with what was not released"
            )
        with self._lock, _faults():
            query = f"SELECT coalesce(sum(length(line)), 0) FROM records WHERE at > {at or 0}"  # noqa: S608
            self._unread = self._number(query)

    @property
    def has_room(self) -> bool:
        """Whether more may be put into it now."""
        return self._unread < ROOM

    def put(self, pushes: Sequence[Push]) -> list[bool]:
        """Store pushes durably; return of each whether it is new."""
        with self._changed, _faults():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                found = [self._put(push) for push in pushes]
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            for new, push in zip(found, pushes, strict=True):
                self._unread += sum(map(len, push.lines)) if new else 0
            self._changed.notify_all()
        return found

    def read(self, after: int, limit: int, timeout: float) -> list[tuple[int, bytes]]:
        """Return records behind a number, each with its own, none if none came in `timeout` s."""
        with self._changed, _faults():
            if not (found := self._rows(after, limit)):
                self._changed.wait(timeout)
                found = self._rows(after, limit)
            self._unread -= sum(len(line) for _, line in found)
            return found

    def forget(self, at: int) -> None:
        """Remove the records up to a number, once that is worth it."""
        if at - self._forgotten < FORGET:
            return
        with self._lock, _faults():
            self._db.execute("DELETE FROM records WHERE at <= ?", (at,))
            self._db.execute(
                "DELETE FROM pushes WHERE id <= (SELECT max(id) FROM pushes) - ?", (KEYS,)
            )
            self._forgotten = at

    def name(self) -> str:
        """Return a name that only this inbox has, and keeps."""
        self.know("name", f"veilstream-{secrets.token_hex(8)}")
        return str(self.known("name"))

    def know(self, name: str, value: str = "yes") -> None:
        """Keep a fact under its name, unless there is one."""
        with self._lock, _faults():
            self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))

    def known(self, name: str) -> str | None:
        """Return the fact of a name."""
        with self._lock, _faults():
            found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            return None if found is None else str(found[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    def _put(self, push: Push) -> bool:
        digest = hashlib.blake2b(b"\n".join(push.lines), digest_size=16).digest()
        pair = (push.key, digest)
        query = "SELECT 1 FROM pushes WHERE key = ? AND digest = ?"
        if push.again and self._db.execute(query, pair).fetchone():
            return False
        if push.reused:
            self._db.execute("DELETE FROM pushes WHERE key = ?", (push.key,))
        self._db.executemany(
            "INSERT INTO records (line) VALUES (?)", [(line,) for line in push.lines]
        )
        self._db.execute("INSERT OR REPLACE INTO pushes (key, digest) VALUES (?, ?)", pair)
        return True

    def _rows(self, after: int, limit: int) -> list[tuple[int, bytes]]:
        query = "SELECT at, line FROM records WHERE at > ? ORDER BY at LIMIT ?"
        return self._db.execute(query, (after, limit)).fetchall()

    def _number(self, query: str) -> int:
        row = self._db.execute(query).fetchone()
        return int(row[0]) if row else 0


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _unusable(str(error)) from error


def _unusable(why: str | None) -> LocalStoreError:
    return LocalStoreError(
        f"the inbox of what was pushed cannot be kept ({why}); the operator must give the client's "
        "folder space and write permission"
    )


class Feed(Protocol):
    """What puts records into an inbox, from a thread of its own."""

    #: What ended it, if something has.
    fault: VeilstreamError | None

    def close(self) -> None:
        """Take nothing more."""


class Pushed(Source):
    """The records of an inbox, JSON objects, while a feed fills it.

    identity: As of `Source`.
    inbox: Where they are stored.
    start: Starts the feed, once the inbox fits the position.
    position: Behind which slot to resume; None is the first one that ever came.
    skip_lost: Whether to go on where the inbox does not reach up to it.

    Raises DataError if position or inbox are of another source, or do not fit one another;
    what `start` raises.
    """

    #: More can come at any time.
    ended = False

    def __init__(
        self, identity: str, inbox: Inbox, start: Callable[[], Feed], position: bytes | None,
        *, skip_lost: bool = False,
    ) -> None:  # fmt: skip
        self.identity, self._inbox = identity, inbox
        try:
            self._at = 0 if position is None else self._number(position)
            self._check_inbox()
            inbox.begin(None if position is None else self._at, skip_lost=skip_lost)
            self._feed = start()
            inbox.know("source", identity)
        except BaseException:
            inbox.close()
            raise

    def read(self, limit: int, timeout: float) -> Sequence[Slot]:
        """As `Source.read`.

        Raises what ended the feed, once everything that it stored was handed out.
        """
        found = self._inbox.read(self._at, limit, timeout)
        if not found and self._feed.fault is not None:
            raise self._feed.fault
        if not found:
            return []
        numbers, lines = map(list, zip(*found, strict=True))
        self._at = numbers[-1]
        lost = dict[int, str]()
        for at, line in enumerate(lines):
            if len(line) > RECORD_LIMIT:
                lost[at], lines[at] = "the record is too long", b"{}"

        def place(at: int) -> tuple[bytes, int]:
            number = numbers[at]
            return msgspec.json.encode(Position(self.identity, number, number)), number

        return Slots(Objects(lines, lost), place, lambda at: f"record {numbers[at]}")

    def forget(self, position: bytes) -> None:
        self._inbox.forget(self._number(position))

    def close(self) -> None:
        """End the feed and close the inbox."""
        self._feed.close()
        self._inbox.close()

    def _check_inbox(self) -> None:
        found = self._inbox.known("source") or self.identity
        if found != self.identity:
            raise DataError(
                f"the inbox: this client takes what comes by {found} in this study, and this "
                f"source is {self.identity}; the data owner must go on with that one, or name "
                "another client"
            )

    def _number(self, position: bytes) -> int:
        return decode_position(position, self.identity, self.identity).at


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
