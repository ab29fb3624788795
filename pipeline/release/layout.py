"""What a release of a study holds, number by number, and its bytes: client and worker share both.

The bytes are a fixed header, the numbers of the study's layout, and room for a MAC: little-endian,
without gaps, and of one length for all releases of a study, so that a fetch batch is one structured
array. docs/wire.md has the offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.privacy.mechanism import Channel
from pipeline.privacy.memory import EPOCHS
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT
from pipeline.release.policy import Growth
from pipeline.types import Integers

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


#: Releases as one structured array, with the fields of `HEADER`, "point", "sums" and "mac".
Rows = NDArray[np.void]

#: The first bytes of every release, and the number of this form.
MAGIC, FORM = int.from_bytes(b"VEIL", "little"), 2
#: What stands for a model without a watermark of its partition.
NO_PARTITION = -1
#: Who, of what, at which model. Digests are 8 or 16 bytes. In an open study ticket, MAC and what is
#: reserved are zeros; else this is the generation of the study's key.
HEADER = np.dtype(
    [
        ("magic", "<u4"), ("form", "<u2"), ("reserved", "<u2"),
        ("study", "<u8"), ("revision", "<u8"), ("claim", "<u8"), ("layout", "<u8"),
        ("records", "<u4"), ("partitions", "<u4"),
        ("client", "<u8", (2,)), ("ledger", "<u8", (2,)),
        ("seq", "<i8"), ("version", "<i8"),
        ("model_watermark", "<i8"), ("partition_watermark", "<i8"),
        ("ticket", "<u8", (2,)),
    ]
)  # fmt: skip
MAC = ("mac", "<u8", (2,))
#: Before it where windows grow or noise remembers, in a form of its own. held, before: slots of all
#: releases of the client before this one, and of those of its chain; chain, number: which chain,
#: and which release of it, from 1; 0 at the public start, which is in no chain. starts: for each
#: epoch of models the number of the chain's first release in it or in a later one; 0 where there
#: is none yet.
CHAIN_FORM = 3
CHAIN = np.dtype(
    [
        ("held", "<i8"), ("before", "<i8"), ("chain", "<i8"), ("number", "<i8"),
        ("starts", "<i8", (EPOCHS,)),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FormHeader:
    """What the releases of a study have in common beside their layout: public names and numbers.

    study: Its name.
    revision: The one that releases name, 16 hexadecimal digits.
    claim: What the budget promises, in one line.
    partitions: Of the topic.
    growth: How large windows are.
    chained: Whether a release depends on those before it, by its size or by its noise.
    noised: Whether numbers are noised.
    """

    study: str
    revision: str
    claim: str
    partitions: int
    growth: Growth
    chained: bool
    noised: bool


class Form:
    """The form of one study's releases.

    Where windows grow or noise remembers, it has the fields of `CHAIN` before its MAC.

    dtype: Of a whole payload.
    blank: What every release of the study has in common, the rest zeros: shape (1,).

    Raises ValueError if there is no revision, as in a task that only plans.
    """

    def __init__(self, layout: Layout, header: FormHeader) -> None:
        revision = bytes.fromhex(header.revision)
        if len(revision) != HEADER["revision"].itemsize:
            raise ValueError("a release names the revision of its study: make its task by task_of")
        self.layout, self.noised, self.chained = layout, header.noised, header.chained
        self.growth = header.growth
        self.slots, self.most_records = self.growth.records, self.growth.largest
        number, point = self.layout.number, self.layout.point.length
        self.number = CHAIN_FORM if self.chained else FORM
        body = [("point", number, (point,)), ("sums", number, (self.layout.length,))]
        chain = CHAIN.descr if self.chained else []
        self.dtype = np.dtype([*HEADER.descr, *body, *chain, MAC])
        self.blank: Rows = np.zeros(1, self.dtype)
        common = {
            "magic": MAGIC,
            "form": self.number,
            "study": short(header.study),
            "revision": int.from_bytes(revision, "little"),
            "claim": short(header.claim),
            "layout": short(self.layout.text),
            "partitions": header.partitions,
            "records": self.slots,
        }
        for name, value in common.items():
            self.blank[name] = value

        #: Where the chain's fields begin, in bytes.
        self.chain_at = self.dtype.itemsize - (CHAIN.itemsize + 16 if self.chained else 16)
        #: Name and version of the form in the headers of a message.
        self.schema = f"release/{self.number}"
        self.partitions = header.partitions
        #: The first bytes of every release, up to its own numbers.
        self.common_bytes = self.blank.tobytes()[: HEADER.fields["records"][1]]  # type: ignore[index]

    def common(self, name: str) -> int:
        """Return a field of the header that all releases have in common."""
        return int(self.blank[name][0])


def slots_of(rows: Rows, slots: int) -> Integers:
    """Return the record slots of each release, shape (n,); `slots` as `ends_of` takes it."""
    if "held" in (rows.dtype.names or ()):
        return rows["records"].astype(np.int64)
    return np.full(len(rows), slots, dtype=np.int64)


def ends_of(rows: Rows, slots: int) -> Integers:
    """Return the record slots of each client with its release of these, shape (n,).

    slots: `window.records`.
    """
    if "held" in (rows.dtype.names or ()):
        ends: Integers = rows["held"] + rows["records"].astype(np.int64)
        return ends
    same: Integers = (rows["seq"] + 1) * slots
    return same


def short(text: str) -> int:
    """Return eight bytes that stand for a public text, as a number."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=1 << 16)
def identity(name: bytes) -> bytes:
    """Return the sixteen bytes that stand for the id of a client or a ledger."""
    return hashlib.blake2b(name, digest_size=16).digest()
