"""The page over HTTP, and the threads that follow a study's topics for it: both only read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web
from kafka import TopicPartition
from kafka.errors import KafkaError

from infra import requests
from infra.admissions import read_roll
from infra.kafka import asking, log_reader, read_all
from pipeline.api.feed import Feed
from pipeline.errors import ConfigError, NoTopic, PayloadError, VeilstreamError
from pipeline.messages import spend as spends
from pipeline.messages.envelope import marks_of
from pipeline.messages.spend import is_claim
from pipeline.messages.topics import Topics
from pipeline.page.content import Clients, Watched
from pipeline.release.layout import MAGIC
from pipeline.settings import Settings
from pipeline.study.model import Study

#: What a release begins with; other records of its topic say who is admitted.
RELEASE = MAGIC.to_bytes(4, "little")
#: Estimates before the page's start that it reads.
BACK = 4000
#: Records before the page's start that are read of each partition; and how many a look may take: a
#: reader that falls further behind skips what is between.
TAIL, LOOK = 4000, 2000
#: Seconds between two looks at the log, at who is admitted and what is spent, and after a fault.
LOOK_SECONDS, ACCOUNTS_SECONDS, AGAIN_SECONDS = 0.25, 15.0, 2.0


class Reading:
    """Follows the estimates, and the log around them, until stopped.

    Raises ConfigError, BrokerError at once, as `Feed`: who starts a page is told.
    """

    def __init__(self, study: Study, settings: Settings, watched: Watched) -> None:
        self._study, self._settings, self._watched = study, settings, watched
        self._topics, self._stopped = Topics.of(study), threading.Event()
        # all of them once, here: who starts a page is told what is missing
        self._warn(settings.ledger_topic, self._look_at_accounts())
        self._consumer: Any = self._follow()
        self._feed: Feed | None = Feed(study, settings, beginning=False, history=BACK)
        self._threads = [
            threading.Thread(target=self._again, args=(name, body), daemon=True)
            for name, body in (
                (self._topics.estimates.name, self._estimates),
                (self._topics.releases.name, self._log),
                (settings.ledger_topic, self._accounts),
            )
        ]

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all threads; each notices within a second or so."""
        self._stopped.set()
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(5.0)

    def _again(self, name: str, body: Callable[[], None]) -> None:
        """Read until stopped, whatever happens to Kafka."""
        while not self._stopped.is_set():
            try:
                body()
            except (VeilstreamError, KafkaError) as error:
                self._watched.warnings[name] = f"{name} is not read: {error}"
                self._stopped.wait(AGAIN_SECONDS)

    def _estimates(self) -> None:
        # after a fault only the newest: the history up to it is held
        feed = self._feed or Feed(self._study, self._settings, beginning=False)
        self._feed = None
        try:
            for message, _ in feed.until_now():
                self._watched.estimate(message, live=False)
                if self._stopped.is_set():
                    return
            while not self._stopped.is_set():
                for message, _ in feed.poll(0.1):
                    self._watched.estimate(message, live=True)
                self._warn(self._topics.estimates.name, feed.warning)
        finally:
            feed.close()

    def _log(self) -> None:
        consumer, self._consumer = self._consumer or self._follow(), None
        places = sorted(consumer.assignment())
        try:
            with asking(self._settings, f"topic {self._topics.releases.name}", "Read"):
                while not self._stopped.wait(LOOK_SECONDS):
                    batches = consumer.poll(timeout_ms=100, max_records=LOOK)
                    if batches:
                        self._watched.seen(partial(take, topics=self._topics, batches=batches))
                    if sum(map(len, batches.values())) >= LOOK:
                        skip_to_tail(consumer, places)
                    self._warn(self._topics.releases.name, "")
        finally:
            with suppress(KafkaError):
                consumer.close()

    def _follow(self) -> Any:
        """Return a reader of the releases and the dead letters, near their ends."""
        with asking(self._settings, "the cluster", "Describe"):
            consumer = log_reader(self._settings, wait_ms=200)
        with ExitStack() as undo:
            # one that is left open asks for ever
            undo.callback(consumer.close)
            self._begin(consumer)
            undo.pop_all()
        return consumer

    def _begin(self, consumer: Any) -> None:
        starts = dict[TopicPartition, int]()
        # one topic after the other: a fault names it
        for topic in (self._topics.releases, self._topics.dead_letters):
            places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
            with asking(self._settings, f"topic {topic.name}", "Read"):
                # of topics that are assigned it says at once that they may not be read
                consumer.assign(places)
                first, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
            starts |= {place: max(first[place], ends[place] - TAIL) for place in places}
        consumer.assign(list(starts))
        for place, offset in starts.items():
            consumer.seek(place, offset)

    def _accounts(self) -> None:
        self._stopped.wait(ACCOUNTS_SECONDS)
        self._warn(self._settings.ledger_topic, self._look_at_accounts())

    def _look_at_accounts(self) -> str:
        """Look who is admitted, and what clients say that they have spent; return a warning."""
        unread = list[str]()
        if self._study.authenticated:
            roll = read_roll(self._study, self._settings, say=lambda _: None, begun=False)
            ids = {client for client, standing in roll.clients.items() if standing.entries}
            self._watched.seen(lambda clients: clients.admit(ids))
        # it is the first client's to make
        with suppress(NoTopic):
            records = read_all(self._settings, self._settings.ledger_topic)
            told = [value for key, value in records if value and not is_claim(key or b"")]
            self._watched.seen(lambda clients: _account(clients, told, self._study.name, unread))
        topic = self._settings.ledger_topic
        return f"{topic} is not read as a whole: {unread[0]}" if unread else ""

    def _warn(self, name: str, text: str) -> None:
        if text:
            self._watched.warnings[name] = text
        else:
            self._watched.warnings.pop(name, None)


def skip_to_tail(consumer: Any, places: Sequence[TopicPartition]) -> None:
    """Go on no further back than `TAIL` records before the end of each partition."""
    ends = consumer.end_offsets(places)
    for place in places:
        if consumer.position(place) < ends[place] - TAIL:
            consumer.seek(place, ends[place] - TAIL)


def take(clients: Clients, topics: Topics, batches: dict[TopicPartition, list[Any]]) -> None:
    """Take note of records of the releases and the dead letters."""
    for place, records in batches.items():
        for record in records:
            if place.topic == topics.dead_letters.name:
                marks = marks_of(record.headers, record.value)
                if marks is None:
                    continue
                if marks.done:
                    clients.settled(marks[:2], marks.letter)
                else:
                    clients.letter(marks[:2], record.key, marks.reason, record.offset)
            elif (record.value or b"").startswith(RELEASE):
                clients.release(place.partition, record.offset, record.key, record.timestamp)


def _account(clients: Clients, told: Sequence[bytes], study: str, unread: list[str]) -> None:
    for value in told:
        try:
            clients.account(spends.read_spends(value), study)
        except ConfigError as error:
            # of a newer version, or of whoever may write to the topic: no page ends by it
            unread.append(str(error))
        except (PayloadError, msgspec.DecodeError):
            continue


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
NEWS_SECONDS, EVENT_SECONDS, AROUND_SECONDS = 0.05, 0.4, 1.0
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
            await asyncio.sleep(NEWS_SECONDS)


async def _send(response: web.StreamResponse, event: str, data: dict[str, Any]) -> None:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    await response.write(f"event: {event}\ndata: {text}\n\n".encode())


def _said(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
