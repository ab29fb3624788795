"""What goes around a payload: CloudEvents 1.0 in Kafka headers, and dead letters with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from pipeline.errors import PayloadError
from pipeline.messages.release import MAX_RELEASE_BYTES

#: Kafka headers: pairs of name and value.
Headers = list[tuple[str, bytes]]

BINARY = "application/octet-stream"
JSON = "application/json"
#: How the names of headers begin that say why a letter is dead, or what became of it.
DLQ = "veil_dlq_"
#: What came, with its headers, is a dead letter as it is up to this size.
MAX_LETTER_BYTES = MAX_RELEASE_BYTES + 2**20
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

    def cut(self) -> DeadLetter:
        """Return it as it came; or without value and headers, where all of it is too long.

        What Kafka keeps compressed can be of any size once it is read.
        """
        texts = [self.key, self.value, *(part for pair in self.headers for part in pair)]
        if sum(map(len, filter(None, texts))) <= MAX_LETTER_BYTES:
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
