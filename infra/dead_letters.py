"""The dead letters of a study: read, sent again, or noted as done with.

The topic keeps every letter for ever. What became of one is a note behind it: a record without a
value that names the place of the letter. A letter that is sent again goes to the releases topic as
the bytes that it was, with its key, headers and time. It is then judged like any other release: its
MAC and number say whose it is and whether it counts, so a second time changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from kafka import TopicPartition

from infra.connection import (
    PATIENCE_SECONDS,
    asking,
    close_producer,
    log_reader,
    record_producer,
)
from pipeline.errors import BrokerError
from pipeline.messages.envelope import header, milliseconds
from pipeline.messages.topics import Topics, partition_of
from pipeline.settings import Settings
from pipeline.study import Study

PREFIX = "veil_dlq_"
Done = Literal["replayed", "dropped"]


class Place(NamedTuple):
    """Where the record stood in the releases topic: it is the name of its letter."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.offset}"


@dataclass(slots=True)
class Letter:
    """A record that could not be folded.

    key, value, headers: As they came.
    at: When it was set aside, milliseconds since 1970.
    done: What became of it; empty while nobody has cared.
    """

    place: Place
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    at: int
    done: str = ""

    @property
    def client(self) -> str:
        """The client id that its key claims."""
        return (self.key or b"").decode("utf-8", "replace")

    @property
    def time(self) -> int | None:
        """The time that it gave itself, milliseconds since 1970; None if it gave none."""
        try:
            return milliseconds((header(self.headers, "ce_time") or b"").decode())
        except ValueError:
            return None


def read_letters(study: Study, settings: Settings) -> list[Letter]:
    """Return every letter once, in the order in which they were set aside; BrokerError."""
    found: dict[Place, Letter] = {}
    notes: list[tuple[Place, str]] = []
    for record in _records(study, settings):
        marks = {
            name.removeprefix(PREFIX): (value or b"").decode("utf-8", "replace")
            for name, value in record.headers
            if name.startswith(PREFIX)
        }
        if not marks.get("partition", "").isdecimal() or not marks.get("offset", "").isdecimal():
            continue
        place = Place(int(marks["partition"]), int(marks["offset"]))
        if "done" in marks:
            notes.append((place, marks["done"]))
            continue
        rest = [(name, value) for name, value in record.headers if not name.startswith(PREFIX)]
        # after a crash a worker repeats those of its last batch
        found.setdefault(
            place,
            Letter(
                place, marks.get("reason", ""), marks.get("detail", ""), record.key, record.value,
                rest, record.timestamp,
            ),
        )  # fmt: skip
    for place, done in notes:
        if place in found:
            found[place].done = done
    return list(found.values())


def settle(study: Study, settings: Settings, letters: Iterable[Letter], done: Done) -> list[Place]:
    """Send letters again, or leave them; then note it. Return where they are now.

    A fault in between leaves a letter without its note: it may be sent once more.

    BrokerError if Kafka fails; ConfigError if it does not permit it.
    """
    topics, now = Topics.of(study), list[Place]()
    with asking(settings, "the cluster", "Write"):
        producer = record_producer(settings)
    try:
        for letter in letters:
            if done == "replayed":
                with asking(settings, f"topic {topics.releases.name}", "Write"):
                    sent = _again(producer, topics, letter)
                now.append(Place(sent.partition, sent.offset))
            with asking(settings, f"topic {topics.dead_letters.name}", "Write"):
                _note(producer, topics, letter, done)
    finally:
        close_producer(producer)
    return now


def _again(producer: Any, topics: Topics, letter: Letter) -> Any:
    partition = letter.place.partition
    if letter.key is not None:
        # one that somebody put elsewhere counts where its client's releases do
        partition = partition_of(letter.key, topics.releases.partitions)
    return producer.send(
        topics.releases.name, key=letter.key, value=letter.value, headers=letter.headers,
        partition=partition, timestamp_ms=letter.time,
    ).get(timeout=PATIENCE_SECONDS)  # fmt: skip


def _note(producer: Any, topics: Topics, letter: Letter, done: Done) -> None:
    marks = {"done": done, "partition": letter.place.partition, "offset": letter.place.offset}
    producer.send(
        topics.dead_letters.name, key=letter.key, value=None,
        headers=[(PREFIX + name, str(value).encode()) for name, value in marks.items()],
        partition=partition_of(letter.key or b"", topics.dead_letters.partitions),
    ).get(timeout=PATIENCE_SECONDS)  # fmt: skip


def _records(study: Study, settings: Settings) -> Iterator[Any]:
    topic = Topics.of(study).dead_letters
    places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    with (
        asking(settings, f"topic {topic.name}", "Read"),
        log_reader(settings, wait_ms=100) as consumer,
    ):
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        consumer.seek_to_beginning(*places)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(consumer.position(place) < ends[place] for place in places):
            batches = consumer.poll(timeout_ms=200)
            for place, records in batches.items():
                yield from (record for record in records if record.offset < ends[place])
            if batches:
                deadline = time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise BrokerError(f"{topic.name} gives nothing of what it has")
