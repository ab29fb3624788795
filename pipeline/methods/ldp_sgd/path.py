"""The path of online gradient descent and the running sums that its intervals need.

theta_i = theta_{i-1} - eta_i g_i over noised gradients g_i, in the order of the log. With C_s the
sum of theta - m up to record s after the burn-in (m is the iterate at its end), the sums are
A = sum C_s C_s' (or its diagonal), b = sum s C_s, S = sum C_s, and for the least-squares curvature
the sums of g, u, g u', u u' and g g' over the points u at which the gradients were taken. A copy
of them at n0 gives the sums of any later stretch by subtraction: burn-ins and batches are read off.
Matrices that a release holds beside its gradients are summed with them.

Releases are added in the order of the log. Every operation is elementwise, strictly sequential, or
a sum within one release, so that the bits do not depend on how many releases come at once.

Where several partitions share a path, theta is theta_0 plus what each of them has moved it. A
`SgdPath` then holds one partition's part of the way, and its sums are those of the points u: they
are the shared path as it was published, so each partition's log holds the whole of it.
Source: ldp-sgd, path and random scaling; blocks and several partitions are this project's.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.methods.ldp_sgd.batch_means import OnlineBatches
from pipeline.methods.ldp_sgd.steps import StepRule
from pipeline.methods.ldp_sgd.sums import Sums
from pipeline.types import Integers, Matrix, Vector

#: An iterate beyond this has diverged: published models cannot hold it.
LARGEST = 2.0**12
#: Copies of the sums that are kept as possible ends of the burn-in.
MARKS = 4
#: The first copy after the burn-in is made no earlier than after so many records.
LEAST_MARK = 1000
#: Numbers of one intermediate array: larger batches are cut, for the processor's cache.
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Rule:
    """What is public about a path.

    Attributes
    ----------
    steps
        The step sizes.
    burn_in
        Records before the sums begin, >= 0; copies are kept at burn_in 2^j.
    start
        theta_0, shape (d,).
        Zero in a shared path, whose start is added by who brings the parts together.
    full
        Whether A is a matrix, for intervals of contrasts, or its diagonal alone.
    extra
        How many numbers come beside the gradients of a release.
    shared
        Whether the path is one partition's part of a path that several move.
    """

    steps: StepRule
    burn_in: int
    start: Vector
    full: bool = False
    extra: int = 0
    shared: bool = False


@dataclass(slots=True)
class SgdPath:
    """One path: the iterate, its sums, and copies of the sums at possible ends of the burn-in.

    Attributes
    ----------
    records, releases
        How many came, the burn-in included.
    theta
        The newest iterate, shape (d,); of a shared path the sum of this partition's steps.
    origin
        m, the iterate at the end of the burn-in; zero before.
    sums
        The running sums.
    marks
        Copies of the sums, oldest first.
    batches
        Totals of the online batches, see `batch_means`.
    diverged
        The number of records after which the iterate passed its limit; None as long as it has not.
        The path stands still from there.
    kept
        The iterates that the sums are of, in pieces of shape (n, d), where they are asked for by an
        empty list; a worker has no room for them.
    """

    rule: Rule
    records: int = 0
    releases: int = 0
    theta: Vector = field(init=False)
    origin: Vector = field(init=False)
    sums: Sums = field(init=False)
    marks: list[Sums] = field(default_factory=list)
    batches: OnlineBatches = field(init=False)
    diverged: int | None = None
    kept: list[Matrix] | None = None

    def __post_init__(self) -> None:
        """Begin at the public start."""
        size = len(self.rule.start)
        self.theta = self.rule.start.copy()
        self.origin = np.zeros(size)
        self.sums = Sums.zero(size, full=self.rule.full, extra=self.rule.extra)
        self.batches = OnlineBatches.before(self.sums, self.rule.steps.alpha)
        if self.rule.burn_in == 0:
            self.marks = [self.sums]

    def fold(
        self,
        gradients: NDArray[np.float64],
        points: Matrix,
        watermarks: Integers | None = None,
        extra: Matrix | None = None,
        clock: Integers | None = None,
    ) -> None:
        """Move along the gradients of some releases, and add them to the sums.

        Parameters
        ----------
        gradients
            Shape (releases, k, d): k noised gradients of each release, in order.
        points
            Shape (releases, d): where each release was linearised.
        watermarks
            How many records had come when each one's model was published, shape (releases,); by
            default no model is late.
        extra
            What came beside the gradients, shape (releases, rule.extra); by default nothing.
        clock
            The same over all partitions, for the steps of a shared path: records that come at one
            time count alike, whether their partition gets few or many.
        """
        releases, block, size = gradients.shape
        if watermarks is None:
            watermarks = np.full(releases, np.iinfo(np.int64).max)
        if extra is None:
            extra = np.zeros((releases, 0))
        if clock is None:
            clock = np.zeros(releases, dtype=np.int64)
        most = max(1, _CHUNK // max(block * size, size * size))
        for start in range(0, releases, most):
            part = slice(start, start + most)
            self._fold(gradients[part], points[part], watermarks[part], extra[part], clock[part])

    def _fold(
        self,
        gradients: NDArray[np.float64],
        points: Matrix,
        watermarks: Integers,
        extra: Matrix,
        clock: Integers,
    ) -> None:
        done = 0
        while done < len(gradients) and self.diverged is None:
            # the burn-in ends with a release, and begins the sums anew
            rest = self.rule.burn_in - self.records
            block = gradients.shape[1]
            take = len(gradients) - done
            if rest > 0:
                take = min(take, math.ceil(rest / block))
            part = slice(done, done + take)
            self._advance(
                gradients[part], points[part], watermarks[part], extra[part], clock[part],
                count=rest <= 0,
            )  # fmt: skip
            done += take

    def _advance(
        self,
        gradients: NDArray[np.float64],
        points: Matrix,
        watermarks: Integers,
        extra: Matrix,
        clock: Integers,
        *,
        count: bool,
    ) -> None:
        releases, block, size = gradients.shape
        # one coefficient after the other: running sums along memory are the fast ones
        by_entry = np.ascontiguousarray(gradients.reshape(-1, size).T)
        steps = self._steps(clock, releases, block)
        moved = _running(self.theta, by_entry * -steps)
        # parts of a shared path may drift apart without bound where their sum does not
        if not self.rule.shared and not max(moved.max(), -moved.min()) <= LARGEST:
            bad = ~(np.abs(moved) <= LARGEST).all(axis=0)
            kept = int(np.argmax(bad)) // block
            if kept:
                part = slice(kept)
                self._advance(
                    gradients[part], points[part], watermarks[part], extra[part], clock[part],
                    count=count,
                )  # fmt: skip
            self.diverged = self.records
            return
        path = np.repeat(points.T, block, axis=1) if self.rule.shared else moved
        if count:
            late = np.maximum(self.records + block * np.arange(releases) - watermarks, 0)
            self._add(gradients, by_entry, points, path, steps, np.cumsum(late), extra)
            if self.kept is not None:
                self.kept.append(path.T.copy())
        self.theta = moved[:, -1].copy()
        self.records += releases * block
        self.releases += releases
        if not count and self.records >= self.rule.burn_in:
            self.origin = path[:, -1].copy()
            self.marks = [self.sums]

    def _steps(self, clock: Integers, releases: int, block: int) -> Vector:
        if not self.rule.shared:
            return self.rule.steps.steps(self.records + 1, releases * block)
        # a client that was away sends an old clock: its step must not be one of the first
        own = range(self.records, self.records + releases * block, block)
        known = zip(clock.tolist(), own, strict=True)
        return np.repeat([self.rule.steps.step(max(pair) + block) for pair in known], block)

    def _add(
        self,
        gradients: NDArray[np.float64],
        by_entry: Matrix,
        points: Matrix,
        path: Matrix,
        steps: Vector,
        late: Integers,
        extra: Matrix,
    ) -> None:
        releases, block, size = gradients.shape
        held = self.sums
        c = _running(held.c, path - self.origin[:, None])
        index = np.arange(held.records + 1, held.records + releases * block + 1, dtype=np.float64)

        cubes = c.reshape(size, releases, block)
        g = by_entry.reshape(size, releases, block).sum(axis=2)
        a = (
            np.matmul(cubes.transpose(1, 0, 2), cubes.transpose(1, 2, 0)).transpose(1, 2, 0)
            if self.rule.full
            else np.vecdot(cubes, cubes)
        )
        products = np.matmul(gradients.transpose(0, 2, 1), gradients)
        u = points.T
        running = {
            "s": _running(held.s, cubes.sum(axis=2)),
            "b": _running(held.b, np.vecdot(cubes, index.reshape(releases, block))),
            "a": _running(held.a, a),
            "g": _running(held.g, g.copy()),
            "u": _running(held.u, block * u),
            "gu": _running(held.gu, g[:, None, :] * u[None, :, :]),
            "uu": _running(held.uu, block * u[:, None, :] * u[None, :, :]),
            "gg": _running(held.gg, products.transpose(1, 2, 0)),
            "extra": _running(held.extra, extra.T.copy()),
        }
        moved = _running(np.array(held.moved), steps.reshape(releases, block).sum(axis=1))

        def at(release: int) -> Sums:
            return Sums(
                records=held.records + (release + 1) * block,
                behind=held.behind + int(late[release]),
                moved=float(moved[release]),
                c=c[:, (release + 1) * block - 1].copy(),
                **{name: sums[..., release].copy() for name, sums in running.items()},
            )

        for release in _ends(held.records, releases, block, max(self.rule.burn_in, LEAST_MARK)):
            self.marks = [*self.marks, at(release)][-MARKS:]
        for release, number in self.batches.ends(held.records, releases, block):
            self.batches = self.batches.closed(at(release), number)
        self.sums = at(releases - 1)

    def stretch(self) -> Sums:
        """Return the sums after a burn-in of 6 to 12 %, or of `burn_in` while that is more."""
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


def _ends(before: int, releases: int, block: int, unit: int) -> list[int]:
    """Return the releases after which the counted records pass unit (2^j - 1), j >= 1."""
    found, target = [], unit
    while target <= before + releases * block:
        if target > before:
            found.append(math.ceil((target - before) / block) - 1)
        target = 2 * target + unit
    return found


def _running(first: NDArray[np.float64], items: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn items, which nobody else holds, into first plus the items so far.

    They are added strictly one by one along the last axis, in place: copies cost as much as sums.
    """
    items[..., 0] += first
    return np.add.accumulate(items, axis=-1, out=items)
