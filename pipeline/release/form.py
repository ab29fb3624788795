"""The bytes of a release: a fixed header, the numbers of the study's layout, room for a MAC.

Little-endian, without gaps, and of one length for all releases of a study: a fetch batch is one
structured array. docs/wire.md has the offsets.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeline.privacy.memory import EPOCHS
from pipeline.release.layout import Layout
from pipeline.study.growth import Growth
from pipeline.types import Integers

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
