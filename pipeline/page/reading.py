"""The threads that follow a study's topics for a page; they only read, and go on after a fault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError

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
