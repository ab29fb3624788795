"""The state of a private study: integer sums, the same bits in any order of arrival.

Class counts are summed over all releases. Releases at the public start (model 0) add their
gradients, one for each group. A later release has a gradient g, a curvature H, a middle M, the
expansion point t, a sum of squared slopes s (of a regression that estimates its noise scale), b
times `window.records` slots, and a model that had seen so many slots. By doublings of that it
belongs to an epoch, to whose sums it adds the Gram matrix of z = (g, b t, b, 1), H, M, b t t', s,
and the variance of its noise. The last column of the Gram matrix holds the sums of g, b t, b and
the number of releases; the rest gives the spread between releases. So that clients with different
records do not count as spread, (g, b t, b) and b (g, b t, b) are summed by groups of clients as
well. Beside the epochs stands, for each, the variance of the noise in all releases since then:
noise that remembers cancels in sums, so that it is not that of their number. What is made of them
is in `solution`.

`Weighed` says what the sums are in real units, releases weighed by their age: what is linear in
releases by their weight w, and every variance by its square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators import integer_sums as exact
from pipeline.estimators.forgetting import State, effective
from pipeline.estimators.integer_sums import BigIntegers
from pipeline.linalg import unpack_upper
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy import memory
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Integers, Matrix, Vector

#: Clients are told apart by their digest, into so many groups: few share one. Those that differ and
#: do would pass for records that depend on each other.
GROUPS = 256
COUNTS, START, NOISE, EPOCH, GROUPED = "counts", "start", "noise", "epoch.", "groups."
#: Variance of the noise of a release that remembers nothing.
ONE = 1 << memory.FIXED


@dataclass(frozen=True, slots=True)
class PrivateBatch:
    """Validated releases, each part with one row for each release that has it.

    counts: Class counts of all n releases, lattice integers of shape (n, 2); (n, 0) without
        classes.
    start: Gradients of those at the start, shape (s, groups d); each has `window.records` slots.
    slots: Record slots of all n releases together.
    epochs: Of the models of the others, shape (m,) with m = n - s.
    expansion, gradient: Lattice integers, shape (m, d).
    curvature, middle: Lattice integers, packed, shape (m, d (d + 1) / 2); (m, 0) where there is no
        middle.
    squares: Sums of squared slopes, shape (m, 1), or (m, 0) where they are not released.
    blocks: Their slots in units of `window.records`, shape (m,), below 2^17.
    numbers, starts: Where each stands in its chain, shapes (m,) and (m, EPOCHS): `layout.CHAIN`;
        numbers of 0 where noise remembers nothing.
    groups: Group of the client of each, shape (m,).
    """

    counts: Integers
    start: Integers
    slots: int
    epochs: Integers
    expansion: Integers
    gradient: Integers
    curvature: Integers
    middle: Integers
    squares: Integers
    blocks: Integers
    numbers: Integers
    starts: Integers
    groups: Integers


@dataclass(frozen=True, slots=True)
class Shape:
    """How many numbers the parts of a study's releases hold.

    size: d, the number of coefficients.
    groups: Gradients of a release at the start: one for each class, else one.
    squares: 1 if later releases hold the sum of squared slopes, else 0.
    middle: Whether they hold the middle.
    """

    size: int
    groups: int = 2
    squares: int = 0
    middle: bool = True

    @classmethod
    def of(cls, task: RenewableTask) -> Shape:
        """Return the shape of a study's releases."""
        squares = 0 if task.classes else task.counted(1)
        return cls(task.size, task.groups, squares, "middle" in task.layout.columns(1))

    @property
    def classes(self) -> int:
        """Numbers of a class count: 2, or 0 where there are no classes."""
        return 2 if self.groups == 2 else 0

    @property
    def rows(self) -> int:
        """Length of z = (g, b t, b, 1)."""
        return 2 * self.size + 2

    @property
    def packed(self) -> int:
        """Numbers of a symmetric matrix, d (d + 1) / 2."""
        return self.size * (self.size + 1) // 2

    @property
    def parts(self) -> dict[str, int]:
        """Lengths of the sums of an epoch, in their order."""
        return {
            "gram": self.rows * (self.rows + 1) // 2,
            "curvature": self.packed,
            "middle": self.packed if self.middle else 0,
            "points": self.packed,
            "squares": self.squares,
            "noise": 1,
        }

    @property
    def grouped(self) -> int:
        """Length of the sums of a group of clients: of (g, b t, b), and of b times these."""
        return 2 * (2 * self.size + 1)


