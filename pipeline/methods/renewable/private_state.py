"""The state of a private study: integer sums, the same bits in any order of arrival.

Class counts are summed over all releases. Releases at the public start (model 0) add their
gradients, one for each group. A later release with gradient g, curvature H, expansion point t, sum
of squared slopes s (of a regression that estimates its noise scale), n slots and model version k
adds the Gram matrix of z = (g, n t, s, n, 1), H and H t to the sums of epoch floor(log2 k). The
last column of that matrix holds the sums of g, n t, s, n and the number of releases; the rest gives
the spread between releases. H t says how curvature goes with the models. So that clients with
different records do not count as spread, (g, n t, 1) is summed by groups of clients as well. What
is made of them is in `private_estimate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import StateError
from pipeline.estimators.buckets import State
from pipeline.methods.renewable import exact
from pipeline.methods.renewable.exact import BigIntegers
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Integers

#: Clients are told apart by their digest, into so many groups: few share one.
GROUPS = 32
COUNTS, START, EPOCH = "counts", "start", "epoch."


@dataclass(frozen=True, slots=True)
class PrivateBatch:
    """Validated releases, each part with one row for each release that has it.

    counts: Class counts of all n releases, lattice integers of shape (n, 2); (n, 0) without
        classes.
    start: Gradients of those at the start, shape (s, groups d).
    versions: Model versions of the others, shape (m,) with m = n - s, all >= 1.
    expansion, gradient: Lattice integers, shape (m, d).
    curvature: Lattice integers, packed, shape (m, d (d + 1) / 2).
    squares: Sums of squared slopes, shape (m, 1), or (m, 0) where they are not released.
    slots: Public number of slots of every release of the study.
    groups: Group of the client of each later release, shape (m,).
    """

    counts: Integers
    start: Integers
    versions: Integers
    expansion: Integers
    gradient: Integers
    curvature: Integers
    squares: Integers
    slots: int
    groups: Integers


@dataclass(frozen=True, slots=True)
class Shape:
    """How many numbers the parts of a study's releases hold.

    size: d, the number of coefficients.
    groups: Gradients of a release at the start: one for each class, else one.
    squares: 1 if later releases hold the sum of squared slopes, else 0.
    """

    size: int
    groups: int = 2
    squares: int = 0

    @classmethod
    def of(cls, task: RenewableTask) -> Shape:
        """Return the shape of a study's releases."""
        return cls(task.size, task.groups, 0 if task.classes else task.counted(1))

    @property
    def classes(self) -> int:
        """Numbers of a class count: 2, or 0 where there are no classes."""
        return 2 if self.groups == 2 else 0

    @property
    def rows(self) -> int:
        """Length of z = (g, n t, s, n, 1)."""
        return 2 * self.size + self.squares + 2


def epochs_by_version(versions: Integers) -> Integers:
    """Return floor(log2 version) of versions >= 1."""
    return np.frexp(versions.astype(np.float64))[1] - 1


