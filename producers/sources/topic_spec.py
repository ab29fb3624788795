"""What a topic is called as a source: `kafka://TOPIC`, with where its fields are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from pipeline.errors import DataError
from producers.sources.base import Known, Opening, Source

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
    # what reads files has no need of Kafka's library
    from producers.sources.kafka_topic import KafkaTopic  # noqa: PLC0415

    return KafkaTopic(topic_spec(spec), asked.position, asked.settings, follow=asked.follow)
