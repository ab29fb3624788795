"""What the integer sums of sites say in real units, releases weighed by their age."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.linalg import packed_indices
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.methods.sites.state import BLOCKS, FIRST, RELEASES, SiteState, gathered
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Points:
    """Where releases were taken: those of each site, epoch and bucket together, in k rows.

    site, epoch: Place of their site, and their epoch; shape (k,).
    mean: Their mean point over record slots, shape (k, d).
    scatter: Mean of |t - mean|^2 over record slots, >= 0, shape (k,).
    bending: Sums of w n over those that leave something out beyond their point, shape (k,).
    noise: Variance of the noise of the summed curvature's diagonal, shape (k,).
    """

    site: Integers
    epoch: Integers
    mean: Matrix
    scatter: Vector
    bending: Vector
    noise: Vector


@dataclass(frozen=True, slots=True)
class Sites:
    """The releases of M sites in the last epochs; what is linear in one has its weight w.

    names: Digests of the clients' ids, sorted.
    score: Sums of w times the score at the release's own point, the negative gradient; shape (M,
        d).
    curvature, drift: Sums of w J, shape (M, d, d), and of w J t of curvatures times points, shape
        (M, d).
    squares: Sums of w times squared slopes, shape (M,); zeros where they are not released.
    records, squared: Sums of w n and of w^2 n over releases of n slots, shape (M,).
    score_noise, curvature_noise: Variance of the noise of an entry of the score, and of the
        curvature's diagonal; shape (M,).
    squares_noise: That of the squares, shape (M,).
    point: Mean point of the releases over record slots, shape (M, d).
    points: The same by epoch.
    """

    names: list[str]
    score: Matrix
    curvature: Matrix
    drift: Matrix
    squares: Vector
    records: Vector
    squared: Vector
    score_noise: Vector
    curvature_noise: Vector
    squares_noise: Vector
    point: Matrix
    points: Points

    def residuals(self, point: Vector) -> Matrix:
        """Return the sites' scores at a point, to first order, shape (M, d)."""
        moved: Matrix = self.score + self.drift - self.curvature @ point
        return moved


def sites_of(
    task: SiteTask, parts: Sequence[tuple[float, SiteState]], kept: Collection[int]
) -> Sites:
    """Return the sites of some buckets with their weights: their releases in the epochs `kept`."""
    names, which, weights, epochs, integers = gathered(parts, kept)
    start, rows, shape = epochs == 0, integers.astype(np.float64), parts[0][1].shape
    size = shape.size

    def unit(of: Iterable[float]) -> Vector:
        """Return the first of two units for releases at the start, else the second."""
        one, other = of
        return np.where(start, one, other)

    def summed(values: Matrix) -> Matrix:
        total: Matrix = np.zeros((len(names), *values.shape[1:]))
        np.add.at(total, which, values)
        return total

    both = (task.initial_channels, task.update_channels)
    curved, point_unit = task.update_channels.curvature, math.ldexp(1.0, COEFFICIENT_EXPONENT)
    # noise goes with releases, all that records say with blocks of slots
    blocks, twice = weights * rows[:, BLOCKS], weights**2 * rows[:, RELEASES]
    gradients = rows[:, FIRST : shape.curvature.start]
    gradient = (weights * unit(c.gradient.unit for c in both))[:, None] * gradients
    packed = (weights * curved.unit)[:, None] * rows[:, shape.curvature]
    squares, squares_noise = np.zeros(len(rows)), np.zeros(len(rows))
    if shape.squares:
        channels = [c.squares for c in both if c.squares is not None]
        squares = weights * unit(c.unit for c in channels) * rows[:, shape.curvature.stop]
        squares_noise = twice * unit(c.standard_deviation**2 for c in channels)
    means, scatter = shape.points_of(integers)
    curvature_noise = twice * curved.standard_deviation**2
    held = summed(blocks)
    exact = start & (task.loss.name == "linear")
    return Sites(
        names=names,
        score=-summed(gradient),
        curvature=summed(packed)[:, packed_indices(size)],
        drift=summed((weights * curved.unit * point_unit)[:, None] * shape.products(integers)),
        squares=summed(squares),
        records=held * task.slots,
        squared=summed(weights * blocks) * task.slots,
        score_noise=summed(twice * unit(c.gradient.standard_deviation**2 for c in both)),
        curvature_noise=summed(curvature_noise),
        squares_noise=summed(squares_noise),
        point=summed(blocks[:, None] * means) / held[:, None],
        points=Points(
            site=which,
            epoch=epochs,
            mean=means,
            scatter=scatter,
            bending=np.where(exact, 0.0, blocks) * task.slots,
            noise=curvature_noise,
        ),
    )
