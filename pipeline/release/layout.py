"""What a release of a study holds, number by number: the form that client and worker share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pipeline.privacy.mechanism import Channel
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT

#: The most numbers of a release, its point included: 8 MiB, which is what the topic takes, without
#: 4 KiB for header and MAC, and for the key and the headers that Kafka counts too.
MOST_NUMBERS = 2**20 - 512


class Field(NamedTuple):
    """Some numbers of a release that have one name, one unit and one bound.

    length: How many there are.
    exponent: The unit as a power of two: a real value is the stored number times 2^exponent.
    largest: The most that an honest client can send, as an absolute stored number.
    per_slot: How much more for each record slot that a release has beyond `window.records`.
    """

    name: str
    length: int
    exponent: int
    largest: float
    per_slot: float = 0.0

    @classmethod
    def of(cls, name: str, length: int, channel: Channel, slots: int) -> Field:
        """Return the field of numbers that a channel noises, in windows of so many slots."""
        return cls(name, length, channel.exponent, channel.largest(slots), channel.per_slot)


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of every release of a study, in their order.

    All releases of a study are equally long: what one at the public start has less is zeros.

    number: Type of all numbers: integers on a lattice, or floats of a study without privacy.
    point: The expansion point.
    start, later: What follows it at the public start, and at any later model.
    """

    number: Literal["<i8", "<f8"]
    point: Field
    start: tuple[Field, ...]
    later: tuple[Field, ...]

    @classmethod
    def noised(
        cls, size: int, later: Sequence[Field], start: Sequence[Field] | None = None
    ) -> Layout:
        """Return the layout of a study with noise.

        size: Number of coefficients.
        start: By default as `later`.
        """
        point = Field("point", size, COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT)
        return cls("<i8", point, tuple(later if start is None else start), tuple(later))

    @classmethod
    def without_noise(cls, size: int, furthest: float, fields: Sequence[Field]) -> Layout:
        """Return the layout of a study without privacy; no coefficient is beyond `furthest`."""
        return cls("<f8", Field("point", size, 0, furthest), tuple(fields), tuple(fields))

    def at(self, version: int) -> tuple[Field, ...]:
        """Return the fields of a release at this model version."""
        return self.later if version else self.start

    @property
    def length(self) -> int:
        """How many numbers follow the point, zeros included."""
        return max(sum(field.length for field in fields) for fields in (self.start, self.later))

    def columns(self, version: int) -> dict[str, slice]:
        """Return where each field stands among the numbers behind the point."""
        found, at = {}, 0
        for field in self.at(version):
            found[field.name] = slice(at, at + field.length)
            at += field.length
        return found

    @property
    def text(self) -> str:
        """Names, lengths and units in one line: two layouts with one text read alike."""
        parts = [
            ",".join(f"{field.name}:{field.length}:{field.exponent}" for field in fields)
            for fields in ((self.point,), self.start, self.later)
        ]
        return ";".join((self.number, *parts))
