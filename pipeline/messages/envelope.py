"""What goes around a payload: CloudEvents 1.0 in Kafka headers, and dead letters with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.errors import PayloadError

#: Kafka headers: pairs of name and value.
Headers = list[tuple[str, bytes]]

BINARY = "application/octet-stream"
JSON = "application/json"


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


def json_headers(schema: str, study: str, identity: str, time: str, *, by: str = "") -> Headers:
    """Return the headers of a message of ours as JSON.

    schema: Such as "model/2"; what comes before the slash is its type.
    identity: What comes behind the study's name in its identity.
    by: Who sent it, behind the study's address, where that is no worker.
    """
    return headers(
        identity=f"{study}/{identity}", source=f"/veilstream/{study}{by}",
        kind=f"veilstream.{schema.partition('/')[0]}", schema=schema, content_type=JSON, time=time,
    )  # fmt: skip


def header(items: Iterable[tuple[str, bytes | None]], name: str) -> bytes | None:
    """Return the first header of that name, or None."""
    return next((value for key, value in items if key == name), None)


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
    """

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    fault: PayloadError

    def annotated(self, topic: str, partition: int) -> list[tuple[str, bytes | None]]:
        """Return the original headers with the reason and the origin behind them."""
        return [
            *self.headers,
            ("veil_dlq_reason", self.fault.reason.encode()),
            ("veil_dlq_detail", self.fault.detail.encode()),
            ("veil_dlq_topic", topic.encode()),
            ("veil_dlq_partition", str(partition).encode()),
            ("veil_dlq_offset", str(self.offset).encode()),
        ]
