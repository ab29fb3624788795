"""What a client's database holds of a study, and whether its rows agree with each other."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pipeline.errors import LocalStoreError
from pipeline.messages.envelope import Headers
from producers.database import Database, damaged


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


def check_whole(database: Database) -> None:
    """Refuse a mixture of two states of the file: no study's rows have gaps.

    LocalStoreError if the rows of a study do not agree with each other.
    """
    for study, next_seq in database.rows("SELECT study, next_seq FROM streams"):
        [ledger] = database.rows(
            "SELECT count(*), coalesce(max(seq), -1) FROM ledger WHERE study = ?", study
        )
        [outbox] = database.rows(
            "SELECT (SELECT count(*) FROM outbox WHERE study = ?), "
            "(SELECT count(*) FROM outbox JOIN ledger USING (study, seq) WHERE study = ?), "
            "(SELECT count(*) FROM ledger WHERE study = ? AND lost = 0 AND "
            "seq >= (SELECT min(seq) FROM outbox WHERE study = ?))",
            study, study, study, study,
        )  # fmt: skip
        spends = database.rows(
            "SELECT scope, count(*) FROM spends JOIN charged USING (study) WHERE study = ? "
            "GROUP BY scope",
            study,
        )
        # each release is paid, or the first one for all
        paid = [("record", 1)], [("release", next_seq)]
        for table, whole in (
            ("ledger", ledger == (next_seq, next_seq - 1)),
            ("outbox", len(set(outbox)) == 1),
            ("spends", spends in paid if next_seq else not spends),
        ):
            if not whole:
                raise LocalStoreError(damaged(f"study {study!r}: the {table} has gaps"))
