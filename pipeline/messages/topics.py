"""The topics of a study, and what goes around a payload there.

Names, partitions, which key is where, retention, compaction; CloudEvents 1.0 in Kafka headers, and
dead letters with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from pipeline.errors import PayloadError
from pipeline.messages.release import MAX_RELEASE_BYTES
from pipeline.study.model import Study

#: How far a client's clock may be ahead of Kafka's where a study forgets by seconds.
AHEAD_MS = 600_000
#: What came, with its headers, is a dead letter as it is up to this size.
MAX_LETTER_BYTES = MAX_RELEASE_BYTES + 2**20
#: Kafka takes compressed records apart before it looks at their size, and readers get them plain:
#: else 40 KB of a stranger could become gigabytes in a worker, or need a library that it has not.
PLAIN = {"compression.type": "uncompressed"}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as it is to be created.

    config: Topic settings in Kafka's own names.
    largest: Bytes that a message has at most, as far as the study says so.
    """

    name: str
    partitions: int
    replication: int
    config: dict[str, str]
    largest: int = 0


def settings_of(replication: int, **config: str) -> dict[str, str]:
    """Return Kafka's settings of a topic, with those that every topic has.

    config: More of them, with "_" in place of ".".
    """
    settings = {key.replace("_", "."): value for key, value in config.items()} | PLAIN
    if replication > 1:
        # what is acknowledged survives a broker; the topic is written without one
        settings["min.insync.replicas"] = str(replication - 1)
    return settings


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics of one study."""

    releases: Topic
    models: Topic
    estimates: Topic
    latest: Topic
    dead_letters: Topic
    study: Topic
    clients: Topic
    authenticated: bool = False

    @classmethod
    def of(cls, study: Study, largest: int = 0) -> Topics:
        """Return the topics of `study`.

        largest: Bytes of its releases, for who is to look whether there is room for them.
        """
        stream = study.stream

        def topic(kind: str, partitions: int, **config: str) -> Topic:
            name = f"veil.{study.name}.{kind}.v1"
            settings = settings_of(stream.replication, **config)
            return Topic(name, partitions, stream.replication, settings)

        kept = str(retention_ms(stream.retention))
        forgetting = study.estimator.forgetting
        # a release from the future would make all others old
        bounded = (
            {"message_timestamp_after_max_ms": str(AHEAD_MS)}
            if forgetting is not None and forgetting.of == "seconds"
            else {}
        )
        if study.authenticated:
            # MACs are over the times of records
            bounded["message_timestamp_type"] = "CreateTime"
        compact = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.1"}
        releases = topic(
            "releases", stream.partitions, cleanup_policy="delete", retention_ms=kept,
            max_message_bytes=str(MAX_RELEASE_BYTES), **bounded,
        )  # fmt: skip
        return cls(
            releases=replace(releases, largest=largest),
            models=topic("models", 1, **compact),
            estimates=topic("estimates", 1, cleanup_policy="delete", retention_ms=kept),
            latest=topic("latest", 1, **compact),
            dead_letters=topic(
                "dlq", 1, retention_ms="-1", max_message_bytes=str(2 * MAX_RELEASE_BYTES)
            ),
            study=topic("study", 1, **compact),
            clients=topic("clients", 1, **compact),
            authenticated=study.authenticated,
        )

    def all(self) -> tuple[Topic, ...]:
        """Return every topic; nobody is admitted to an open study, and none says so."""
        always = (
            self.releases,
            self.models,
            self.estimates,
            self.latest,
            self.dead_letters,
            self.study,
        )
        return (*always, self.clients) if self.authenticated else always

    @property
    def of_clients(self) -> tuple[Topic, ...]:
        """The topics that clients use."""
        always = self.releases, self.models, self.study
        return (*always, self.clients) if self.authenticated else always


def retention_ms(text: str) -> int:
    """Return a retention such as "30d" in milliseconds; -1 for "forever"."""
    if text == "forever":
        return -1
    return int(text[:-1]) * _SECONDS[text[-1]] * 1000


_MASK = 0xFFFFFFFF
_FACTOR = 0x5BD1E995


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, in [0, partitions)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Return the 32-bit hash that Kafka's Java client takes of a key, as an unsigned number."""
    length = len(key)
    value = 0x9747B28C ^ length
    whole = length - length % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        value = value * _FACTOR & _MASK ^ word
    if length % 4:
        value = (value ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _MASK
    value = (value ^ value >> 13) * _FACTOR & _MASK
    return value ^ value >> 15


#: Kafka headers: pairs of name and value.
Headers = list[tuple[str, bytes]]

BINARY = "application/octet-stream"
JSON = "application/json"
#: How the names of headers begin that say why a letter is dead, or what became of it.
DLQ = "veil_dlq_"
#: What is left of a key that is too long for a dead letter.
LONGEST_KEY = 200
_NUMBER = re.compile(r"[0-9]{1,18}")


def headers(
    *, identity: str, source: str, kind: str, schema: str, content_type: str, time: str
) -> Headers:
    """Return the headers of a message.

    identity: Unique within the source: a client's `<client>/<study>/<seq>`.
    source: Who sent it, as a URI reference.
    kind: Reverse-DNS-like type, such as `veilstream.release`.
    schema: Name and version of the payload's schema, such as `model/2`.
    time: RFC 3339.
    """
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", identity.encode()),
        ("ce_source", source.encode()),
        ("ce_type", kind.encode()),
        ("ce_time", time.encode()),
        ("content-type", content_type.encode()),
        ("veil_schema", schema.encode()),
    ]


