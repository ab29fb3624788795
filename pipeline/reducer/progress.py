"""Which releases of a client have been folded: the highest number and the gaps below it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from pipeline.errors import PayloadError, StateError

Outcome = Literal["next", "late", "duplicate"]
#: More gaps than this mean that somebody sends numbers at random.
MAX_GAPS = 1000


@dataclass(slots=True)
class Progress:
    """Progress of one client.

    ledger: The privacy ledger that its first release named.
    highest: Highest sequence number folded; -1 before the first.
    gaps: Ranges [first, last] of numbers below `highest` that have not come, in order.
    """

    ledger: str
    highest: int = -1
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many releases below the highest have not come."""
        return sum(last - first + 1 for first, last in self.gaps)

    @property
    def releases(self) -> int:
        """How many releases have come, if all were looked at from the first on."""
        return self.highest + 1 - (self.missing if self.gaps else 0)

    def accept(self, ledger: str, seq: int) -> Outcome:
        """Note a release as folded, unless it is a duplicate.

        Raises PayloadError if another ledger vouches for it, so that two producers use one client
        id; or if it would leave more gaps than an honest client can.
        """
        if ledger != self.ledger:
            raise PayloadError(
                "foreign-ledger",
                "another producer, with a ledger of its own, uses this client id; give each "
                "producer an id of its own, or restore the client's ledger",
            )
        if seq == self.highest + 1:
            self.highest = seq
            return "next"
        if seq > self.highest:
            if len(self.gaps) >= MAX_GAPS:
                raise PayloadError("too-many-gaps", "the sequence numbers of this client jump")
            self.gaps.append((self.highest + 1, seq - 1))
            self.highest = seq
            return "next"
        for i, (first, last) in enumerate(self.gaps):
            if first <= seq <= last:
                rest = [(first, seq - 1), (seq + 1, last)]
                left = [(low, high) for low, high in rest if low <= high]
                if len(self.gaps) + len(left) - 1 > MAX_GAPS:
                    raise PayloadError("too-many-gaps", "the sequence numbers of this client jump")
                self.gaps[i : i + 1] = left
                return "late"
        return "duplicate"

    def encode(self) -> bytes:
        """Write as MessagePack."""
        return msgspec.msgpack.encode((self.ledger, self.highest, self.gaps))

    @classmethod
    def decode(cls, data: bytes) -> Progress:
        """Read what `encode` wrote; StateError if it is not that."""
        try:
            ledger, highest, gaps = msgspec.msgpack.decode(
                data, type=tuple[str, int, list[tuple[int, int]]]
            )
        except msgspec.DecodeError as error:
            raise StateError("a client's stored progress cannot be read") from error
        return cls(ledger, highest, gaps)
