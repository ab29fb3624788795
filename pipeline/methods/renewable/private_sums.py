"""What the integer sums of a private study say in real units, releases weighed by their age.

What is linear in releases is weighed by their weight w, and every variance by its square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.estimators.forgetting import effective
from pipeline.linalg import unpack_upper
from pipeline.methods.renewable import exact
from pipeline.methods.renewable.exact import BigIntegers
from pipeline.methods.renewable.private_state import GROUPS, PrivateState, Shape
from pipeline.methods.renewable.task import RenewableTask
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Matrix, Vector

#: Groups of clients have means of their own where there are so many releases for each of them and
#: each coefficient.
RELEASES_PER_GROUP = 3
#: So many releases more are taken off for the spread's own error: a t quantile of J is a normal one
#: z times 1 + (z^2 + 1) / 4 J, and z^2 is 3.8 at 95 %.
QUANTILE = 3
#: States of some buckets with their weights.
Weighed = Sequence[tuple[float, PrivateState]]
#: The sums of some epochs of each of these states, as floats, with the weights.
Sums = Sequence[tuple[float, Vector]]


@dataclass(frozen=True, slots=True)
class Moments:
    """Weighted moments of (g, n t, s, n) over some releases, in real units.

    gradient, expansion, slots: Sums of w g, w n t and w n.
    slopes: Sum of w s, the squared slopes of a regression; None where they are not released.
    squares: Sum of w^2: the noise of the weighted gradient is that of so many releases.
    releases: Effective number of releases: their number, where all weigh the same.
    records: Effective number of record slots.
    second: Sum of w^2 z z' with z = (g, n t, n).
    clients: Sums of w (g, n t, 1) and of w^2 (g, n t, 1) of each group of clients that has any,
        shapes (k, 2 d + 1).
    """

    gradient: Vector
    expansion: Vector
    slots: float
    slopes: float | None
    squares: float
    releases: float
    records: float
    second: Matrix
    clients: tuple[Matrix, Matrix]


@dataclass(frozen=True, slots=True)
class Curvature:
    """The noisy curvature of one record in some releases; nothing is repaired.

    mean: Shape (d, d), symmetric.
    unlike: Mean of (H - mean) (t - mean t), shape (d,): how curvature goes with the models.
    releases: Effective number of releases.
    """

    mean: Matrix
    unlike: Vector
    releases: float


@dataclass(frozen=True, slots=True)
class Newest:
    """Some of the newest epochs of all parts.

    newer, oldest: For each part the sums of the epochs behind the oldest one, and of that; None
        where a part has none.
    """

    parts: Weighed
    newer: Sequence[BigIntegers | None]
    oldest: Sequence[BigIntegers | None]

    def sums(self, share: float = 1.0) -> Sums:
        """Return the sums with the oldest epoch weighed by `share`, in (0, 1]."""
        if share == 1.0:
            return self._as_floats(self.whole, 1.0)
        return [*self._as_floats(self.newer, 1.0), *self._as_floats(self.oldest, share)]

    @property
    def whole(self) -> list[BigIntegers | None]:
        """The sums of all these epochs."""
        return [
            new if old is None else old if new is None else new + old
            for new, old in zip(self.newer, self.oldest, strict=True)
        ]

    def _as_floats(self, sums: Sequence[BigIntegers | None], share: float) -> Sums:
        return [
            (w * share, np.zeros(state.epoch_length) if held is None else exact.as_floats(held))
            for (w, state), held in zip(self.parts, sums, strict=True)
        ]


def newest_epochs(parts: Weighed) -> Iterator[Newest]:
    """Yield the newest epoch, the two newest, and so on."""
    newer: list[BigIntegers | None] = [None] * len(parts)
    for epoch in reversed(epochs_of(parts)):
        found = Newest(parts, newer, [state.epochs.get(epoch) for _, state in parts])
        yield found
        newer = found.whole


def moments_of(task: RenewableTask, shape: Shape, sums: Sums) -> Moments:
    """Return the moments of the releases in some sums."""
    size, counts = task.size, task.update_channels.counts
    units, of_one, linear = _units(
        shape, task.update_channels.gradient.unit, counts.unit if counts else 1.0
    )
    length = shape.rows * (shape.rows + 1) // 2
    grams = [(w, vector[:length]) for w, vector in sums]
    total = unpack_upper(_weighted(grams), shape.rows) * units
    first, second = total[:, -1], total
    if any(weight != 1.0 for weight, _ in sums):
        second = unpack_upper(_weighted(grams, power=2), shape.rows) * units
    apart = [(w, vector[-GROUPS * len(of_one) :]) for w, vector in sums]
    once, twice = (_weighted(apart, power=power).reshape(GROUPS, -1) * of_one for power in (1, 2))
    some = once[:, -1] > 0
    slots, releases, squares = float(first[-2]), float(first[-1]), float(second[-1, -1])
    return Moments(
        gradient=first[:size],
        expansion=first[size : 2 * size],
        slots=slots,
        slopes=float(first[2 * size]) if shape.squares else None,
        squares=squares,
        releases=effective(releases, squares),
        records=effective(slots, float(second[-2, -1])),
        second=second[linear],
        clients=(once[some], twice[some]),
    )


def curvature_of(task: RenewableTask, shape: Shape, sums: Sums, point: Vector) -> Curvature:
    """Return the curvature in some sums, whose mean model is `point`.

    Older ones are left out: where the first models were far away, so was the curvature.
    """
    channel = task.update_channels.curvature
    unit = channel.unit if channel else 0.0
    length = shape.rows * (shape.rows + 1) // 2
    packed = task.size * (task.size + 1) // 2
    tails = [(w, vector[length - 1 : length + packed + task.size]) for w, vector in sums]
    total = _weighted(tails)
    means = total[1:] * unit / (total[0] * task.slots)
    mean = unpack_upper(means[:packed], task.size)
    along = means[packed:] * math.ldexp(1.0, COEFFICIENT_EXPONENT)
    releases = effective(float(total[0]), sum(w * w * float(tail[0]) for w, tail in tails))
    return Curvature(mean, along - mean @ point, releases)


def epochs_of(parts: Weighed) -> list[int]:
    """Return the epochs that there are, oldest first."""
    return sorted({epoch for _, state in parts for epoch in state.epochs})


def between_releases(moments: Moments, curvature: Matrix) -> Matrix:
    """Estimate the variance of the summed gradient, sampling and noise together.

    y_j = g_j - n Abar t_j deviates from the mean m of its client's group by what is chance, and
    enters with the square of its weight. How clients differ is not chance: it stays the same from
    stream to stream. With few releases for each group, all are one group.
    """
    size = len(moments.gradient)
    project = np.hstack([np.eye(size), -curvature])
    once, twice = moments.clients
    if moments.releases < RELEASES_PER_GROUP * (size + len(once)):
        once, twice = once.sum(axis=0, keepdims=True), twice.sum(axis=0, keepdims=True)
    counts = once[:, -1:]
    means = once[:, :-1] @ project.T / counts
    crossed = (twice[:, :-1] @ project.T).T @ means
    within = project @ moments.second[: 2 * size, : 2 * size] @ project.T
    spread = within - crossed - crossed.T + (means * twice[:, -1:]).T @ means
    lost = len(once) + QUANTILE
    return spread * moments.releases / (moments.releases - lost)


def spread_about(moments: Moments, point: Vector) -> Matrix:
    """Return the mean of (t - point) (t - point)' over the releases' models, shape (d, d)."""
    size = len(point)
    sums, count = moments.second, moments.second[-1, -1]
    points = sums[size : 2 * size, size : 2 * size] / count
    cross = np.outer(sums[size : 2 * size, -1] / count, point)
    spread: Matrix = points - cross - cross.T + np.outer(point, point)
    return spread


def total_of(parts: Weighed, of: Callable[[PrivateState], BigIntegers]) -> Vector:
    """Return the weighted total of some sums of each state."""
    return _weighted([(w, exact.as_floats(of(state))) for w, state in parts])


def _weighted(vectors: Sequence[tuple[float, Vector]], *, power: int = 1) -> Vector:
    """Return the sum of w^power times each vector; a weight of 1 rounds nothing."""
    total: Vector = np.sum([w**power * vector for w, vector in vectors], axis=0)
    return total


@lru_cache(maxsize=16)
def _units(shape: Shape, gradient: float, count: float) -> tuple[Matrix, Vector, Any]:
    """Return the units of the products in z z', those of (g, n t, 1), and where (g, n t, n) are."""
    size = shape.size
    unit = np.ones(shape.rows)
    unit[:size] = gradient
    unit[size : 2 * size] = math.ldexp(1.0, COEFFICIENT_EXPONENT)
    if shape.squares:
        unit[2 * size] = count
    linear = np.r_[0 : 2 * size, shape.rows - 2]
    return np.outer(unit, unit), np.append(unit[: 2 * size], 1.0), np.ix_(linear, linear)
