"""The dead letters of a study: read, sent again, or noted as done with.

The topic keeps every letter for ever. What became of one is a note behind it: a record without a
value that names the place of the letter. A letter that is sent again goes to the releases topic as
the bytes that it was, with its key, headers and time. It is then judged like any other release: its
MAC and number say whose it is and whether it counts, so a second time changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from kafka.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from infra.connection import (
    PATIENCE_SECONDS,
    asking,
    close_producer,
    read_partition,
    record_producer,
)
from pipeline.messages.envelope import (
    dlq_headers,
    header,
    marks_of,
    milliseconds,
    without_marks,
)
from pipeline.messages.topics import Topics, partition_of
from pipeline.settings import Settings
from pipeline.study import Study

#: Faults of one record, after which the others can still be sent.
OWN = (CorruptRecordError, InvalidRecordError, MessageSizeTooLargeError, RecordListTooLargeError)
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
        except (ValueError, OverflowError):
            return None


def read_letters(study: Study, settings: Settings) -> list[Letter]:
    """Return every letter once, in the order in which they were set aside; BrokerError."""
    found: dict[Place, Letter] = {}
    notes: list[tuple[Place, str]] = []
    for record in read_partition(settings, Topics.of(study).dead_letters.name, 0):
        marks = marks_of(record.headers, record.value)
        if marks is None:
            continue
        place = Place(marks.partition, marks.offset)
        if marks.done:
            notes.append((place, marks.done))
            continue
        # after a crash a worker repeats those of its last batch
        found.setdefault(
            place,
            Letter(
                place, marks.reason, marks.detail, record.key, record.value,
                without_marks(record.headers), record.timestamp,
            ),
        )  # fmt: skip
    for place, done in notes:
        if place in found:
            found[place].done = done
    return list(found.values())


class Settled(NamedTuple):
    """What was done with letters.

    now: Where those are that were sent again.
    refused: Those that Kafka does not take, with the class of its fault; of them nothing is noted.
    """

    now: list[Place]
    refused: list[tuple[Place, str]]


def settle(study: Study, settings: Settings, letters: Iterable[Letter], done: Done) -> Settled:
    """Send letters again, or leave them; then note it.

    A fault in between leaves a letter without its note: it may be sent once more.

    BrokerError if Kafka fails; ConfigError if it does not permit it.
    """
    topics, settled = Topics.of(study), Settled([], [])
    with asking(settings, "the cluster", "Write"):
        # a letter that Kafka refuses must not keep the next ones; twice is as good as once
        producer = record_producer(settings, once=False)
    try:
        for letter in letters:
            if done == "replayed":
                with asking(settings, f"topic {topics.releases.name}", "Write"):
                    try:
                        sent = _again(producer, topics, letter)
                    except OWN as error:
                        settled.refused.append((letter.place, type(error).__name__))
                        continue
                settled.now.append(Place(sent.partition, sent.offset))
            with asking(settings, f"topic {topics.dead_letters.name}", "Write"):
                _note(producer, topics, letter, done)
    finally:
        close_producer(producer)
    return settled


def _again(producer: Any, topics: Topics, letter: Letter) -> Any:
    partition = letter.place.partition
    if letter.key is not None:
        # one that somebody put elsewhere counts where its client's releases do
        partition = partition_of(letter.key, topics.releases.partitions)

    def sent(time: int | None) -> Any:
        return producer.send(
            topics.releases.name, key=letter.key, value=letter.value, headers=letter.headers,
            partition=partition, timestamp_ms=time,
        ).get(timeout=PATIENCE_SECONDS)  # fmt: skip

    given = letter.time
    try:
        return sent(None if given is not None and given < 0 else given)
    except InvalidTimestampError:
        # no MAC is over this time: anybody may have written it
        return sent(None)


def _note(producer: Any, topics: Topics, letter: Letter, done: Done) -> None:
    marks = {"done": done, "partition": letter.place.partition, "offset": letter.place.offset}
    producer.send(
        topics.dead_letters.name, key=letter.key, value=None, headers=dlq_headers(marks),
        partition=partition_of(letter.key or b"", topics.dead_letters.partitions),
    ).get(timeout=PATIENCE_SECONDS)  # fmt: skip