@dataclass(slots=True)
class PrivateState(State):
    """Sums over the releases of one bucket of a private study.

    shape: How many numbers the parts hold.
    counts: Sum of the class counts, then the number of releases, then of their slots.
    start: Sum of the gradients at the start, then the number of those releases.
    epochs: Epoch to packed Gram matrix of (g, n t, s, n, 1), behind it the packed curvature, H t,
        and the sums of (g, n t, 1) of each group of clients.
    dirty: Names of the fields that changed since they were last stored.
    """

    shape: Shape
    counts: BigIntegers = field(init=False)
    start: BigIntegers = field(init=False)
    epochs: dict[int, BigIntegers] = field(default_factory=dict)
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start from zero."""
        self.counts = exact.zeros(self.shape.classes + 2)
        self.start = exact.zeros(self.shape.groups * self.shape.size + 1)

    @property
    def releases(self) -> int:
        """How many releases have been added."""
        return int(self.counts[-2])

    @property
    def slots(self) -> int:
        """How many record slots they had."""
        return int(self.counts[-1])

    @property
    def names(self) -> list[str]:
        """Names of its stored fields."""
        return [COUNTS, START, *(f"{EPOCH}{e}" for e in sorted(self.epochs))]

    @property
    def gram_length(self) -> int:
        """Length of one packed Gram matrix."""
        return self.shape.rows * (self.shape.rows + 1) // 2

    @property
    def epoch_length(self) -> int:
        """Length of the sums of one epoch."""
        size = self.shape.size
        return self.gram_length + size * (size + 1) // 2 + size + GROUPS * (2 * size + 1)

    def fold(self, batch: PrivateBatch) -> None:
        """Add releases; adding them one by one, in any order, gives the same bits."""
        releases, later = len(batch.counts), len(batch.versions)
        self.counts = self.counts + _with(batch.counts, releases, releases * batch.slots)
        self.dirty.add(COUNTS)
        if len(batch.start):
            self.start = self.start + _with(batch.start, len(batch.start))
            self.dirty.add(START)
        if later == 0:
            return
        ones = np.ones((later, 1), dtype=np.int64)
        moved = batch.slots * batch.expansion
        rows = np.hstack([batch.gradient, moved, batch.squares, batch.slots * ones, ones])
        clients = np.hstack([batch.gradient, moved, ones])
        epochs = epochs_by_version(batch.versions)
        for epoch in np.unique(epochs).tolist():
            own = epochs == epoch
            curvature = exact.column_sums(batch.curvature[own])
            along = exact.products(batch.curvature[own], batch.expansion[own])
            grouped = np.zeros((GROUPS, clients.shape[1]), dtype=np.int64)
            np.add.at(grouped, batch.groups[own], clients[own])
            apart = exact.column_sums(grouped.reshape(1, -1))
            self._add_epoch(epoch, exact.join(exact.gram(rows[own]), curvature, along, apart))
            self.dirty.add(f"{EPOCH}{epoch}")

    def add(self, other: PrivateState) -> None:
        """Add the sums of another partition."""
        self.counts = self.counts + other.counts
        self.start = self.start + other.start
        for epoch, part in other.epochs.items():
            self._add_epoch(epoch, part)

    def _encoded(self, name: str) -> bytes:
        return exact.encode(self._field(name))

    @classmethod
    def decode(cls, shape: Shape, fields: dict[str, bytes]) -> PrivateState:
        """Rebuild a state from all fields that `encode` gave.

        Raises StateError if a field is missing, unknown or of the wrong length.
        """
        state = cls(shape)
        if missing := {COUNTS, START} - fields.keys():
            raise StateError(
                f"the stored state lacks its field {sorted(missing)[0]!r}; the operator must "
                "run `veilstream state rebuild`"
            )
        for name, data in fields.items():
            if name in (COUNTS, START):
                setattr(state, name, exact.decode(data, len(getattr(state, name))))
            elif name.startswith(EPOCH) and name.removeprefix(EPOCH).isdecimal():
                epoch = int(name.removeprefix(EPOCH))
                state.epochs[epoch] = exact.decode(data, state.epoch_length)
            else:
                raise StateError(
                    f"the stored state has a field {name!r}, which this version does not know; "
                    "the operator must start the version that wrote it, or run `veilstream state "
                    "rebuild`"
                )
        return state

    def _field(self, name: str) -> BigIntegers:
        if name.startswith(EPOCH):
            return self.epochs[int(name.removeprefix(EPOCH))]
        held: BigIntegers = getattr(self, name)
        return held

    def _add_epoch(self, epoch: int, part: BigIntegers) -> None:
        held = self.epochs.get(epoch)
        self.epochs[epoch] = part if held is None else held + part


def _with(rows: Integers, *extra: int) -> BigIntegers:
    """Return the column sums of rows with some numbers behind them."""
    return exact.join(exact.column_sums(rows), exact.of(extra))
