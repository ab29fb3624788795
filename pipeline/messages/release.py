"""Releases on the wire: written one by one, read and judged a batch at a time.

Only the two sealed types of `pipeline.release.privatise` can be written; raw summaries have no
encoder. Workers read whole batches, see `Decoder`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PayloadError, PrivacyError
from pipeline.privacy.memory import EPOCHS, epochs_of
from pipeline.release.layout import (
    CHAIN,
    CHAIN_FORM,
    FORM,
    HEADER,
    MAGIC,
    NO_PARTITION,
    Field,
    Rows,
    identity,
)
from pipeline.release.model import VERSION_LIMIT, WATERMARK_LIMIT
from pipeline.release.privatise import Answer, OpenAnswer
from pipeline.release.task import Task, form_of
from pipeline.trust import LAST_GENERATION
from pipeline.types import Integers

#: The header as `layout.HEADER` has it, up to the ticket: what all releases share, and its own.
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
    held, before, chain, number: As `layout.CHAIN` has them; None in a study without chains.
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
    """Read a release of a study, without judging it: `Decoder` does.

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


#: The highest number of a release: the gaps of 2^23 clients together stay below 2^63.
SEQ_LIMIT = 2**40
#: How far a number may be above the place of its record in the log. Each release takes a place, so
#: what lies above was lost with a log before this one: one release a second for two years.
MOST_LOST = 2**26
#: The longest id of a client, in characters.
LONGEST_NAME = 200

Mask = NDArray[np.bool_]
#: A fault, and which rows do not have it.
Judged = tuple[PayloadError, Mask]


@dataclass(frozen=True, slots=True)
class Incoming:
    """Sound releases of a batch, in order, and what is wrong with the others.

    places: Which payloads of the batch they are, shape (n,).
    clients: Which of `names` has sent each, shape (n,).
    names: Client ids, in the order in which their keys come first.
    faults: By place in the batch.
    """

    rows: Rows
    places: Integers
    clients: Integers
    names: list[str]
    faults: dict[int, PayloadError]

    def without(self, bad: Mapping[int, PayloadError]) -> Incoming:
        """Return the batch without some releases, by row, which join the faults."""
        if not bad:
            return self
        sound = np.ones(len(self.rows), dtype=bool)
        sound[list(bad)] = False
        faults = {int(self.places[row]): fault for row, fault in bad.items()}
        return Incoming(
            self.rows[sound], self.places[sound], self.clients[sound], self.names,
            self.faults | faults,
        )  # fmt: skip


