"""Marks of the first records of a source, by which equal records are known under any name.

A mark is a hash of the first n records that can be read, n = 4, 8, 16, ... 1024: files grow at
their end, so two of them are compared at the largest n that both have. Values are hashed, not
bytes, so that neither the form of the file nor its quotes, line ends or order of columns make other
data.

A header makes no mark. Fewer than four records are no sign of anything: one binary column agrees in
three records by chance once in eight. So a source that is shorter has one mark, of all that it
holds, which only another one of the same length can equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from producers.sources import Source

#: Fewest records that tell one source from another, and the most that are looked at.
FEWEST = 4
MOST = 1024

#: Marks by the number of records that they are of.
Marks = Mapping[int, str]


class Head:
    """The first records of a source, as they come; none of them is kept."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._count = 0
        self._marks: dict[int, str] = {}

    @property
    def full(self) -> bool:
        """Whether more records would change nothing."""
        return self._count >= MOST

    @property
    def marks(self) -> Marks:
        """The marks of what has come; none if no record has."""
        if 0 < self._count < FEWEST:
            return {self._count: self._digest.hexdigest()}
        return dict(self._marks)

    def take(self, record: Mapping[str, object] | None) -> None:
        """Take the next record; one that cannot be read marks nothing."""
        if record is None or self.full:
            return
        values = sorted((name, _plain(value)) for name, value in record.items())
        self._digest.update(json.dumps(values, default=str).encode() + b"\n")
        self._count += 1
        if self._count >= FEWEST and self._count & (self._count - 1) == 0:
            self._marks[self._count] = self._digest.hexdigest()


def head_of(source: Source) -> Head:
    """Read the head of a source that was opened at its start, as far as it is there already."""
    head = Head()
    while not head.full and (slots := source.read(MOST, 0.0)):
        for slot in slots:
            head.take(slot.record)
    return head


def compare(one: Marks, other: Marks) -> int | None:
    """Return how many first records two sources share: 0 for none; None if nobody can tell.

    A source may have more than that in common; and 0 may mean fewer than the marks are of.
    """
    if not (both := one.keys() & other.keys()):
        return None
    most = max(both)
    return most if one[most] == other[most] else 0


def _plain(value: object) -> str:
    """Return a value in one form, whether it came as text or as a number."""
    try:
        return repr(float(value)) if isinstance(value, str | int | float) else json.dumps(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)
