"""Checksums of what is stored: each value ends with one, and a head with those of all together.

They find accidents of memory, disk and copies: a changed bit, a value under another name or of
another study, a part that is lost or older than the rest. In a study with keys they are MACs (keyed
BLAKE2b, RFC 7693), which whoever may write to the store cannot make. Where there are none, such a
state is found out by folding the log again.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

#: Bytes of a checksum that are stored: one of 2^64 accidents passes.
SIZE = 8
#: Bytes of a checksum as it enters the total. What is not stored nobody can see: from stored values
#: of different times, others could be chosen whose checksums come to the same.
WHOLE = 16


class Damaged(Exception):
    """A stored value is not what was written there; its argument is the name of the field."""


class Place(NamedTuple):
    """Where values are stored.

    key: In the store.
    secret: Key of the MACs, at most 64 bytes; empty where checksums find accidents alone.
    """

    key: str
    secret: bytes = b""


def checksum(place: Place, name: str, data: bytes) -> bytes:
    """Return the checksum of a value, bound to the key and the field that hold it."""
    where = f"{place.key}\0{name}\0".encode()
    text = len(where).to_bytes(4) + where + data
    return blake2b(text, key=place.secret, digest_size=WHOLE).digest()


def stamped(place: Place, name: str, data: bytes) -> bytes:
    """Return a value with its checksum behind it."""
    return data + checksum(place, name, data)[:SIZE]


def opened(place: Place, name: str, stored: bytes) -> bytes:
    """Return the value that `stamped` was given; Damaged if it is another, or was elsewhere."""
    data = stored[:-SIZE]
    if not hmac.compare_digest(stamped(place, name, data), stored):
        raise Damaged(name)
    return data


@dataclass(slots=True)
class Checksums:
    """The checksums of the fields of one key as they are stored, and what they come to.

    A commit changes some fields, and the total without a look at the others.
    """

    held: dict[str, bytes] = field(default_factory=dict)
    total: int = 0

    def stamp(self, place: Place, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return fields as they are to be stored, and count them in place of what they were."""
        found = {}
        for name, data in fields.items():
            mark = checksum(place, name, data)
            self._count(name, mark)
            found[name] = data + mark[:SIZE]
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Count some fields no more."""
        for name in names:
            self.total ^= int.from_bytes(self.held.pop(name, b""))

    def clear(self) -> None:
        """Begin anew: nothing is stored."""
        self.held.clear()
        self.total = 0

    def open(self, place: Place, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the values of stored fields, and count them; Damaged names one that is not right.

        Whether none is lost or of another time shows in the total.
        """
        found = {}
        for name, stored in fields.items():
            data = stored[:-SIZE]
            mark = checksum(place, name, data)
            if not hmac.compare_digest(mark[:SIZE], stored[-SIZE:]):
                raise Damaged(name)
            self._count(name, mark)
            found[name] = data
        return found

    def _count(self, name: str, mark: bytes) -> None:
        self.total ^= int.from_bytes(self.held.get(name, b"")) ^ int.from_bytes(mark)
        self.held[name] = mark