class Decoder:
    """Reads batches of one study.

    revision: The one that releases must name; default: the task's.
    authenticated: Whether releases have a MAC and a ticket, which `authentic` judges.
    """

    def __init__(self, task: Task, revision: str = "", *, authenticated: bool = False) -> None:
        self._form = form_of(task, revision)
        self._mac = authenticated
        self._claim, self._revision = task.budget.claim, revision or task.revision
        layout = self._form.layout
        self._point = _Bounds((layout.point,), layout.point.length)
        self._later = _Bounds(layout.later, layout.length, task.slots)
        self._start = _Bounds(layout.start, layout.length, task.slots)
        one = layout.start == layout.later
        self._limits = [self._ends(self._later, (0 if one else 1, VERSION_LIMIT))]
        if not one:
            self._limits.append(self._ends(self._start, (0, 0)))

    def read(self, payloads: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Incoming:
        """Read payloads with the keys of their records."""
        unique = list(dict.fromkeys(keys))
        number = {key: i for i, key in enumerate(unique)}
        clients = np.fromiter(map(number.__getitem__, keys), np.int64, len(keys))
        names = [_name(key) for key in unique]
        # zeros, which no client has, where there is no name
        known = [identity(name.encode()) if name else bytes(16) for name in names]
        digests = np.frombuffer(b"".join(known), dtype="<u8")
        digests = digests.reshape(-1, 2)
        faults: dict[int, PayloadError] = {}
        size = self._form.dtype.itemsize
        places, fitting = np.arange(len(payloads)), payloads
        if None in payloads or {*map(len, payloads)} != {size}:  # type: ignore[arg-type]
            fits = np.array([p is not None and len(p) == size for p in payloads], dtype=bool)
            for i in np.flatnonzero(~fits).tolist():
                faults[i] = self._of_another_length(payloads[i], digests[clients[i]])
            places, clients = places[fits], clients[fits]
            fitting = [payloads[i] for i in places.tolist()]
        joined = b"".join(fitting)  # type: ignore[arg-type]
        rows: Rows = np.frombuffer(joined, self._form.dtype)
        senders = digests[clients]
        if not self._all_sound(rows, senders):
            bad = _first_faults([*self._header(rows, senders), *self._numbers(rows)])
            return Incoming(rows, places, clients, names, faults).without(bad)
        return Incoming(rows, places, clients, names, faults)

    def _all_sound(self, rows: Rows, clients: NDArray[np.uint64]) -> bool:
        """Whether no release has a fault, told by the ends of each word of the batch.

        It may say no where there is none, as where only a part of a batch is of the start: then
        each release is looked at by itself.
        """
        if not len(rows):
            return True
        words = rows.view("<i8").reshape(len(rows), -1)
        least, most = words.min(axis=0), words.max(axis=0)
        return (
            any(bool(((low <= least) & (most <= high)).all()) for low, high in self._limits)
            and bool(self._begins_well(rows).all())
            and (not self._form.chained or bool(self._placed_well(rows).all()))
            and (not self._form.growth.divisor or bool(self._sums_hold(rows).all()))
            and bool((rows["client"] == clients).all() and clients.any(axis=1).all())
            and (
                self._form.layout.number == "<i8"
                or bool((self._later.hold(rows["sums"]) & self._point.hold(rows["point"])).all())
            )
        )

    def _ends(self, bounds: _Bounds, versions: tuple[int, int]) -> tuple[Integers, Integers]:
        """Return the least and the largest value of each word of a sound release."""
        low, high = self._form.blank.copy(), self._form.blank.copy()
        form = self._form
        if not form.noised:
            low["records"], high["records"] = 0, form.most_records
        if form.chained:
            high["records"] = form.most_records
            for name, most in (
                ("held", WATERMARK_LIMIT),
                ("before", WATERMARK_LIMIT),
                ("chain", SEQ_LIMIT),
                ("number", SEQ_LIMIT),
                ("starts", SEQ_LIMIT),
            ):
                low[name], high[name] = 0, most
        limits = {
            "seq": (0, SEQ_LIMIT),
            "version": versions,
            "model_watermark": (0, WATERMARK_LIMIT),
            "partition_watermark": (NO_PARTITION, WATERMARK_LIMIT),
        }
        for name, (least, most) in limits.items():
            low[name], high[name] = least, most
        free = ["client", "ledger"]
        if self._mac:
            free += ["ticket", "mac"]
        if self._form.layout.number == "<i8":
            for name, part in (("point", self._point), ("sums", bounds)):
                bound = part.at(form.most_records)
                low[name], high[name] = -bound, bound
        else:
            free += ["point", "sums"]
        for name in free:
            low[name].view("<i8")[...] = np.iinfo(np.int64).min
            high[name].view("<i8")[...] = np.iinfo(np.int64).max
        if self._mac:
            # the word that holds the generation: `_begins_well` looks at it
            low.view("<i8")[0], high.view("<i8")[0] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        return low.view("<i8"), high.view("<i8")

    def _begins_well(self, rows: Rows) -> Mask:
        number = rows["reserved"]
        fits = (number > 0) & (number <= LAST_GENERATION) if self._mac else number == 0
        good: Mask = (rows["magic"] == MAGIC) & (rows["form"] == self._form.number) & fits
        return good

    def _placed_well(self, rows: Rows) -> Mask:
        """Whether releases stand where a chain can have them, shape (n,): `layout.CHAIN`."""
        form, number, starts = self._form, rows["number"], rows["starts"]
        slots, before, held = rows["records"].astype(np.int64), rows["before"], rows["held"]
        later = rows["version"] > 0
        own = epochs_of(rows["model_watermark"], form.slots)
        begun = np.arange(EPOCHS) <= own[:, None]
        rising = (starts[:, 1:] >= starts[:, :-1]) | ~begun[:, 1:]
        good: Mask = np.where(
            later,
            form.growth.allowed(before, slots)
            & (before <= held)
            & _between(number, 1, SEQ_LIMIT)
            & ((number - 1) * form.slots <= before)
            & (before <= form.growth.most_behind(number - 1))
            & (number <= rows["seq"] - rows["chain"] + 1)
            & (starts[:, 0] == 1)
            & rising.all(axis=1)
            & (((starts > 0) & (starts <= number[:, None])) == begun).all(axis=1),
            (slots == form.slots) & (number == 0),
        )
        # each release before it, lost or not, has had a block at least
        good &= (rows["seq"] * form.slots <= held) & (held <= WATERMARK_LIMIT) & (before >= 0)
        return good & _between(rows["chain"], 0, rows["seq"])

    def _sums_hold(self, rows: Rows) -> Mask:
        """Whether the numbers of noised releases are within their bounds, shape (n,)."""
        start = rows["version"] == 0
        held = self._later.hold(rows["sums"], rows["records"])
        if self._form.layout.start != self._form.layout.later and start.any():
            held = np.where(start, self._start.hold(rows["sums"]), held)
        return held

    def _of_another_length(self, payload: bytes | None, client: NDArray[np.uint64]) -> PayloadError:
        if payload is None:
            return PayloadError("empty", "the record has no value")
        if len(payload) > MAX_RELEASE_BYTES:
            return PayloadError("too-large", f"more than {MAX_RELEASE_BYTES} bytes")
        if len(payload) < HEADER.itemsize:
            return _UNDECODABLE
        head = np.frombuffer(payload, HEADER, count=1)
        size = self._form.dtype.itemsize
        wrong = PayloadError("wrong-shape", f"releases of this study have {size} bytes")
        return _first_faults([*self._header(head, client[None])]).get(0, wrong)

    def _header(self, rows: Rows, clients: NDArray[np.uint64]) -> Iterator[Judged]:
        """Judge headers: the first fault of a release is the one that is told."""
        form = self._form
        yield _UNDECODABLE, (
            self._begins_well(rows)
            & (self._mac | (rows["ticket"] == 0).all(axis=1))
            & _between(rows["seq"], 0, SEQ_LIMIT)
            & _between(rows["version"], 0, VERSION_LIMIT)
            & _between(rows["model_watermark"], 0, WATERMARK_LIMIT)
            & _between(rows["partition_watermark"], NO_PARTITION, WATERMARK_LIMIT)
        )  # fmt: skip
        yield (
            PayloadError(
                "wrong-study",
                "made for a study of another name; point the client at this study's topics",
            ),
            rows["study"] == form.common("study"),
        )
        yield (
            PayloadError(
                "wrong-revision",
                f"made under another study revision than {self._revision}; update the "
                "client's study file",
            ),
            rows["revision"] == form.common("revision"),
        )
        yield (
            PayloadError("wrong-key", "the record's key is not the client id of its payload"),
            (rows["client"] == clients).all(axis=1) & clients.any(axis=1),
        )
        records = rows["records"]
        yield (
            PayloadError(
                "wrong-claim",
                "made with another window.records, stream.partitions or privacy policy than the "
                f"study's: {self._claim}",
            ),
            (rows["claim"] == form.common("claim"))
            & (rows["partitions"] == form.common("partitions"))
            & (
                records == form.slots
                if form.noised and not form.chained
                else records <= form.most_records
            ),
        )

    def _numbers(self, rows: Rows) -> Iterator[Judged]:
        layout = self._form.layout
        yield _UNDECODABLE, self._mac | (rows["mac"] == 0).all(axis=1)
        if self._form.chained:
            yield (
                PayloadError(
                    "wrong-place",
                    "the release has more record slots than window.growth allows behind those of "
                    "its client, or says of its place among them what cannot be; the operator "
                    "must look at this client",
                ),
                self._placed_well(rows),
            )
        yield (
            PayloadError(
                "wrong-unit",
                "the numbers have other names, lengths or units than the study's; client and "
                "worker must be of one version",
            ),
            rows["layout"] == self._form.common("layout"),
        )
        sums, start = rows["sums"], rows["version"] == 0
        inside = self._later.hold(sums, rows["records"] if self._form.growth.divisor else None)
        if layout.start != layout.later and start.any():
            used = sum(field.length for field in layout.start)
            yield (
                PayloadError(
                    "wrong-shape",
                    "the release was made at model 0 and holds more numbers than a release there "
                    "has; client and worker must be of one version",
                ),
                ~start | (sums[:, used:] == 0).all(axis=1),
            )
            inside = np.where(start, self._start.hold(sums), inside)
        yield (
            PayloadError(
                "out-of-range",
                "a number lies beyond the public bounds of the study, so no honest client "
                "can have sent it; the operator must look at this client",
            ),
            inside & self._point.hold(rows["point"]),
        )


_UNDECODABLE = PayloadError("undecodable", "the payload is not a release of a known version")


class _Bounds:
    """The bound of each number of some rows; zero for those that no field has.

    slots: Of a release whose bounds are those of its fields; larger ones have more.
    """

    def __init__(self, fields: Sequence[Field], length: int, slots: int = 0) -> None:
        self._floats, self._more, self._slots = np.zeros(length), np.zeros(length), slots
        lengths = [f.length for f in fields]
        self._floats[: sum(lengths)] = np.repeat([f.largest for f in fields], lengths)
        self._more[: sum(lengths)] = np.repeat([f.per_slot for f in fields], lengths)
        self.whole = self.at(slots)
        self._twice = (2 * self.whole).astype(np.uint64)

    def at(self, slots: int) -> Integers:
        """Return the bounds of releases with so many slots, as whole numbers, shape (m,)."""
        bounds = self._floats + self._more * (slots - self._slots)
        whole: Integers = np.floor(np.minimum(bounds, 2.0**61)).astype(np.int64)
        return whole

    def hold(
        self, rows: NDArray[np.int64] | NDArray[np.float64], slots: Integers | None = None
    ) -> Mask:
        """Whether all numbers of a row are within their bounds, shape (n,); no number is not.

        slots: Of each row, shape (n,); None: those of the fields.
        """
        if slots is not None:
            held = np.empty(len(rows), dtype=bool)
            for size in np.unique(slots).tolist():
                same, bound = slots == size, self.at(size)
                held[same] = np.all((rows[same] <= bound) & (rows[same] >= -bound), axis=1)
            return held
        if rows.dtype.kind == "f":
            floats: Mask = np.all(np.abs(rows) <= self._floats, axis=1)
            return floats
        # both ends at once: what is below the lower one wraps round to a large unsigned number
        whole: Mask = np.all((rows + self.whole).view(np.uint64) <= self._twice, axis=1)
        return whole


def _first_faults(judged: Sequence[Judged]) -> dict[int, PayloadError]:
    """Return the first fault of each row that has one."""
    found: dict[int, PayloadError] = {}
    for fault, good in judged:
        if not good.all():
            for row in np.flatnonzero(~good).tolist():
                found.setdefault(row, fault)
    return found


def _name(key: bytes | None) -> str:
    """Return the client id that is a key; empty if there is none."""
    try:
        name = "" if key is None else key.decode()
    except UnicodeDecodeError:
        return ""
    return name if len(name) <= LONGEST_NAME else ""


def _between(values: Integers, least: int, most: int | Integers) -> Mask:
    return (values >= least) & (values <= most)