@dataclass(slots=True)
class PrivateState(State):
    """Sums over the releases of one bucket of a private study.

    shape: How many numbers the parts hold.
    counts: Sum of the class counts, then the number of releases, then of their slots.
    start: Sum of the gradients at the start, then the number of those releases.
    noise: For each epoch the variance of the noise in the sums of all releases since then, in units
        of the variance of one draw and of 2^-60.
    epochs: Epoch to its sums, in the order of `Shape.parts`.
    groups: Epoch to the sums of each group of clients that has any there.
    dirty: Names of the fields that changed since they were last stored.
    """

    shape: Shape
    counts: BigIntegers = field(init=False)
    start: BigIntegers = field(init=False)
    noise: BigIntegers = field(init=False)
    epochs: dict[int, BigIntegers] = field(default_factory=dict)
    groups: dict[int, dict[int, BigIntegers]] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start from zero."""
        self.counts = exact.zeros(self.shape.classes + 2)
        self.start = exact.zeros(self.shape.groups * self.shape.size + 1)
        self.noise = exact.zeros(memory.EPOCHS)

    @property
    def releases(self) -> int:
        return int(self.counts[-2])

    @property
    def slots(self) -> int:
        """How many record slots they had."""
        return int(self.counts[-1])

    @property
    def names(self) -> list[str]:
        epochs = sorted(self.epochs)
        return [COUNTS, START, NOISE, *(f"{kind}{e}" for kind in (EPOCH, GROUPED) for e in epochs)]

    @property
    def epoch_length(self) -> int:
        """Length of the sums of one epoch."""
        return sum(self.shape.parts.values())

    def fold(self, batch: PrivateBatch) -> None:
        """Add releases; adding them one by one, in any order, gives the same bits."""
        self.counts = self.counts + _with(batch.counts, len(batch.counts), batch.slots)
        self.dirty.add(COUNTS)
        if len(batch.start):
            self.start = self.start + _with(batch.start, len(batch.start))
            self.dirty.add(START)
        if not len(batch.epochs):
            return
        own_noise, since = _noise(batch)
        self.noise = self.noise + exact.of(since)
        self.dirty.add(NOISE)
        blocks = batch.blocks[:, None]
        moved = blocks * batch.expansion
        ones = np.ones_like(blocks)
        rows = np.hstack([batch.gradient, moved, blocks, ones])
        upper = np.triu_indices(self.shape.size)
        for epoch in np.unique(batch.epochs).tolist():
            own = batch.epochs == epoch
            points = exact.cross(moved[own], batch.expansion[own])
            places = upper[0] * self.shape.size + upper[1]
            self._add_epoch(
                epoch,
                exact.join(
                    exact.gram(rows[own]),
                    exact.column_sums(batch.curvature[own]),
                    exact.column_sums(batch.middle[own]),
                    points.take(places),
                    exact.column_sums(batch.squares[own]),
                    exact.of([sum(v for v, mine in zip(own_noise, own, strict=True) if mine)]),
                ),
            )
            self._add_groups(epoch, _by_group(rows[own, :-1], batch.groups[own]))
            self.dirty |= {f"{EPOCH}{epoch}", f"{GROUPED}{epoch}"}

    def add(self, other: PrivateState) -> None:
        """Add the sums of another partition."""
        self.counts = self.counts + other.counts
        self.start = self.start + other.start
        self.noise = self.noise + other.noise
        for epoch, part in other.epochs.items():
            self._add_epoch(epoch, part)
            self._add_groups(epoch, other.groups[epoch])

    def encode_field(self, name: str) -> bytes:
        kind, epoch = name[: name.find(".") + 1], name[name.find(".") + 1 :]
        if kind == GROUPED:
            groups = self.groups[int(epoch)]
            rows = [part for g in sorted(groups) for part in (exact.of([g]), groups[g])]
            return exact.encode(exact.join(*rows))
        if kind == EPOCH:
            return exact.encode(self.epochs[int(epoch)])
        held: BigIntegers = getattr(self, name)
        return exact.encode(held)

    @classmethod
    def decode(cls, shape: Shape, fields: dict[str, bytes]) -> PrivateState:
        """Rebuild a state from all fields that `encode` gave.

        Raises StateError if a field is missing, unknown or of the wrong length.
        """
        state = cls(shape)
        if missing := {COUNTS, START, NOISE} - fields.keys():
            raise StateError(
                f"the stored state lacks its field {sorted(missing)[0]!r}; the operator must "
                "run `veilstream state rebuild`"
            )
        for name, data in fields.items():
            kind, epoch = name[: name.find(".") + 1], name[name.find(".") + 1 :]
            known = epoch.isdecimal() and int(epoch) < memory.EPOCHS
            if name in (COUNTS, START, NOISE):
                setattr(state, name, exact.decode(data, len(getattr(state, name))))
            elif kind == EPOCH and known:
                state.epochs[int(epoch)] = exact.decode(data, state.epoch_length)
            elif kind == GROUPED and known:
                state.groups[int(epoch)] = _groups_of(shape, data)
            else:
                raise StateError(
                    f"the stored state has a field {name!r}, which this version does not know; "
                    "the operator must start the version that wrote it, or run `veilstream state "
                    "rebuild`"
                )
        if state.epochs.keys() != state.groups.keys():
            raise StateError(
                "the stored state lacks the sums of an epoch, or those of its groups of clients; "
                "the operator must run `veilstream state rebuild`"
            )
        return state

    def _add_groups(self, epoch: int, groups: dict[int, BigIntegers]) -> None:
        held = self.groups.setdefault(epoch, {})
        for group, part in groups.items():
            held[group] = held[group] + part if group in held else part

    def _add_epoch(self, epoch: int, part: BigIntegers) -> None:
        held = self.epochs.get(epoch)
        self.epochs[epoch] = part if held is None else held + part


def _by_group(rows: Integers, groups: Integers) -> dict[int, BigIntegers]:
    """Return the sums of (g, b t, b) and of b times these of each group of clients."""
    found = {}
    for group in np.unique(groups).tolist():
        own = rows[groups == group]
        found[group] = exact.cross(np.hstack([np.ones_like(own[:, -1:]), own[:, -1:]]), own)
    return found


def _groups_of(shape: Shape, data: bytes) -> dict[int, BigIntegers]:
    """Read what was stored of the groups of an epoch; StateError if it is not that."""
    length = shape.grouped + 1
    count, rest = divmod(len(data), exact.WIDTH * length)
    whole = exact.decode(data, count * length if not rest else length)
    found = {}
    for start in range(0, len(whole), length):
        found[whole[start]] = whole[start + 1 : start + length]
    return found


def _noise(batch: PrivateBatch) -> tuple[list[int], list[int]]:
    """Return the variance of each release's noise, and what all add to that since each epoch."""
    own, since = [], [0] * memory.EPOCHS
    starts, epochs = batch.starts.tolist(), batch.epochs.tolist()
    for place, number in enumerate(batch.numbers.tolist()):
        if number:
            own.append(memory.variance(number))
            more = memory.additions(number, starts[place], epochs[place])
        else:
            own.append(ONE)
            more = [ONE] * (epochs[place] + 1)
        for epoch, one in enumerate(more):
            since[epoch] += one
    return own, since


