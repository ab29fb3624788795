"""The dead letters of a study: read, sent again, or noted as done with.

The topic keeps every letter for ever. What became of one is a note behind it: a record without a
value that names the place of the letter in the releases topic, and its own, as another record can
have stood in that place before the releases topic was made anew. A letter that is sent again goes
to the releases topic as the bytes that it was, with its key, headers and time. It is then judged
like any other release: its MAC and number say whose it is and whether it counts, so a second time
changes nothing. The MAC of one of before its client's present admission is made anew by whoever has
the study's key: nobody else can have it counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from kafka.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from infra.admissions import own_roll
from infra.kafka import PATIENCE_SECONDS, asking, producing, read_partition
from infra.keyring import read_study, study_path
from pipeline.messages.envelope import (
    DeadLetter,
    dlq_headers,
    marks_of,
    without_marks,
)
from pipeline.messages.topics import Topics, partition_of
from pipeline.settings import Settings
from pipeline.study.model import Study
from pipeline.trust import GENERATION, Stamp

#: Faults of one record, after which the others can still be sent.
OWN = (CorruptRecordError, InvalidRecordError, MessageSizeTooLargeError, RecordListTooLargeError)
Done = Literal["replayed", "dropped"]


class Place(NamedTuple):
    """Where a record stands in the releases topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.offset}"


@dataclass(slots=True)
class Letter:
    """A record that could not be folded.

    number: Its own offset, in the topic of dead letters.
    key, value, headers: As they came.
    at: When it was set aside, milliseconds since 1970.
    time: Of its record, milliseconds since 1970; None if nothing says it.
    done: What became of it; empty while nobody has cared.
    """

    place: Place
    number: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    at: int
    time: int | None = None
    done: str = ""

    @property
    def client(self) -> str:
        """The client id that its key claims."""
        return (self.key or b"").decode("utf-8", "replace")


def read_letters(study: Study, settings: Settings) -> list[Letter]:
    """Return every letter once, in the order in which they were set aside; BrokerError.

    Behind a note that it is done with, the same is a new one: it has failed again.
    """
    found: dict[Place, dict[bytes, Letter]] = {}
    letters = list[Letter]()
    for record in read_partition(settings, Topics.of(study).dead_letters.name, 0):
        marks = marks_of(record.headers, record.value)
        if marks is None:
            continue
        place = Place(marks.partition, marks.offset)
        if marks.done:
            for letter in found.get(place, {}).values():
                if marks.letter in (None, letter.number):
                    letter.done = marks.done
            continue
        # after a crash a worker repeats those of its last batch
        here, digest = found.setdefault(place, {}), _digest(record.key, record.value)
        before = here.get(digest)
        if before is not None and not before.done:
            continue
        here[digest] = Letter(
            place, record.offset, marks.reason, marks.detail, record.key, record.value,
            without_marks(record.headers), record.timestamp, marks.time,
        )  # fmt: skip
        letters.append(here[digest])
    return letters


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
    anew = _stamper(study, settings)
    # a letter that Kafka refuses must not keep the next ones; twice is as good as once
    with (
        asking(settings, "the cluster", "Write"),
        producing(settings, once=False) as producer,
    ):
        for letter in letters:
            if done == "replayed":
                with asking(settings, f"topic {topics.releases.name}", "Write"):
                    try:
                        sent = _again(producer, topics, letter, anew(letter))
                    except OWN as error:
                        settled.refused.append((letter.place, type(error).__name__))
                        continue
                settled.now.append(Place(sent.partition, sent.offset))
            with asking(settings, f"topic {topics.dead_letters.name}", "Write"):
                _note(producer, topics, letter, done)
    return settled


def _stamper(study: Study, settings: Settings) -> Callable[[Letter], bytes | None]:
    """Return what puts releases under the present admission of their clients.

    In an open study, and without the study's key, they go as they came.
    """
    if not study.authenticated or not study_path(settings, study.name).exists():
        return lambda letter: letter.value
    held = read_study(settings, study.name)
    pairs, roll = {pair.generation: pair for pair in held.pairs}, own_roll(study, settings, held)

    def stamped(letter: Letter) -> bytes | None:
        value, entries = letter.value, roll.standing(letter.client).entries
        pair = pairs.get(int.from_bytes((value or b"")[GENERATION], "little"))
        if not value or pair is None or not entries or not entries[-1].key:
            return value
        public, number, time = bytes.fromhex(entries[-1].key), pair.generation, letter.time or 0
        key = pair.mac_key(public, study=study.name, client=letter.client, generation=number)
        for entry in entries[:-1]:
            if Stamp(key, number, entry.since).fits(value, time):
                return Stamp(key, number, entries[-1].since)(value, time)
        return value

    return stamped


def _again(producer: Any, topics: Topics, letter: Letter, value: bytes | None) -> Any:
    partition = letter.place.partition
    if letter.key is not None:
        # one that somebody put elsewhere counts where its client's releases do
        partition = partition_of(letter.key, topics.releases.partitions)

    def sent(time: int | None) -> Any:
        return producer.send(
            topics.releases.name, key=letter.key, value=value, headers=letter.headers,
            partition=partition, timestamp_ms=time,
        ).get(timeout=PATIENCE_SECONDS)  # fmt: skip

    given = letter.time
    try:
        return sent(None if given is not None and given < 0 else given)
    except InvalidTimestampError:
        # what no MAC is over, anybody may have written
        return sent(None)


def _note(producer: Any, topics: Topics, letter: Letter, done: Done) -> None:
    marks = {
        "done": done, "partition": letter.place.partition, "offset": letter.place.offset,
        "letter": letter.number,
    }  # fmt: skip
    producer.send(
        topics.dead_letters.name, key=letter.key, value=None, headers=dlq_headers(marks),
        partition=partition_of(letter.key or b"", topics.dead_letters.partitions),
    ).get(timeout=PATIENCE_SECONDS)  # fmt: skip


class Keeper:
    """Sends letters of a fold that is no worker's, unless the topic of dead letters has them.

    sent: How many it had not.
    """

    def __init__(self, study: Study, settings: Settings) -> None:
        self._study, self._settings, self.sent = study, settings, 0
        self._held: set[tuple[Place, bytes]] | None = None

    def keep(self, partition: int, letters: Sequence[DeadLetter]) -> None:
        """Send those of one partition, in their order.

        BrokerError if Kafka fails; ConfigError if it does not permit it.
        """
        if not letters:
            return
        if self._held is None:
            self._held = {
                (letter.place, _digest(letter.key, letter.value))
                for letter in read_letters(self._study, self._settings)
            }
        cut = [letter.cut() for letter in letters]
        new = [
            letter
            for letter in cut
            if (Place(partition, letter.offset), _digest(letter.key, letter.value))
            not in self._held
        ]
        if new:
            self._send(partition, new)
            self.sent += len(new)

    def _send(self, partition: int, letters: Sequence[DeadLetter]) -> None:
        topics = Topics.of(self._study)
        topic, log = topics.dead_letters.name, topics.releases.name
        with (
            asking(self._settings, f"topic {topic}", "Write"),
            producing(self._settings) as producer,
        ):
            sent = [
                producer.send(
                    topic, key=letter.key, value=letter.value, partition=0,
                    headers=letter.annotated(log, partition),
                )
                for letter in letters
            ]  # fmt: skip
            for one in sent:
                one.get(timeout=PATIENCE_SECONDS)


def _digest(key: bytes | None, value: bytes | None) -> bytes:
    """Return what tells records apart that stood in the same place of two logs."""
    return hashlib.blake2b((value or b"") + b"\0" + (key or b""), digest_size=16).digest()