def json_headers(schema: str, study: str, identity: str, time: str) -> Headers:
    """Return the headers of a message of ours as JSON.

    schema: Such as "model/2"; what comes before the slash is its type.
    identity: What comes behind the study's name in its identity.
    """
    return headers(
        identity=f"{study}/{identity}", source=f"/veilstream/{study}",
        kind=f"veilstream.{schema.partition('/')[0]}", schema=schema, content_type=JSON, time=time,
    )  # fmt: skip


def header(items: Iterable[tuple[str, bytes | None]], name: str) -> bytes | None:
    """Return the first header of that name, or None."""
    return next((value for key, value in items if key == name), None)


@lru_cache(maxsize=8)
def rfc3339(seconds: float) -> str:
    """Return a time since 1970 as RFC 3339 in UTC with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def milliseconds(time: str) -> int:
    """Return what `rfc3339` wrote as milliseconds since 1970."""
    return round(1000 * datetime.fromisoformat(time).timestamp())


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of the log that could not be folded.

    offset: Where it stands in its partition.
    key, value, headers: As they came.
    fault: Why; free of payload contents.
    time: Of the record, milliseconds since 1970: a MAC may be over it.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    fault: PayloadError
    time: int = 0

    def annotated(self, topic: str, partition: int) -> list[tuple[str, bytes | None]]:
        """Return the original headers with the reason and the origin behind them.

        Those that the sender has named like ours are left out.
        """
        ours = {
            "reason": self.fault.reason, "detail": self.fault.detail, "topic": topic,
            "partition": partition, "offset": self.offset, "time": self.time,
        }  # fmt: skip
        return [*without_marks(self.headers), *dlq_headers(ours)]

    def cut(self, most: int) -> DeadLetter:
        """Return it as it came; or without value and headers, where all of it is too long.

        What Kafka keeps compressed can be of any size once it is read.

        most: Bytes of a record that the topic of dead letters takes.
        """
        texts = [self.key, self.value, *(part for pair in self.headers for part in pair)]
        if sum(map(len, filter(None, texts))) <= most:
            return self
        return replace(self, key=(self.key or b"")[:LONGEST_KEY], value=None, headers=())


class Marks(NamedTuple):
    """What a record of the topic of dead letters says of one.

    partition, offset: Where the record stood in the releases topic.
    done: What became of it, if this is a note of that; else empty.
    letter: Where in the topic of dead letters that one is, of a note; None if it does not say.
    time: Of the record, milliseconds since 1970; None if it does not say.
    """

    partition: int
    offset: int
    reason: str
    detail: str
    done: str
    letter: int | None = None
    time: int | None = None


def dlq_headers(marks: Mapping[str, object]) -> Headers:
    """Return what marks a dead letter, or a note of one, as headers."""
    return [(DLQ + name, str(value).encode()) for name, value in marks.items()]


def without_marks(items: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers that were the sender's."""
    return [(name, value) for name, value in items if not name.startswith(DLQ)]


def marks_of(items: Sequence[tuple[str, bytes | None]], value: bytes | None) -> Marks | None:
    """Read the marks of a record of the topic of dead letters; None if it is neither.

    Of headers of one name the last counts: a worker's stand behind those of who sent the record.
    Only what has no value and no reason is a note.
    """
    last = {
        name.removeprefix(DLQ): _shown(content) for name, content in items if name.startswith(DLQ)
    }
    place = last.get("partition", ""), last.get("offset", "")
    if not all(map(_NUMBER.fullmatch, place)):
        return None
    letter, time = (
        int(text) if _NUMBER.fullmatch(text := last.get(name, "")) else None
        for name in ("letter", "time")
    )
    note = value is None and "reason" not in last
    return Marks(
        int(place[0]), int(place[1]), last.get("reason", ""), last.get("detail", ""),
        last.get("done", "") if note else "", letter, time,
    )  # fmt: skip


def _shown(content: bytes | None) -> str:
    """Return text that a terminal can show: who may write to the topic may write anything."""
    text = (content or b"").decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
