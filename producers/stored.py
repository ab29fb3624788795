"""What a client's database holds of a study."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pipeline.messages.envelope import Headers


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a study stands at this client.

    position: Where its source continues; None at the start.
    next_seq: Number of its next release.
    sent: Partition and offset of its newest acknowledged release in the releases topic.
    latest: Event time of its newest release, in milliseconds since 1970; None if it has none.
    owed: Slots that are to be passed over before anything is released; see `producers.passing`.
    """

    position: bytes | None
    next_seq: int
    sent: tuple[int, int] | None = None
    latest: int | None = None
    owed: int = 0


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A stored release on its way."""

    seq: int
    payload: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class Tally:
    """What windows held, for the client's own eyes; none of it leaves this database."""

    records: int
    rejected: Mapping[str, int]
    clipped: int


def row_of(study: str, outgoing: Outgoing) -> tuple[object, ...]:
    """Return a row of the outbox; its sum shows bytes of another state of the file."""
    headers = msgspec.msgpack.encode(outgoing.headers)
    crc = zlib.crc32(outgoing.payload + headers)
    return study, outgoing.seq, outgoing.payload, headers, crc
