"""Releases of sites at the worker: integers within public bounds, kept apart by site.

A release of b blocks of `window.records` slots at the point t has the score g, the curvature J and
the squares s, and its row is (1, b, g, J, s, b t, J t, b |t|^2). J t has up to 80 bits, and is kept
in parts of 22, 32 and the other bits; b |t|^2 in one of 32 and the others.

A site's sums are kept apart by epoch, two for each doubling of models, and the public start. They
are the same bits in any order of arrival. Of each site the newest `KEPT` epochs are kept; which
those are depends on the epochs that have come, not on their order.

Then: which of them count, and where the next ones are taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.forgetting import State
from pipeline.linalg import packed_indices
from pipeline.methods.base import Server
from pipeline.methods.sites.client import LONGEST_STEP, WeighedTask
from pipeline.release.layout import Rows
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Integers, Matrix, Vector

_LOW, _MIDDLE, _SQUARED = 22, 32, 32
#: What stands in front of a release's own numbers: how many releases and blocks are in a row.
RELEASES, BLOCKS, FIRST = 0, 1, 2
#: Of so many numbers below 2^22 times some up to 2^24 a float holds the sum.
_EXACT = 64


class Room:
    """Arrays that each fold uses again.

    Else the allocator gives their pages back after each, and taking them again costs more than all
    that is computed in them.
    """

    def __init__(self) -> None:
        self._held: dict[str, Integers] = {}

    def integers(self, name: str, rows: int, columns: int) -> Integers:
        """Return the array of that name, whatever it held."""
        held = self._held.get(name)
        if held is None or len(held) < rows * columns:
            held = self._held[name] = np.empty(rows * columns, dtype=np.int64)
        return held[: rows * columns].reshape(rows, columns)

    def floats(self, name: str, rows: int, columns: int) -> Matrix:
        """As `integers`."""
        return self.integers(name, rows, columns).view(np.float64)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many numbers a release holds: d coefficients, and squares (1) or none (0).

    moving: Whether it matters at which point it was taken; else the sums of points are left out.
    """

    size: int
    squares: int
    moving: bool = True

    @property
    def packed(self) -> int:
        """Entries of a packed curvature."""
        return self.size * (self.size + 1) // 2

    @property
    def points(self) -> int:
        """Where the sum of the points begins in a row, behind the releases' own numbers."""
        return FIRST + self.size + self.packed + self.squares

    @property
    def curvature(self) -> slice:
        """Where the packed curvature stands in a row."""
        return slice(FIRST + self.size, FIRST + self.size + self.packed)

    @property
    def width(self) -> int:
        """Length of the sums of one epoch."""
        return self.points + (4 * self.size + 2) * self.moving

    def rows_of(
        self, points: Integers, numbers: Integers, blocks: Integers, room: Room | None = None
    ) -> Integers:
        """Return releases as rows of sums.

        points, numbers, blocks: Of n releases: where they were taken, (n, d), what they hold, (n,
            `points` - 2), and their blocks of `window.records` slots, (n,).

        Numbers are below 2^42, points up to 2^24 and blocks up to 2^17, so that no product of parts
        passes 2^57. The parts are not carried yet: one row may be added to carried ones, not many.
        With a room rows hold until it is used again.
        """
        room = room or Room()
        rows = room.integers("rows", len(points), self.width)
        rows[:, RELEASES], rows[:, BLOCKS] = 1, blocks
        rows[:, FIRST : self.points] = numbers[:, : self.points - FIRST]
        if not self.moving:
            return rows
        first = self.points + self.size
        np.multiply(points, blocks[:, None], out=rows[:, self.points : first])
        low, middle, high = self._products(rows)
        high[:] = 0
        squares = np.einsum("ij,ij->i", points, points, dtype=np.int64)
        rows[:, -2] = blocks * (squares & ((1 << _SQUARED) - 1))
        rows[:, -1] = blocks * (squares >> _SQUARED)
        packed = rows[:, self.curvature]
        one = self.size <= _EXACT and len(points) > 0 and bool((points == points[0]).all())
        if one:
            self._times_one(packed, points[0], low, middle, room)
        else:
            low[:] = self._times(packed & ((1 << _LOW) - 1), points)
            middle[:] = self._times(packed >> _LOW, points)
        return rows

    def _times(self, packed: Integers, points: Integers) -> Integers:
        """Return symmetric matrices times points, shape (n, d)."""
        found: Integers = np.matmul(packed[:, packed_indices(self.size)], points[:, :, None])
        return found[:, :, 0]

    def _times_one(
        self, packed: Integers, point: Integers, low: Integers, middle: Integers, room: Room
    ) -> None:
        """As `_times` where all points are one: products of floats, none of which is rounded."""
        spread = np.zeros((self.packed, self.size))
        spread[packed_indices(self.size), np.arange(self.size)[:, None]] = point
        part = room.floats("part", *packed.shape)
        found = room.floats("found", *low.shape)
        np.bitwise_and(packed, (1 << _LOW) - 1, out=part)
        low[:] = np.matmul(part, spread, out=found)
        np.right_shift(packed, _LOW, out=part)
        middle[:] = np.matmul(part, spread, out=found)

    def carry(self, rows: Integers) -> None:
        """Give the parts of J t and b |t|^2 their own bits again, in place, shape (n, width)."""
        if not self.moving:
            return
        low, middle, high = self._products(rows)
        middle += low >> _LOW
        low &= (1 << _LOW) - 1
        high += middle >> _MIDDLE
        middle &= (1 << _MIDDLE) - 1
        rows[:, -1] += rows[:, -2] >> _SQUARED
        rows[:, -2] &= (1 << _SQUARED) - 1

    def products(self, rows: Integers) -> Vector:
        """Return the sums of J t as floats, shape (n, d)."""
        low, middle, high = (part.astype(np.float64) for part in self._products(rows))
        return (np.ldexp(high, _LOW + _MIDDLE) + np.ldexp(middle, _LOW)) + low

    def squared(self, rows: Integers) -> Vector:
        """Return the sums of b |t|^2 as floats, shape (n,)."""
        found: Vector = np.ldexp(rows[:, -1].astype(np.float64), _SQUARED) + rows[:, -2]
        return found

    def points_of(self, rows: Integers) -> tuple[Matrix, Vector]:
        """Return the mean point of each row over its blocks, (n, d), and the mean |t - mean|^2."""
        blocks = rows[:, BLOCKS].astype(np.float64)
        sums = rows[:, self.points : self.points + self.size].astype(np.float64)
        means = np.ldexp(sums / blocks[:, None], COEFFICIENT_EXPONENT)
        lengths = np.ldexp(self.squared(rows) / blocks, 2 * COEFFICIENT_EXPONENT)
        return means, np.maximum(lengths - np.sum(means**2, axis=1), 0.0)

    def _products(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        first = self.points + self.size
        low, middle, high = (
            rows[:, first + k * self.size : first + (k + 1) * self.size] for k in range(3)
        )
        return low, middle, high


#: Epochs that are kept of a site: older releases were taken too far from the newest models.
KEPT = 5
HEAD = "head"


def epochs_of(numbers: Integers) -> Integers:
    """Return 0 for 0, else the epoch that begins at 2^k or 3 * 2^k, shape (n,).

    numbers: Of models' versions, or windows that they have seen. So the versions 1, 2, 3, 4 to 5, 6
        to 7, 8 to 11, ...: the first models move the most.
    """
    part, exponent = np.frexp(numbers.astype(np.float64))
    halves = 2 * exponent.astype(np.int64) + (part >= 0.75)
    return np.where(numbers > 0, halves - 1, 0)


@dataclass(slots=True)
class SiteState(State):
    """Sums over the releases of one bucket, site by site.

    Sums of all sites lie in one array, so that a batch is added at once.

    sites: Place of each site in the arrays below, by the digest of its client's id, 32 hexadecimal
        digits.
    slots_each: Of a block of records: `window.records`.
    releases, blocks: How many releases have been added, and how many blocks they had.
    dirty: Names of the fields that changed since they were last stored.
    counts: Releases of each site, shape (M or more,).
    epochs: Its epochs, -1 where there is none, shape (M or more, KEPT).
    places: The row of each epoch's sums, -1 where there is none, shape (M or more, KEPT).
    rows: Sums, shape (used or more, width).
    """

    shape: Shape
    slots_each: int
    sites: dict[str, int] = field(default_factory=dict)
    releases: int = 0
    blocks: int = 0
    dirty: set[str] = field(default_factory=set)
    counts: Integers = field(init=False)
    epochs: Integers = field(init=False)
    places: Integers = field(init=False)
    rows: Integers = field(init=False)
    used: int = 0

    def __post_init__(self) -> None:
        """Start without sites."""
        self.counts = np.zeros(0, dtype=np.int64)
        self.epochs = np.zeros((0, KEPT), dtype=np.int64)
        self.places = np.zeros((0, KEPT), dtype=np.int64)
        self.rows = np.zeros((0, self.shape.width), dtype=np.int64)

    @property
    def slots(self) -> int:
        """How many record slots the releases had."""
        return self.blocks * self.slots_each

    @property
    def names(self) -> list[str]:
        return [HEAD, *sorted(self.sites)]

    def held(self) -> tuple[Integers, Integers, Integers]:
        """Return all sums: places of their sites (n,), epochs (n,) and rows (n, width)."""
        which, column = np.nonzero(self.places[: len(self.sites)] >= 0)
        return which, self.epochs[which, column], self.rows[self.places[which, column]]

    def sums_of(self, name: str) -> dict[int, Integers]:
        """Return the sums of a site by epoch, the oldest first."""
        epochs, places = self.epochs[self.sites[name]], self.places[self.sites[name]]
        return {int(epochs[k]): self.rows[places[k]] for k in np.argsort(epochs) if places[k] >= 0}

    def fold(
        self, ids: Integers, epochs: Integers, rows: Integers, room: Room | None = None
    ) -> None:
        """Add releases: digests (n, 2), epochs (n,) and rows of `Shape.rows_of`."""
        names = ids.tobytes().hex(" ", 16).split()
        which = self._places_of(names)
        np.add.at(self.counts, which, 1)
        self._add(which, epochs, rows, room or Room())
        self.releases += len(rows)
        self.blocks += int(rows[:, BLOCKS].sum())
        self.dirty.update(names, (HEAD,))

    def add(self, other: SiteState) -> None:
        """Add the sums of another partition, which stays as it is."""
        theirs = self._places_of(list(other.sites))
        self.counts[theirs] += other.counts[: len(theirs)]
        which, epochs, rows = other.held()
        self._add(theirs[which], epochs, rows, Room())
        self.releases += other.releases
        self.blocks += other.blocks

    def _places_of(self, names: Sequence[str]) -> Integers:
        """Return the places of sites, which new ones get here."""
        sites = self.sites
        try:
            found = np.fromiter(map(sites.__getitem__, names), np.int64, len(names))
        except KeyError:
            each = [sites.setdefault(name, len(sites)) for name in names]
            found = np.array(each, dtype=np.int64)
        self.counts = _grown(self.counts, len(sites), 0)
        self.epochs, self.places = (
            _grown(held, len(sites), -1) for held in (self.epochs, self.places)
        )
        return found

    def _add(self, which: Integers, epochs: Integers, rows: Integers, room: Room) -> None:
        for epoch in np.unique(epochs).tolist():
            own = epochs == epoch
            of_all = bool(own.all())
            self._add_epoch(
                which if of_all else which[own], epoch, rows if of_all else rows[own], room
            )

    def _add_epoch(self, which: Integers, epoch: int, rows: Integers, room: Room) -> None:
        if np.bincount(which).max() > 1:
            order = np.argsort(which, kind="stable")
            which, starts = np.unique(which[order], return_index=True)
            self.shape.carry(rows := rows[order])
            rows = np.add.reduceat(rows, starts, axis=0)
        own = self.epochs[which] == epoch
        # a site has an epoch once, or not at all
        if np.count_nonzero(own) < len(which):
            self._begin(which[~own.any(axis=1)], epoch)
            own = self.epochs[which] == epoch
            kept = own.any(axis=1)
            rows = rows[kept]
        at, sums = self.places[which][own], room.integers("sums", len(rows), self.shape.width)
        # numpy copies what it fills unless it has a mode
        self.rows.take(at, axis=0, out=sums, mode="clip")
        sums += rows
        self.shape.carry(sums)
        self.rows[at] = sums

    def _begin(self, which: Integers, epoch: int) -> None:
        """Make room for an epoch of sites that lack it, in the place of their oldest if full."""
        column = np.argmin(self.epochs[which], axis=1)
        later = self.epochs[which, column] < epoch
        which, column = which[later], column[later]
        self.epochs[which, column] = epoch
        places = self.places[which, column]
        new = places < 0
        before, self.used = self.used, self.used + int(new.sum())
        self.rows = _grown(self.rows, self.used, 0)
        places[new] = np.arange(before, self.used)
        self.places[which, column] = places
        self.rows[places] = 0

    def encode_field(self, name: str) -> bytes:
        """Return one field as little-endian int64."""
        if name == HEAD:
            return np.array([self.releases, self.blocks, len(self.sites)], dtype="<i8").tobytes()
        rows = [np.append(epoch, row) for epoch, row in self.sums_of(name).items()]
        return np.concatenate([[self.counts[self.sites[name]]], *rows]).astype("<i8").tobytes()

    @classmethod
    def decode(cls, shape: Shape, slots_each: int, fields: dict[str, bytes]) -> SiteState:
        """Rebuild a state from all fields that `encode` gave.

        Raises StateError if a field is missing, unknown or of the wrong length.
        """
        state = cls(shape, slots_each)
        names = [name for name in fields if name != HEAD]
        which = state._places_of(names)
        for name, place in zip(names, which, strict=True):
            numbers = _numbers(shape, name, fields[name])
            state.counts[place], rows = numbers[0], numbers[1:].reshape(-1, 1 + shape.width)
            state._add(np.full(len(rows), place), rows[:, 0], rows[:, 1:], Room())
        if len(fields.get(HEAD, b"")) != 24:
            raise StateError(
                "the stored sums of sites have no header, which counts them; the operator "
                "must run `veilstream state rebuild`"
            )
        state.releases, state.blocks, sites = np.frombuffer(fields[HEAD], "<i8").tolist()
        if (sites, state.releases) != (
            len(state.sites),
            int(state.counts.sum()),
        ):
            raise StateError(
                f"the stored state counts {sites} sites and holds {len(state.sites)}, or not all "
                "of their releases; run `veilstream state rebuild`"
            )
        return state


def _numbers(shape: Shape, name: str, data: bytes) -> Integers:
    each = 1 + shape.width
    if len(name) != 32 or not set(name) <= set("0123456789abcdef"):
        raise StateError(
            f"the stored state has a field {name!r}, which this version does not know; "
            "the operator must start the version that wrote it, or run `veilstream state "
            "rebuild`"
        )
    if len(data) % 8 or (len(data) // 8 - 1) % each or len(data) <= 8:
        raise StateError(
            f"the stored sums of a site have {len(data)} bytes, which is not a possible length; "
            "run `veilstream state rebuild`"
        )
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def _grown(held: Integers, needed: int, fill: int) -> Integers:
    """Return an array with at least so many rows: twice as many, so that growth costs little."""
    if needed <= len(held):
        return held
    grown = np.full((max(needed, 2 * len(held)), *held.shape[1:]), fill, dtype=np.int64)
    grown[: len(held)] = held
    return grown


#: States of some buckets with their weights.
Weighed: TypeAlias = Sequence[tuple[float, SiteState]]
#: Older epochs are left out only where so large a share of the sites that go on stays.
STAYING = 0.75
#: A site has stopped that is so many epochs behind the one that more than half have reached: they
#: are at a model of twice its number, or the third where it is at the first.
SILENT = 2
#: No epoch is later.
LAST = 2**40
#: How far a stream is on the way in which the interval of a coefficient has no end.
UNSURE = 0.9


def gathered(
    parts: Weighed, kept: Collection[int]
) -> tuple[list[str], Integers, Vector, Integers, Integers]:
    """Return the sums of the epochs `kept` of all buckets, row by row.

    Names of the M sites, sorted; of each row its site's place in them, its bucket's weight and its
    epoch, shape (n,); and the sums, shape (n, width).
    """
    names: list[str] = []
    weights, epochs, rows = [], [], []
    for weight, state in parts:
        which, epoch, row = state.held()
        own, known = np.isin(epoch, list(kept)), list(state.sites)
        names += [known[place] for place in which[own].tolist()]
        weights.append(np.full(int(own.sum()), weight))
        epochs.append(epoch[own])
        rows.append(row[own])
    found = sorted(set(names))
    place = {name: index for index, name in enumerate(found)}
    return (
        found,
        np.array([place[name] for name in names], dtype=np.int64),
        np.concatenate(weights),
        np.concatenate(epochs),
        np.concatenate(rows),
    )


def recent_epochs(parts: Weighed) -> set[int]:
    """Return the epochs that enter the estimate: the newest, and the start for as long as it must.

    The newest that count are those that more than a quarter of the sites have reached, and all
    behind them: a few sites that send more, or say newer versions, push nobody out. Scores of the
    public start are the farthest from the estimate. They leave it when as many slots at models have
    come, of most sites.
    """
    counts, reached = Counter[int](), newest_epochs(parts)
    for _, state in parts:
        _, epochs, rows = state.held()
        for epoch in np.unique(epochs).tolist():
            counts[epoch] += int(rows[epochs == epoch, BLOCKS].sum())
    if not reached:
        return set()
    come = sorted(reached.values(), reverse=True)[len(reached) // 4]
    known = sorted(counts)
    last = [epoch for epoch in known if epoch <= come][-KEPT:]
    last += [epoch for epoch in known if epoch > come]
    later = sum(counts[epoch] for epoch in last if epoch)
    moved_on = 2 * sum(epoch > 0 for epoch in reached.values()) > len(reached)
    return {epoch for epoch in last if epoch or counts[0] > later or not moved_on}


def newest_epochs(parts: Weighed) -> dict[str, int]:
    """Return the newest epoch of each site."""
    reached: dict[str, int] = {}
    for _, state in parts:
        newest = state.epochs[: len(state.sites)].max(axis=1, initial=-1)
        for name, epoch in zip(state.sites, newest.tolist(), strict=True):
            reached[name] = max(epoch, reached.get(name, -1))
    return reached


def needed_sites(parts: Weighed, names: Collection[str]) -> int:
    """Return how many of some sites must stay where older epochs are left out.

    Three quarters of those that go on, and more than half of all: the first few at a new model are
    no majority alone. Those have stopped that are `SILENT` epochs behind what most have reached.
    """
    newest, held = newest_epochs(parts), [state.epochs[: len(state.sites)] for _, state in parts]
    # start and first model are behind the second one, whatever its epoch is
    second = min(int(np.min(epochs, initial=LAST, where=epochs > 1)) for epochs in held)
    each = (newest[name] + (second - 2) * (newest[name] <= 1) for name in names)
    reached = sorted(each, reverse=True)
    most = reached[len(reached) // 2]
    going = sum(epoch > most - SILENT for epoch in reached)
    return max(math.ceil(STAYING * going), len(reached) // 2 + 1)


def next_point(
    norm_bound: float, coefficients: Vector, points: Matrix | None, *, settled: bool
) -> Vector:
    """Return where the next releases are taken: the estimate, or a step on the way there.

    points: Where those of the sites were taken, shape (M, d); None: at 0.
    """
    if settled:
        return coefficients
    middle = np.zeros(len(coefficients)) if points is None else np.median(points, axis=0)
    moved = norm_bound * float(np.linalg.norm(coefficients - middle))
    found: Vector = middle + (coefficients - middle) * min(1.0, LONGEST_STEP / max(moved, 1e-300))
    return found


T = TypeVar("T", bound=WeighedTask)
#: Releases that are added at once, in memory that is kept.
BLOCK = 1024


class SiteServer(Server[SiteState]):
    """As `methods.base.Server`; `estimate` says what the sums of a task's sites are."""

    def __init__(self, task: T, estimate: Callable[[T, Weighed], Estimate]) -> None:
        self._task, self._estimate = task, partial(estimate, task)
        self._room = Room()
        self._shape = Shape(task.size, task.squares, moving=task.moving)

    def empty(self) -> SiteState:
        return SiteState(self._shape, self._task.slots)

    def read(self, fields: dict[str, bytes]) -> SiteState:
        return SiteState.decode(self._shape, self._task.slots, fields)

    def fold(self, state: SiteState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        for first in range(0, len(rows), BLOCK):
            some = rows[first : first + BLOCK]
            blocks = some["records"].astype(np.int64) // self._task.slots
            found = self._shape.rows_of(some["point"], some["sums"], blocks, self._room)
            state.fold(some["client"], self._epochs(some), found, self._room)

    def _epochs(self, rows: Rows) -> Integers:
        """Return the epochs of releases, shape (n,): one for all that are taken at 0.

        Where windows grow, models come with records, and half of these may be behind the last few:
        epochs are those of the slots that a model had seen, and the first model's one of its own.
        """
        task, versions = self._task, rows["version"]
        if not task.at_models:
            return np.zeros(len(rows), dtype=np.int64)
        if not task.growth.divisor:
            return epochs_of(versions)
        seen = np.maximum(rows["model_watermark"] // task.slots, 1)
        return np.where(versions > 1, 1 + epochs_of(seen), versions)

    def estimate(self, parts: Weighed, partitions: Sequence[int], *, missing: int = 0) -> Estimate:
        del partitions, missing
        return self._estimate(parts)

    def start_is_over(self, states: Sequence[SiteState], furthest: int) -> bool:
        """As `Server.start_is_over`: enough releases, or one site has used up its windows.

        Which version a release gives does not count: one that was forged would be enough.
        """
        if 0 < self._task.most_at_start <= furthest:
            return True
        releases = self._task.study.stream.publish.releases
        return sum(state.releases for state in states) >= releases