def _with(rows: Integers, *extra: int) -> BigIntegers:
    """Return the column sums of rows with some numbers behind them."""
    return exact.join(exact.column_sums(rows), exact.of(extra))


#: States of some buckets with their weights.
Weighed = Sequence[tuple[float, PrivateState]]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the releases of the newest epochs, in real units; n is a release's slots.

    slots, records: Sum of w n, and the effective number of record slots.
    releases: Effective number of releases: their number, where all weigh the same.
    gradient, points, curvature: Sums of w g, w n t and w H, shapes (d,), (d,) and (d, d).
    middle: Sum of w M, shape (d, d); None where it is not released.
    spread_of_points: Sum of w n t t', shape (d, d).
    slopes: Sum of w s, the squared slopes of a regression; None where they are not released.
    noise: Variance of the noise of the weighted sums, in units of that of one release whose noise
        is independent: V.
    noise_apart: The same of the releases one by one, added up: W.
    second: Sum of w^2 z z' with z = (g, n t, n), shape (2 d + 1, 2 d + 1).
    groups: For each group of clients that has any, sums of w^2 n (g, n t, n), and of w (g, n t, n);
        each (k, 2 d + 1).
    """

    slots: float
    records: float
    releases: float
    gradient: Vector
    points: Vector
    curvature: Matrix
    middle: Matrix | None
    spread_of_points: Matrix
    slopes: float | None
    noise: float
    noise_apart: float
    second: Matrix
    groups: tuple[Matrix, Matrix]


def newest_sums(task: RenewableTask, parts: Weighed, missing: int) -> Iterator[Sums]:
    """Yield the sums of the newest epoch, of the two newest, and so on.

    A release can say that its model had seen more slots than there are: it goes with the epoch of
    those that there are, so that one that lies does not stand alone for all.

    missing: Runs of releases that never came, of all clients, below numbers that did: what they
        would have cancelled is still there, and counts as noise.
    """
    held: list[BigIntegers | None] = [None] * len(parts)
    groups: list[dict[int, BigIntegers]] = [{} for _ in parts]
    gaps = missing * memory.GAP if task.remembers else 0
    epochs = epochs_of(parts)
    newest = memory.epoch_of(sum(state.slots for _, state in parts), task.slots)
    newest = max(newest, epochs[0]) if epochs else newest
    for epoch in reversed(epochs):
        for place, (_, state) in enumerate(parts):
            own, before = state.epochs.get(epoch), held[place]
            if own is not None:
                held[place] = own if before is None else before + own
                for group, part in state.groups[epoch].items():
                    mine = groups[place]
                    mine[group] = mine[group] + part if group in mine else part
        if epoch > newest:
            continue
        noise = sum(w * w * (state.noise[epoch] + gaps) for w, state in parts)
        sums = [
            (w, own, mine)
            for (w, _), own, mine in zip(parts, held, groups, strict=True)
            if own is not None
        ]
        if task.remembers:
            # places in chains that cannot be would otherwise make it none
            noise = max(noise, memory.variance(1))
        yield _sums(task, parts[0][1].shape, sums, float(noise))


def epochs_of(parts: Weighed) -> list[int]:
    """Return the epochs that there are, oldest first."""
    return sorted({epoch for _, state in parts for epoch in state.epochs})


def total_of(parts: Weighed, of: Callable[[PrivateState], BigIntegers]) -> Vector:
    """Return the weighted total of some sums of each state."""
    weights = np.array([[w] for w, _ in parts])
    total: Vector = np.sum(weights * _floats([of(state) for _, state in parts]), axis=0)
    return total


def _floats(vectors: Sequence[BigIntegers]) -> Matrix:
    """Return n vectors of m integers each in floats, shape (n, m)."""
    return exact.as_floats(exact.join(*vectors)).reshape(len(vectors), -1)


def noise_of_counts(task: RenewableTask, parts: Weighed) -> float:
    """Return the standard deviation of the noise in the weighted total of each class count."""
    channel = task.update_channels.counts
    if channel is None:
        return 0.0
    start = sum(w * w * float(state.start[-1]) for w, state in parts)
    later = sum(w * w * float(state.noise[0]) for w, state in parts) * unit_of_noise(task)
    return channel.standard_deviation * math.sqrt(start + later)


def unit_of_noise(task: RenewableTask) -> float:
    """Return what a stored variance of noise is in units of that of one independent release."""
    return (memory.SQUARED_NORM if task.remembers else 1.0) / 2.0**memory.FIXED


def _sums(
    task: RenewableTask,
    shape: Shape,
    held: Sequence[tuple[float, BigIntegers, dict[int, BigIntegers]]],
    noise: float,
) -> Sums:
    weights, floats = np.array([[w] for w, _, _ in held]), _floats([own for _, own, _ in held])
    once = twice = _parts(shape.parts, np.sum(weights * floats, axis=0))
    if np.any(weights != 1.0):
        twice = _parts(shape.parts, np.sum(weights * weights * floats, axis=0))
    channels, size, slots = task.update_channels, shape.size, float(task.slots)
    lattice = math.ldexp(1.0, COEFFICIENT_EXPONENT)
    of_gradient = np.full(size, channels.gradient.unit)
    unit = np.concatenate([of_gradient, np.full(size, slots * lattice), [slots, 1.0]])
    first = unpack_upper(once["gram"], shape.rows)[:, -1] * unit
    second = unpack_upper(twice["gram"], shape.rows) * np.outer(unit, unit)
    linear = unit[:-1]
    grouped = [(group, w, own) for w, _, mine in held for group, own in mine.items()]
    names, places = np.unique([group for group, _, _ in grouped], return_inverse=True)
    once_grouped, twice_grouped = np.zeros((2, len(names), 2, len(linear)))
    if grouped:
        weights = np.array([w for _, w, _ in grouped])[:, None, None]
        floats = _floats([own for _, _, own in grouped]).reshape(len(grouped), 2, -1)
        floats = floats * np.stack([linear, slots * linear])
        np.add.at(once_grouped, places, weights * floats)
        np.add.at(twice_grouped, places, weights * weights * floats)
    curved = channels.curvature.unit if channels.curvature else 0.0
    return Sums(
        slots=float(first[-2]),
        records=effective(float(first[-2]), float(second[-2, -1])),
        releases=effective(float(first[-1]), float(second[-1, -1])),
        gradient=first[:size],
        points=first[size : 2 * size],
        curvature=unpack_upper(once["curvature"], size) * curved,
        middle=unpack_upper(once["middle"], size) * channels.middle.unit
        if channels.middle
        else None,
        spread_of_points=unpack_upper(once["points"], size) * (slots * lattice**2),
        slopes=float(once["squares"][0]) * channels.counts.unit
        if shape.squares and channels.counts
        else None,
        noise=noise * unit_of_noise(task),
        noise_apart=float(twice["noise"][0]) * unit_of_noise(task),
        second=second[:-1, :-1],
        groups=(twice_grouped[:, 1], once_grouped[:, 0]),
    )


def _parts(lengths: dict[str, int], vector: Vector) -> dict[str, Vector]:
    ends = np.cumsum(list(lengths.values()))
    return dict(zip(lengths, np.split(vector, ends[:-1]), strict=True))
