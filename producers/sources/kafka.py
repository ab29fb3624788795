"""A topic as a source: JSON objects, read by offsets that the client's own database keeps.

No group is joined and nothing is committed to Kafka: what resumes is the position that was stored
with the spend. Of the records that are there, the earliest goes first by its timestamp, of equal
ones that of the lowest partition; a record that Kafka only shows later comes later.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from kafka import TopicPartition
from kafka.errors import KafkaError

from infra.kafka import asking, log_reader
from infra.preflight import Silence
from pipeline.errors import BrokerError, ConfigError, DataError
from pipeline.records.batch import Batch, Records
from pipeline.settings import Settings
from producers.sources.base import Known, Opening, Slot, Slots, Source, read_position
from producers.sources.json_lines import Objects
from producers.sources.text import RECORD_LIMIT

KIND = "topic"
FORM = (
    "kafka://TOPIC, then ? and, joined by &: field=NAME:PATH for each field that a record is made "
    "of (PATH goes down with dots), lost=skip to go on behind records that Kafka has deleted"
)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that records are read from.

    paths: Names of a record's fields, each with the keys that lead to it; none: the object itself
        is the record.
    skip_lost: Whether to go on where Kafka has deleted what was not read yet.
    """

    topic: str
    paths: Mapping[str, tuple[str, ...]]
    skip_lost: bool = False

    def record_of(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Return the record of a JSON object; a field that is not there is left out of it."""
        if not self.paths:
            return value
        found = {}
        for name, path in self.paths.items():
            at: object = value
            for key in path:
                at = at.get(key, _NOTHING) if isinstance(at, Mapping) else _NOTHING
            if at is not _NOTHING:
                found[name] = at
        return found


_NOTHING = object()


def topic_spec(spec: str) -> TopicSpec:
    """Read a specification; DataError, naming what is wrong with it."""
    _, topic, place, query, fragment = urlsplit(spec)
    if not topic or place.strip("/") or fragment:
        raise DataError(f"{spec!r} names no topic; the data owner must write {FORM}")
    paths: dict[str, tuple[str, ...]] = {}
    skip = False
    for key, value in parse_qsl(query, keep_blank_values=True):
        name, _, path = value.partition(":")
        if key == "field" and name and all(path.split(".")) and name not in paths:
            paths[name] = tuple(path.split("."))
        elif (key, value) == ("lost", "skip"):
            skip = True
        else:
            raise DataError(
                f"the source's {key}={value!r} is unknown, empty or given twice; the data owner "
                f"must write {FORM}"
            )
    return TopicSpec(topic, paths, skip)


def known_as(spec: str) -> Known:
    """Return the topic's name, and the topic without its fields."""
    topic = topic_spec(spec).topic
    return Known(f"kafka:{topic}", f"kafka://{topic}")


def opened(spec: str, asked: Opening) -> Source:
    """Open the topic; raises as `KafkaTopic`."""
    if asked.settings is None:
        raise DataError(
            f"{spec!r}: a topic is read by `veilstream produce` alone; the data owner must give "
            "a file here"
        )
    topic = topic_spec(spec)
    lacking = [name for name in asked.columns or () if topic.paths and name not in topic.paths]
    if lacking:
        raise DataError(
            f"the source names fields, but not {', '.join(map(repr, lacking))}: the data owner "
            "must add field=NAME:PATH for each column that the study reads, and for that of "
            "--event-time"
        )
    return KafkaTopic(topic, asked.position, asked.settings, follow=asked.follow)


#: Records of one partition that wait to be handed out, at most, before more are fetched.
_AHEAD = 6000
#: How long one look at Kafka may take while nothing is there, in seconds.
_LOOK = 0.2
#: An encoder that is made once: one for each position would take longer than the encoding.
_encoded = msgspec.json.Encoder().encode


#: Where one partition goes on, and the timestamp and the mark of the record before: -1 and "" if
#: there is none.
_At = tuple[int, int, str]


class _Position(msgspec.Struct, forbid_unknown_fields=True, tag="kafka", tag_field="kind"):
    """Where all partitions go on; records counts those that were handed out."""

    topic: str
    records: int
    at: dict[int, _At]


class KafkaTopic(Source):
    """The records of a topic.

    spec: Which, and where the fields of a record are.
    position: Behind which slot to resume; None is the first record that is still there.
    settings: Which Kafka; see `Settings.of_source`.
    follow: Whether to wait for more when everything that was there at the start has been read.

    Raises DataError if the topic is not there, was made anew, or has lost records that were not
    read; BrokerError, ConfigError if Kafka cannot be asked.
    """

    def __init__(
        self, spec: TopicSpec, position: bytes | None, settings: Settings, *, follow: bool
    ) -> None:
        self._spec, self._follow, self.identity = spec, follow, f"kafka:{spec.topic}"
        self._settings, self._own = settings.of_source(), bool(settings.source_kafka)
        resumed = None if position is None else self._read_position(position)
        self._place = resumed or _Position(spec.topic, 0, {})
        self._waiting: dict[int, deque[Any]] = {}
        with self._asking():
            self._consumer = log_reader(
                self._settings, wait_ms=int(_LOOK * 1000), auto_offset_reset="none",
                isolation_level="read_committed", max_poll_records=_AHEAD,
            )  # fmt: skip
        self._silence = Silence(self._settings)
        try:
            with self._asking():
                self._begin(dict(self._place.at))
        except BaseException:
            self.close()
            raise

    def _begin(self, resumed: dict[int, _At]) -> None:
        topic = self._spec.topic
        numbers = self._consumer.partitions_for_topic(topic)
        if not numbers or not resumed.keys() <= numbers:
            raise DataError(
                f"topic {topic!r} is not there, or has fewer partitions than were read from; the "
                "data owner must name an existing one, as `kafka-topics --list` shows it"
            )
        self._partitions = {TopicPartition(topic, number): number for number in sorted(numbers)}
        # several are joined as Kafka shows them
        self.repeats = len(numbers) == 1
        self._consumer.assign(list(self._partitions))
        first = self._consumer.beginning_offsets(list(self._partitions))
        last = self._consumer.end_offsets(list(self._partitions))
        self._end, self._check = dict[int, int](), dict[int, tuple[int, str]]()
        for partition, number in self._partitions.items():
            offset, before, mark = resumed.get(number, (first[partition], -1, ""))
            if offset > last[partition]:
                raise self._made_anew()
            if offset < first[partition]:
                self._check_lost(number, first[partition] - offset)
                offset, before, mark = first[partition], -1, ""
            self._place.at[number], self._end[number] = (offset, before, mark), last[partition]
            self._waiting[number] = deque()
            # the record before says whether this is still the topic that was read
            again = before >= 0 and offset > first[partition]
            self._check[number] = before, mark
            self._consumer.seek(partition, offset - 1 if again else offset)
        self._first = self._passed()

    @property
    def ended(self) -> bool:
        """As `Source.ended`, of what was there at the start."""
        return not self._follow and not any(self._waiting.values()) and not self._behind()

    @property
    def progress(self) -> float | None:
        """As `Source.progress`, of offsets."""
        if self._follow:
            return None
        if self.ended:
            return 1.0
        whole = sum(self._end.values()) - self._first
        return min(1.0, (self._passed() - self._first) / max(whole, 1))

    def read(self, limit: int, timeout: float) -> Sequence[Slot]:
        """As `Source.read`.

        BrokerError, ConfigError if Kafka fails in a way that a retry cannot mend; DataError as at
        the start.
        """
        deadline, taken = time.monotonic() + timeout, list[tuple[int, Any]]()
        before, done = dict(self._place.at), self._place.records
        while len(taken) < limit and not self.ended:
            # the order of what was there at the start does not depend on how Kafka answers
            if self._behind() or not any(self._waiting.values()):
                left = deadline - time.monotonic()
                if taken and left <= 0:
                    break
                self._fetch(min(max(left, 0.0), _LOOK))
                # what waits here must not keep the caller from its signals and its heartbeat
                if left <= 0 and (self._behind() or not any(self._waiting.values())):
                    break
                continue
            taken += self._run(limit - len(taken))
        if not taken:
            return []

        def behind(number: int) -> _Position:
            last = dict(taken[: number + 1])
            passed = {n: (r.offset + 1, r.timestamp, _mark(r)) for n, r in last.items()}
            return _Position(self._spec.topic, done + number + 1, {**before, **passed})

        self._place = behind(len(taken) - 1)
        return Slots(
            self._parsed([record.value for _, record in taken]),
            lambda number: (_encoded(behind(number)), done + number + 1),
            lambda number: f"partition {taken[number][0]}, offset {taken[number][1].offset}",
        )

    def close(self) -> None:
        """Close the connection."""
        with suppress(KafkaError, AttributeError):
            self._consumer.close()

    def _passed(self) -> int:
        """Return the sum of the offsets where partitions go on."""
        return sum(offset for offset, *_ in self._place.at.values())

    def _behind(self) -> bool:
        """Whether a partition has nothing here, and not all is fetched that it had at the start."""
        # control records and deleted ones have offsets and never come
        return any(
            not self._waiting[number] and self._consumer.position(partition) < self._end[number]
            for partition, number in self._partitions.items()
        )

    def _fetch(self, seconds: float) -> None:
        # a partition that is far ahead of the others waits for them
        full = [p for p, number in self._partitions.items() if len(self._waiting[number]) > _AHEAD]
        with self._asking():
            self._consumer.pause(*full)
            batches = self._consumer.poll(timeout_ms=int(seconds * 1000))
            self._silence.after(batches)
            self._consumer.resume(*full)
        for partition, records in batches.items():
            number = self._partitions[partition]
            at, end = self._place.at[number][0], self._end[number]
            # only what was asked for again lies before it
            while records and records[0].offset < at:
                before, (time_then, mark) = records.pop(0), self._check[number]
                if before.timestamp != time_then or mark != _mark(before):
                    raise self._made_anew()
            if not self._follow:
                while records and records[-1].offset >= end:
                    records.pop()
            self._waiting[number].extend(records)

    def _run(self, limit: int) -> list[tuple[int, Any]]:
        """Hand out what comes next of one partition, at most until another's turn or its last."""
        heads = sorted(
            (waiting[0].timestamp, number) for number, waiting in self._waiting.items() if waiting
        )
        number, others = heads[0][1], heads[1:2]
        waiting, taken = self._waiting[number], list[tuple[int, Any]]()
        while waiting and len(taken) < limit:
            if others and others[0] < (waiting[0].timestamp, number):
                break
            taken.append((number, waiting.popleft()))
        return taken

    def _parsed(self, values: list[bytes | None]) -> Batch:
        lost = dict[int, str]()
        for at, value in enumerate(values):
            if value is None:
                lost[at] = "a message without a value"
            elif len(value) > RECORD_LIMIT:
                lost[at] = "the message is too long"
        texts = [b"{}" if at in lost else value or b"" for at, value in enumerate(values)]
        found = Objects(texts, lost)
        if not self._spec.paths:
            return found
        records = [self._spec.record_of(found.record(at) or {}) for at in range(len(found))]
        return Records(records, found.lost)

    def _read_position(self, position: bytes) -> _Position:
        topic = self._spec.topic
        return read_position(
            position, _Position, lambda at: at.topic == topic, f"topic {topic!r}", "this topic"
        )

    def _check_lost(self, number: int, lost: int) -> None:
        if not self._spec.skip_lost:
            raise DataError(
                f"topic {self._spec.topic!r}: up to {lost} records of partition {number} were "
                "deleted by Kafka before this client had read them; the data owner must say "
                "lost=skip in the source to go on without them, and have the topic kept for longer"
            )

    def _made_anew(self) -> DataError:
        return DataError(
            f"topic {self._spec.topic!r} is not the one that was released from: it was deleted and "
            "made anew, and a client reads one source for a study. If its records are new, the "
            "data owner must have a client of another id read it, and say so once with --other-data"
        )

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn faults of the library into ours, with the settings that the source's Kafka has."""
        try:
            with asking(self._settings, f"topic {self._spec.topic}", "Read"):
                yield
        except (BrokerError, ConfigError) as error:
            if not self._own:
                raise
            named = str(error).replace("VEILSTREAM_KAFKA", "VEILSTREAM_SOURCE_KAFKA")
            raise type(error)(named) from error


def _mark(record: Any) -> str:
    """Return what tells a record from another of the same time."""
    key, value = (
        b"-" if part is None else b"+" + bytes(part) for part in (record.key, record.value)
    )
    return hashlib.blake2b(b"%d %b%b" % (len(key), key, value), digest_size=8).hexdigest()
