"""Checksums of what is stored: each value ends with one, and a head with those of all together.

They find accidents of memory, disk and copies: a changed bit, a value under another name or of
another study, a part that is lost or older than the rest. Whoever may write to the store can make
them anew; such a state is found out by folding the log again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

#: Bytes of a checksum: one of 2^64 accidents passes.
SIZE = 8


class Damaged(Exception):
    """A stored value is not what was written there; its argument is the name of the field."""


def checksum(key: str, name: str, data: bytes) -> int:
    """Return the checksum of a value, bound to the key and the field that hold it."""
    place = f"{key}\0{name}\0".encode()
    digest = blake2b(len(place).to_bytes(4) + place + data, digest_size=SIZE).digest()
    return int.from_bytes(digest)


def stamped(key: str, name: str, data: bytes) -> bytes:
    """Return a value with its checksum behind it."""
    return data + checksum(key, name, data).to_bytes(SIZE)


def opened(key: str, name: str, stored: bytes) -> bytes:
    """Return the value that `stamped` was given; Damaged if it is another, or was elsewhere."""
    data = stored[:-SIZE]
    if stamped(key, name, data) != stored:
        raise Damaged(name)
    return data


@dataclass(slots=True)
class Checksums:
    """The checksums of the fields of one key as they are stored, and what they come to.

    A commit changes some fields, and the total without a look at the others.
    """

    held: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def stamp(self, key: str, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return fields as they are to be stored, and count them in place of what they were."""
        found = {}
        for name, data in fields.items():
            mark = checksum(key, name, data)
            self.total ^= self.held.get(name, 0) ^ mark
            self.held[name] = mark
            found[name] = data + mark.to_bytes(SIZE)
        return found

    def remove(self, names: Iterable[str]) -> None:
        """Count some fields no more."""
        for name in names:
            self.total ^= self.held.pop(name, 0)

    def clear(self) -> None:
        """Begin anew: nothing is stored."""
        self.held.clear()
        self.total = 0

    def open(self, key: str, fields: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the values of stored fields, and count them; Damaged names one that is not right.

        Whether none is lost or of another time shows in the total.
        """
        found = {}
        for name, stored in fields.items():
            found[name] = opened(key, name, stored)
            self.held[name] = int.from_bytes(stored[-SIZE:])
            self.total ^= self.held[name]
        return found
