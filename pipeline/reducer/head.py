"""The counters of a partition, and which releases of each client have been folded."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal

import msgspec

from pipeline.errors import PayloadError, StateError
from pipeline.release.task import Task

#: Version of the stored form; a worker refuses state of another version.
SCHEMA = 12
HEAD, SUMS = "head", "sums."


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a snapshot, each a function of the log alone.

    next_offset: Watermark: the state holds exactly the log below it.
    begun: Where the log began that was folded: 0 unless a rebuild went on without the releases
        before it.
    duplicates, dead_letters: Records of the log that changed no sum.
    forgotten: Releases that are in no sum any more, or never were, because they are too old.
    erased: Releases of erased clients that have been passed over.
    slots: Record slots of all releases that came, forgotten and erased ones included: what models
        tell clients as `watermark`. It never goes back, or new releases would look old.
    newest: Time of the newest release, in microseconds since 1970; 0 before the first.
    missing: Releases of all clients below their highest numbers that have not come.
    furthest: The highest number of a release of any client; -1 before the first.
    largest: The most record slots of one client that have counted, late ones too; 0 where the
        beginning of the log was left out on purpose.
    refused: Releases that have come and do not count, as their clients sent too many.
    words: Admissions, revocations and the like that the log holds, which are no releases.
    clients, erased_clients, admitted, buckets: How many of each belong to the snapshot: a store
        that lost some is found out.
    """

    schema: int = SCHEMA
    revision: str
    next_offset: int = 0
    duplicates: int = 0
    dead_letters: int = 0
    forgotten: int = 0
    erased: int = 0
    words: int = 0
    slots: int = 0
    newest: int = 0
    missing: int = 0
    refused: int = 0
    furthest: int = -1
    largest: int = 0
    clients: int = 0
    erased_clients: int = 0
    admitted: int = 0
    buckets: int = 0
    begun: int = 0

    @property
    def folded(self) -> int:
        """How many records of the log have entered the sums."""
        aside = self.dead_letters + self.duplicates + self.erased + self.words
        return self.next_offset - aside


def read_head(task: Task, fields: dict[str, bytes]) -> Head:
    """Return the head among the stored fields of a partition.

    Raises StateError if it was written under another schema or study revision, or is damaged.
    """
    try:
        head = msgspec.msgpack.decode(fields[HEAD], type=Head)
    except (KeyError, msgspec.DecodeError) as error:
        raise StateError(
            "the stored state has no readable header, which holds its revision and "
            "counts; the operator must run `veilstream state rebuild`"
        ) from error
    if head.schema != SCHEMA:
        raise StateError(
            f"the stored state has schema {head.schema}, this version reads {SCHEMA}; run "
            "`veilstream state rebuild`, or, where clients were updated too, give the study a new "
            "name"
        )
    if head.revision != task.revision:
        raise StateError(
            f"the stored state belongs to revision {head.revision} of the study, this file is "
            f"revision {task.revision}; restore the study file or give the study a new name"
        )
    return head


Outcome = Literal["next", "late", "duplicate"]
#: More gaps than this mean that somebody sends numbers at random.
MAX_GAPS = 1000


@dataclass(slots=True)
class Progress:
    """Progress of one client.

    ledger: The privacy ledger that its first release named.
    highest: Highest sequence number folded; -1 before the first.
    gaps: Ranges [first, last] of numbers below `highest` that have not come, in order.
    refused: How many have come and do not count, as the client sent too many.
    recent: Offsets of its newest releases that count, in order, where the study has a rate.
    slots: Record slots of its releases up to the highest, as that one says.
    counted: Record slots of those that count.
    """

    ledger: str
    highest: int = -1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    refused: int = 0
    recent: list[int] = field(default_factory=list)
    slots: int = 0
    counted: int = 0

    @property
    def missing(self) -> int:
        """How many releases below the highest have not come."""
        return sum(last - first + 1 for first, last in self.gaps)

    def accept(self, ledger: str, seq: int, ends: int = 0, slots: int = 0) -> Outcome:
        """Note a release as folded, unless it is a duplicate.

        ends, slots: Record slots of the client's releases with this one, as it says; and its own.

        Raises PayloadError if another ledger vouches for it, so that two producers use one client
        id; if it would leave more gaps than an honest client can; or if it says that others lie
        before it than have come.
        """
        if ledger != self.ledger:
            raise PayloadError(
                "foreign-ledger",
                "another producer, with a ledger of its own, uses this client id; give each "
                "producer an id of its own, or restore the client's ledger",
            )
        if seq > self.highest:
            between = ends - slots - self.slots
            if between if seq == self.highest + 1 else between < 0:
                raise PayloadError(
                    "wrong-place",
                    "the release says that its client has released other record slots before it "
                    "than have come; the operator must look at this client",
                )
            if seq > self.highest + 1:
                if len(self.gaps) >= MAX_GAPS:
                    raise PayloadError("too-many-gaps", "the sequence numbers of this client jump")
                self.gaps.append((self.highest + 1, seq - 1))
            self.highest, self.slots = seq, ends
            self.counted += slots
            return "next"
        # the one that begins last of those that may hold it
        at = bisect_right(self.gaps, seq, key=itemgetter(0)) - 1
        if at >= 0 and seq <= self.gaps[at][1]:
            first, last = self.gaps[at]
            rest = [(first, seq - 1), (seq + 1, last)]
            left = [(low, high) for low, high in rest if low <= high]
            if len(self.gaps) + len(left) - 1 > MAX_GAPS:
                raise PayloadError("too-many-gaps", "the sequence numbers of this client jump")
            self.gaps[at : at + 1] = left
            self.counted += slots
            return "late"
        return "duplicate"

    def encode(self) -> bytes:
        """Write as MessagePack."""
        return msgspec.msgpack.encode(
            (
                self.ledger, self.highest, self.gaps, self.refused, self.recent,
                self.slots, self.counted,
            )
        )  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        """Read what `encode` wrote; StateError if it is not that."""
        try:
            found = msgspec.msgpack.decode(
                data, type=tuple[str, int, list[tuple[int, int]], int, list[int], int, int]
            )
        except msgspec.DecodeError as error:
            raise StateError(
                "the stored state cannot be read where it says how far a client's releases "
                "are folded; the operator must run `veilstream state rebuild`"
            ) from error
        return cls(*found)
