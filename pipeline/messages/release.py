"""Releases one by one: written of sealed answers alone, and read for people and reconciliation.

Only the two sealed types of `pipeline.release.privatise` can be written; raw summaries have no
encoder. Workers read whole batches, see `incoming`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PayloadError, PrivacyError
from pipeline.release.form import (
    CHAIN,
    CHAIN_FORM,
    FORM,
    HEADER,
    MAGIC,
    NO_PARTITION,
    Rows,
    identity,
)
from pipeline.release.privatise import Answer, OpenAnswer
from pipeline.release.task import Task, form_of

#: The header as `form.HEADER` has it, up to the ticket: what all releases share, and its own.
_OWN, _NO_TICKET = struct.Struct("<40sII16s16sqqqq"), bytes(16)
_MAC_BYTES = 16
#: A release is far smaller; a larger payload is refused before it is looked at.
MAX_RELEASE_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Header:
    """Who sent a release, of what study and at which model.

    revision: The study revision it was made under, 16 hexadecimal digits.
    study, claim, layout: Digests, as hexadecimal digits: of the study's name; of the policy that
        the client kept, as `Guarantee.claim` words it; of names, lengths and units of the numbers.
    partitions: Of the topic, as the client's study file says.
    records: Public number of record slots; of a study without privacy, how many records entered.
    client, ledger: Digests of who sent it, whose id is the record's key, and of the ledger that
        vouches for it.
    seq: Number of the release, gap-free from 0.
    version: Of the model at which it was taken.
    model_watermark: Record slots folded before that model, as its message says: the age of the
        release.
    partition_watermark: Of these, the slots of the client's own partition, where the study has
        several paths.
    held, before, chain, number: As `form.CHAIN` has them; None in a study without chains.
    """

    study: str
    revision: str
    claim: str
    layout: str
    partitions: int
    records: int
    client: str
    ledger: str
    seq: int
    version: int
    model_watermark: int
    partition_watermark: int | None
    held: int | None = None
    before: int | None = None
    chain: int | None = None
    number: int | None = None

    def ends(self, slots: int) -> int:
        """Return the record slots of its client's releases, this one included.

        slots: `window.records`.
        """
        return (self.seq + 1) * slots if self.held is None else self.held + self.records


@dataclass(frozen=True, slots=True)
class Release:
    """One release.

    point: Where it was taken, as stored: shape (d,).
    parts: The numbers by name, as stored; the task's layout has their units.
    """

    header: Header
    point: NDArray[np.int64] | NDArray[np.float64]
    parts: Mapping[str, NDArray[np.int64] | NDArray[np.float64]]


def seal(
    task: Task, answer: Answer | OpenAnswer, *, client: str, ledger: str, seq: int,
    held: int | None = None,
) -> bytes:  # fmt: skip
    """Write a sealed answer as the payload of a release.

    held: Record slots of the client's releases before it; by default `window.records` for each.

    Raises TypeError if it is anything but what `privatise` or `disclose` made; PrivacyError if it
    was made for another study: one of the other kind, or whose releases hold other numbers.
    """
    if type(answer) is not Answer and type(answer) is not OpenAnswer:
        raise TypeError("only answers that privatise or disclose made can be written")
    if task.study.noised != isinstance(answer, Answer):
        raise PrivacyError("this answer was made for a study under another privacy policy")
    model, form = answer.model, form_of(task)
    point, records = (
        (model.lattice, answer.slots)
        if isinstance(answer, Answer)
        else (answer.expansion, answer.records)
    )
    parts = [(name, len(part)) for name, part in answer.parts.items()]
    if parts != [field[:2] for field in form.layout.at(model.version)]:
        raise PrivacyError("this answer was made for a study whose releases hold other numbers")
    own = model.partition_watermark
    head = _OWN.pack(
        form.common_bytes, records, form.partitions,
        identity(client.encode()), identity(ledger.encode()), seq, model.version,
        model.watermark, NO_PARTITION if own is None else own,
    )  # fmt: skip
    kind = form.layout.number
    numbers = [part.astype(kind, copy=False).tobytes() for part in (point, *answer.parts.values())]
    body = b"".join([head, model.ticket or _NO_TICKET, *numbers])
    if form.chained and isinstance(answer, Answer):
        at, slots = answer.place, seq * task.slots if held is None else held
        place = (slots, at.before, at.chain, at.number, *at.starts)
        body = body.ljust(form.chain_at, b"\0") + np.array(place, dtype="<i8").tobytes()
    # at the end what a release at the start lacks, and the MAC, which comes as it leaves
    return body.ljust(form.dtype.itemsize, b"\0")


def header_of(payload: bytes) -> Header:
    """Read the header of a release of any study.

    Raises PayloadError if it is no release of this form. What is wrong stays out of the message: it
    can echo the payload.
    """
    if len(payload) >= HEADER.itemsize:
        row = np.frombuffer(payload, HEADER, count=1)
        form = int(row["form"][0]) if int(row["magic"][0]) == MAGIC else 0
        if form == CHAIN_FORM and len(payload) >= HEADER.itemsize + CHAIN.itemsize + _MAC_BYTES:
            at = len(payload) - CHAIN.itemsize - _MAC_BYTES
            return _header(row, np.frombuffer(payload, CHAIN, count=1, offset=at))
        if form == FORM:
            return _header(row)
    raise PayloadError("undecodable", "the payload is not a release of a known version")


def read(task: Task, payload: bytes) -> Release:
    """Read a release of a study, without judging it: `incoming` does.

    Raises PayloadError as `header_of`, or if it is not as long as the study's releases are.
    """
    header, form = header_of(payload), form_of(task)
    size = form.dtype.itemsize
    if len(payload) != size:
        raise PayloadError("wrong-shape", f"releases of this study have {size} bytes")
    row = np.frombuffer(payload, form.dtype)
    numbers, columns = row["sums"][0], form.layout.columns(header.version)
    parts = {name: numbers[columns[name]] for name in columns}
    return Release(header, row["point"][0], parts)


def _header(row: Rows, place: Rows | None = None) -> Header:
    def digits(name: str) -> str:
        return row[name].tobytes().hex()

    def number(name: str) -> int:
        return int(row[name][0])

    own = number("partition_watermark")
    names = () if place is None else ("held", "before", "chain", "number")
    return Header(
        study=digits("study"),
        revision=digits("revision"),
        claim=digits("claim"),
        layout=digits("layout"),
        partitions=number("partitions"),
        records=number("records"),
        client=digits("client"),
        ledger=digits("ledger"),
        seq=number("seq"),
        version=number("version"),
        model_watermark=number("model_watermark"),
        partition_watermark=None if own == NO_PARTITION else own,
        **{name: int(place[name][0]) for name in names},  # type: ignore[index]
    )
