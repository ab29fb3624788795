"""The topics of a study: names, partitions, which key is where, retention, compaction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.messages.release import MAX_RELEASE_BYTES
from pipeline.study.model import Study
from pipeline.words import SECONDS

#: How far a client's clock may be ahead of Kafka's where a study forgets by seconds.
AHEAD_MS = 600_000
#: Kafka takes compressed records apart before it looks at their size, and readers get them plain:
#: else 40 KB of a stranger could become gigabytes in a worker, or need a library that it has not.
PLAIN = {"compression.type": "uncompressed"}


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
    return int(text[:-1]) * SECONDS[text[-1]] * 1000


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
