"""The state of a study with locally private gradients: one path for each partition of its log.

theta_i = theta_{i-1} - eta_i P g_i over noised gradients g_i, in the order of the log; P is the
matrix of `scaling`, or the identity. With C_s the sum of theta - m up to record s after the burn-in
(m is the iterate at its end), the sums are A = sum C_s C_s' (or its diagonal), b = sum s C_s,
S = sum C_s, and for the least-squares curvature the sums of g, u, g u', u u' and g g' over the
points u at which the gradients were taken. A copy of them at n0 gives the sums of any later stretch
by subtraction: burn-ins are read off. Matrices that a release holds beside its
gradients are summed with them, and P follows from those.

Releases are added in the order of the log. Every operation is elementwise, strictly sequential, or
a sum within one release, so that the bits do not depend on how many releases come at once.

Where several partitions share a path, theta is theta_0 plus what each of them has moved it. A
`SgdPath` then holds one partition's part of the way, and its sums are those of the points u: they
are the shared path as it was published, so each partition's log holds the whole of it.
Source: ldp-sgd, path and random scaling; blocks and several partitions are this project's.

A path as bytes: whole numbers in MessagePack, all others as little-endian float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StateError
from pipeline.estimators.forgetting import State
from pipeline.linalg import unpack_upper
from pipeline.methods.ldp_sgd.step_rule import Rule, StepRule
from pipeline.types import Integers, Matrix, Vector

#: An iterate beyond this has diverged: published models cannot hold it.
LARGEST = 2.0**12
#: Copies of the sums that are kept as possible ends of the burn-in.
MARKS = 4
#: Numbers of one intermediate array: larger batches are cut, for the processor's cache.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class GradientBatch:
    """Validated releases of one study, in the order of the log.

    gradients: Real values, shape (releases, k, d).
    points: Where they were taken, shape (releases, d).
    watermarks, clock: Record slots that had been folded when each one's model was published, of
        this partition and of all, shape (releases,).
    extra: Packed matrices that came beside the gradients, shape (releases, m); m is 0 for none.
    """

    gradients: NDArray[np.float64]
    points: Matrix
    watermarks: Integers
    clock: Integers
    extra: Matrix

    def __getitem__(self, part: slice) -> GradientBatch:
        if not part.start and part.stop >= len(self.points):
            return self
        return GradientBatch(
            self.gradients[part], self.points[part], self.watermarks[part], self.clock[part],
            self.extra[part],
        )  # fmt: skip


@dataclass(slots=True)
class SgdPath:
    """One path: the iterate, its sums, and copies of the sums at possible ends of the burn-in.

    records, releases: How many came, the burn-in included.
    theta: The newest iterate, shape (d,); of a shared path the sum of this partition's steps.
    origin: m, the iterate at the end of the burn-in; zero before.
    marks: Copies of the sums, oldest first.
    diverged: The number of records after which the iterate passed its limit; None as long as it has
        not. The path stands still from there.
    matrix, steps: P, shape (d, d) or None for the identity, and the steps with the cap that goes
        with it: those of the newest copy of the sums.
    """

    rule: Rule
    records: int = 0
    releases: int = 0
    theta: Vector = field(init=False)
    origin: Vector = field(init=False)
    sums: Sums = field(init=False)
    marks: list[Sums] = field(default_factory=list)
    diverged: int | None = None
    matrix: Matrix | None = field(init=False)
    steps: StepRule = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the public start."""
        size = len(self.rule.start)
        self.theta = self.rule.start.copy()
        self.origin = np.zeros(size)
        self.sums = Sums.zero(size, full=self.rule.full, extra=self.rule.extra)
        if self.rule.burn_in == 0:
            self.marks = [self.sums]
        self.scale()

    def scale(self) -> None:
        """Take the matrix and the steps that follow from the newest copy of the sums."""
        scaling = self.rule.scaling
        self.matrix, self.steps = None, self.rule.steps
        if scaling is None:
            return
        matrix = scaling.first()
        if self.marks and self.marks[-1].records:
            mark, size = self.marks[-1], len(matrix)
            packed = mark.extra[: size * (size + 1) // 2]
            matrix = scaling.matrix(unpack_upper(packed / mark.records, size), mark.records)
        cap = min(self.rule.steps.cap, scaling.cloud / float(np.trace(matrix)))
        self.matrix, self.steps = matrix, replace(self.rule.steps, cap=cap)

    def fold(
        self,
        gradients: NDArray[np.float64],
        points: Matrix,
        watermarks: Integers | None = None,
        extra: Matrix | None = None,
        clock: Integers | None = None,
    ) -> None:
        """Move along the gradients of some releases, and add them to the sums.

        gradients: Shape (releases, k, d): k noised gradients of each release, in order.
        points: Shape (releases, d): where each release was linearised.
        watermarks: How many records had come when each one's model was published, shape
            (releases,); by default no model is late.
        extra: What came beside the gradients, shape (releases, rule.extra); may be left out where
            rule.extra is 0.
        clock: The same over all partitions, for the steps of a shared path: records that come at
            one time count alike, whether their partition gets few or many.
        """
        releases, block, size = gradients.shape
        if watermarks is None:
            watermarks = np.full(releases, np.iinfo(np.int64).max)
        if extra is None:
            extra = np.zeros((releases, 0))
        if clock is None:
            clock = np.zeros(releases, dtype=np.int64)
        batch = GradientBatch(gradients, points, watermarks, clock, extra)
        most = max(1, _CHUNK // max(block * size, size * size))
        for start in range(0, releases, most):
            self._fold(batch[start : start + most])

    def _fold(self, batch: GradientBatch) -> None:
        done = 0
        releases, block, _ = batch.gradients.shape
        while done < releases and self.diverged is None:
            # the burn-in ends with a release, and so does each stretch of one matrix
            rest = self.rule.burn_in - self.records
            count = rest <= 0
            target = self._target() if count else 0
            due = math.ceil((target - self.sums.records if count else rest) / block)
            take = min(releases - done, due)
            self._advance(batch[done : done + take], count=count)
            if count and self.sums.records >= target:
                self.marks = [*self.marks, self.sums][-MARKS:]
                self.scale()
            done += take

    def _target(self) -> int:
        """Return after how many records that count the next copy of the sums is due."""
        unit = self.rule.unit
        return unit * ((1 << (self.sums.records // unit + 1).bit_length()) - 1)

    def _advance(self, batch: GradientBatch, *, count: bool) -> None:
        releases, block, size = batch.gradients.shape
        # one coefficient after the other: running sums along memory are the fast ones
        by_entry = np.ascontiguousarray(batch.gradients.reshape(-1, size).T)
        steps = self._steps(batch.clock, releases, block)
        pull = by_entry if self.matrix is None else scaled(self.matrix, by_entry)
        moved = accumulated(self.theta, pull * -steps)
        # parts of a shared path may drift apart without bound where their sum does not
        if not self.rule.shared and not max(moved.max(), -moved.min()) <= LARGEST:
            bad = ~(np.abs(moved) <= LARGEST).all(axis=0)
            kept = int(np.argmax(bad)) // block
            if kept:
                self._advance(batch[:kept], count=count)
            self.diverged = self.records
            return
        path = np.repeat(batch.points.T, block, axis=1) if self.rule.shared else moved
        if count:
            late = np.maximum(self.records + block * np.arange(releases) - batch.watermarks, 0)
            self.sums = sums_along(
                self.sums, batch, by_entry, path - self.origin[:, None], steps, np.cumsum(late)
            )
        self.theta = moved[:, -1].copy()
        self.records += releases * block
        self.releases += releases
        if not count and self.records >= self.rule.burn_in:
            self.origin = path[:, -1].copy()
            self.marks = [self.sums]

    def _steps(self, clock: Integers, releases: int, block: int) -> Vector:
        if not self.rule.shared:
            return self.steps.steps(self.records + 1, releases * block)
        # a client that was away sends an old clock: its step must not be one of the first
        own = range(self.records, self.records + releases * block, block)
        known = zip(clock.tolist(), own, strict=True)
        return np.repeat([self.steps.step(max(pair) + block) for pair in known], block)

    def stretch(self) -> Sums:
        """Return the sums after a burn-in of 5 to 12 %, or of `burn_in` while that is more."""
        chosen = None
        for mark in self.marks:
            gone = self.records - self.sums.records + mark.records
            if chosen is None or gone <= self.records / 8:
                chosen = mark
        return self.sums if chosen is None else self.sums.since(chosen)

    def copy(self) -> SgdPath:
        """Return a path that goes on by itself; arrays are never changed in place."""
        twin = copy.copy(self)
        twin.marks = list(self.marks)
        return twin


def sums_along(
    held: Sums, batch: GradientBatch, by_entry: Matrix, path: Matrix, steps: Vector, late: Integers
) -> Sums:
    """Return the sums after the last release.

    held: The sums before the first one.
    by_entry: The gradients as (d, releases k).
    path: theta - m after each record, shape (d, releases k).
    steps: Shape (releases k,).
    late: How many records late the models of the releases so far were, shape (releases,).
    """
    gradients, (releases, block, size) = batch.gradients, batch.gradients.shape
    c = accumulated(held.c, path)
    index = np.arange(held.records + 1, held.records + releases * block + 1, dtype=np.float64)

    cubes = c.reshape(size, releases, block)
    g = by_entry.reshape(size, releases, block).sum(axis=2)
    a = (
        np.matmul(cubes.transpose(1, 0, 2), cubes.transpose(1, 2, 0)).transpose(1, 2, 0)
        if held.a.ndim == 2
        else np.vecdot(cubes, cubes)
    )
    products = np.matmul(gradients.transpose(0, 2, 1), gradients)
    u = batch.points.T
    running = {
        "s": accumulated(held.s, cubes.sum(axis=2)),
        "b": accumulated(held.b, np.vecdot(cubes, index.reshape(releases, block))),
        "a": accumulated(held.a, a),
        "g": accumulated(held.g, g.copy()),
        "u": accumulated(held.u, block * u),
        "gu": accumulated(held.gu, g[:, None, :] * u[None, :, :]),
        "uu": accumulated(held.uu, block * u[:, None, :] * u[None, :, :]),
        "gg": accumulated(held.gg, products.transpose(1, 2, 0)),
        "extra": accumulated(held.extra, batch.extra.T.copy()),
    }
    moved = accumulated(np.array(held.moved), steps.reshape(releases, block).sum(axis=1))

    return Sums(
        records=held.records + releases * block,
        behind=held.behind + int(late[-1]),
        moved=float(moved[-1]),
        c=c[:, -1].copy(),
        **{name: sums[..., -1].copy() for name, sums in running.items()},
    )


def accumulated(first: NDArray[np.float64], items: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn items, which nobody else holds, into first plus the items so far.

    They are added strictly one by one along the last axis, in place: copies cost as much as sums.
    """
    items[..., 0] += first
    return np.add.accumulate(items, axis=-1, out=items)


def scaled(matrix: Matrix, by_entry: Matrix) -> Matrix:
    """Return matrix times each column of (d, n), entry by entry: a fast product has other bits."""
    found: Matrix = matrix[:, :1] * by_entry[0]
    for column in range(1, len(by_entry)):
        found += matrix[:, column : column + 1] * by_entry[column]
    return found


@dataclass(frozen=True, slots=True)
class Sums:
    """Running sums after the burn-in, of `records` records.

    behind: Sum over releases of how many records late their models were.
    moved: Sum of the step sizes.
    c, s, b: C, S and b, shape (d,).
    a: A, shape (d, d), or its diagonal, shape (d,).
    g, u: Sums of gradients and of the points they were taken at, shape (d,).
    gu, uu, gg: Sums of their products, shape (d, d).
    extra: Sums of the released curvatures and then outer products, each a packed upper triangle of
        d (d + 1) / 2 entries; empty where neither is released.
    """

    records: int
    behind: int
    moved: float
    c: Vector
    s: Vector
    b: Vector
    a: Vector | Matrix
    g: Vector
    u: Vector
    gu: Matrix
    uu: Matrix
    gg: Matrix
    extra: Vector

    @classmethod
    def zero(cls, size: int, *, full: bool, extra: int = 0) -> Sums:
        """Return the sums of nothing."""
        vector, matrix = np.zeros(size), np.zeros((size, size))
        a = matrix if full else vector
        return cls(
            0, 0, 0.0, vector, vector, vector, a, vector, vector, matrix, matrix, matrix,
            np.zeros(extra),
        )  # fmt: skip

    @property
    def arrays(self) -> tuple[NDArray[np.float64], ...]:
        """All sums that are arrays, in the order of the fields."""
        return (
            self.c, self.s, self.b, self.a, self.g, self.u, self.gu, self.uu, self.gg, self.extra,
        )  # fmt: skip

    def since(self, mark: Sums) -> Sums:
        """Return the sums of the records after `mark`, as if C had begun at zero there."""
        t0, c0 = mark.records, mark.c
        count = self.records - t0
        s = self.s - mark.s - count * c0
        # sum (s - t0)(C_s - c0): the sum of the numbers 1..count is exact in Python
        b = self.b - mark.b - t0 * (self.s - mark.s) - c0 * (count * (count + 1) // 2)
        between = self.s - mark.s
        if self.a.ndim == 2:
            cross = np.outer(c0, between)
            a = self.a - mark.a - cross - cross.T + count * np.outer(c0, c0)
        else:
            a = self.a - mark.a - 2 * c0 * between + count * c0 * c0
        return Sums(
            count, self.behind - mark.behind, self.moved - mark.moved, self.c - c0, s, b, a,
            self.g - mark.g, self.u - mark.u, self.gu - mark.gu, self.uu - mark.uu,
            self.gg - mark.gg, self.extra - mark.extra,
        )  # fmt: skip


PATH = "path"


@dataclass(slots=True)
class SgdState(State):
    """The path of one partition, and those that have been merged with it.

    slots: Record slots that have come.
    dirty: Names of the fields that changed since they were last stored.
    """

    rule: Rule
    path: SgdPath = field(init=False)
    others: list[SgdPath] = field(default_factory=list)
    dirty: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start at the public point."""
        self.path = SgdPath(self.rule)

    @property
    def paths(self) -> list[SgdPath]:
        """All paths that have begun."""
        return [p for p in (self.path, *self.others) if p.releases or p.diverged is not None]

    @property
    def releases(self) -> int:
        return sum(path.releases for path in self.paths)

    @property
    def begun(self) -> bool:
        return bool(self.paths)

    @property
    def slots(self) -> int:
        """How many record slots they had."""
        return sum(path.records for path in self.paths)

    @property
    def names(self) -> list[str]:
        return [PATH]

    def fold(self, batch: GradientBatch) -> None:
        """Move along the gradients of some releases."""
        self.path.fold(batch.gradients, batch.points, batch.watermarks, batch.extra, batch.clock)
        self.dirty.add(PATH)

    def add(self, other: SgdState) -> None:
        """Put the paths of another partition beside this one's."""
        self.others = [*self.others, *(path.copy() for path in other.paths)]

    def encode_field(self, name: str) -> bytes:
        """Return the path as bytes; what has been merged with it is not stored."""
        del name
        return encode(self.path)

    @classmethod
    def decode(cls, rule: Rule, fields: dict[str, bytes]) -> SgdState:
        """Rebuild a state from what `encode` gave.

        Raises StateError if a field is missing, unknown, or cannot be read.
        """
        if fields.keys() != {PATH}:
            raise StateError(
                f"the stored state must have the field {PATH!r} and no other; the operator "
                "must run `veilstream state rebuild`"
            )
        state = cls(rule)
        state.path = decode(rule, fields[PATH])
        return state


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """Whole numbers as they are; `data` holds the floats of all parts.

    `rule` is the rule that the path was walked with: a cap follows from keys that a running study
    may change, and the rest of a path by another rule would be one that no log gives.
    """

    rule: tuple[float, ...]
    records: int
    releases: int
    diverged: int | None
    counts: list[tuple[int, int]]
    data: bytes


def encode(path: SgdPath) -> bytes:
    """Write a path."""
    parts = [path.sums, *path.marks]
    floats = [path.theta, path.origin]
    for part in parts:
        floats += [np.array([part.moved]), *(array.ravel() for array in part.arrays)]
    held = _Stored(
        rule=_numbers(path.rule),
        records=path.records,
        releases=path.releases,
        diverged=path.diverged,
        counts=[(part.records, part.behind) for part in parts],
        data=np.concatenate(floats).astype("<f8").tobytes(),
    )
    return msgspec.msgpack.encode(held)


def decode(rule: Rule, data: bytes) -> SgdPath:
    """Read what `encode` wrote; StateError if it is anything else, or of another rule."""
    try:
        held = msgspec.msgpack.decode(data, type=_Stored)
        floats = np.frombuffer(held.data, dtype="<f8").astype(np.float64)
        return _rebuilt(rule, held, floats)
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise StateError(
            "the stored path cannot be read, or its steps were others (estimator.path.behind, "
            "stream.publish); run `veilstream state rebuild`"
        ) from error


def _numbers(rule: Rule) -> tuple[float, ...]:
    steps = (rule.steps.eta0, rule.steps.alpha, rule.steps.cap, float(rule.burn_in))
    if rule.scaling is None:
        return steps
    scaling = rule.scaling
    return (*steps, scaling.cloud, scaling.noise, *scaling.reference.ravel().tolist())


def _rebuilt(rule: Rule, held: _Stored, floats: Vector) -> SgdPath:
    if held.rule != _numbers(rule):
        raise ValueError("another rule")
    path = SgdPath(rule)
    empty, size, at = path.sums, len(rule.start), 0

    def take(shape: Sequence[int]) -> Vector:
        nonlocal at
        count = math.prod(shape)
        if at + count > len(floats):
            raise ValueError("too few numbers")
        at += count
        return floats[at - count : at].reshape(shape)

    path.theta, path.origin = take((size,)), take((size,))
    parts = []
    for records, behind in held.counts:
        moved = float(take((1,))[0])
        arrays = [take(array.shape) for array in empty.arrays]
        parts.append(Sums(records, behind, moved, *arrays))
    if at != len(floats):
        raise ValueError("too many numbers")
    path.records, path.releases, path.diverged = held.records, held.releases, held.diverged
    path.sums, path.marks = parts[0], parts[1:]
    path.scale()
    return path
