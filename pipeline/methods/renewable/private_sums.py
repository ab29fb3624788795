"""What the integer sums of a private study say in real units, releases weighed by their age.

What is linear in releases is weighed by their weight w, and every variance by its square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.estimators.forgetting import effective
from pipeline.linalg import Floored, floor_eigenvalues, unpack_upper
from pipeline.methods.renewable import exact
from pipeline.methods.renewable.exact import BigIntegers
from pipeline.methods.renewable.private_state import PrivateState
from pipeline.methods.renewable.task import RenewableTask
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Matrix, Vector

#: Epochs that enter the estimate: older expansion points are too far from the truth.
LAST_EPOCHS = 3
#: Eigenvalue floor: a share of the mean eigenvalue, and a multiple of the noise's spectral norm.
FLOOR_SHARE, FLOOR_NOISE = 0.02, 0.5
#: States of some buckets with their weights.
Weighed = Sequence[tuple[float, PrivateState]]


@dataclass(frozen=True, slots=True)
class Moments:
    """Weighted moments of (g, n t, s, n) over some releases, in real units.

    Attributes
    ----------
    gradient, expansion, slots
        Sums of w g, w n t and w n.
    slopes
        Sum of w s, the squared slopes of a regression; None where they are not released.
    squares
        Sum of w^2: the noise of the weighted gradient is that of so many releases.
    releases
        Effective number of releases: their number, where all weigh the same.
    records
        Effective number of record slots.
    second
        Sum of w^2 z z' with z = (g, n t, n).
    """

    gradient: Vector
    expansion: Vector
    slots: float
    slopes: float | None
    squares: float
    releases: float
    records: float
    second: Matrix


def moments_of(task: RenewableTask, parts: Weighed) -> Moments:
    """Return the moments over the last epochs."""
    shape, size = parts[0][1].shape, task.size
    last = sorted({epoch for _, state in parts for epoch in state.epochs})[-LAST_EPOCHS:]

    def gram(state: PrivateState) -> Vector:
        held = [state.epochs[epoch] for epoch in last if epoch in state.epochs]
        return exact.as_floats(sum(held[1:], held[0]) if held else exact.zeros(state.gram_length))

    unit = np.ones(shape.rows)
    unit[:size] = task.update_channels.gradient.unit
    unit[size : 2 * size] = math.ldexp(1.0, COEFFICIENT_EXPONENT)
    if shape.squares and task.update_channels.counts is not None:
        unit[2 * size] = task.update_channels.counts.unit
    units = np.outer(unit, unit)
    grams = [(w, gram(state)) for w, state in parts]
    total = unpack_upper(_weighted(grams), shape.rows) * units
    first, second = total[:, -1], total
    if any(weight != 1.0 for weight, _ in parts):
        second = unpack_upper(_weighted(grams, power=2), shape.rows) * units
    slots, releases, squares = float(first[-2]), float(first[-1]), float(second[-1, -1])
    linear = np.r_[0 : 2 * size, shape.rows - 2]
    return Moments(
        gradient=first[:size],
        expansion=first[size : 2 * size],
        slots=slots,
        slopes=float(first[2 * size]) if shape.squares else None,
        squares=squares,
        releases=effective(releases, squares),
        records=effective(slots, float(second[-2, -1])),
        second=second[np.ix_(linear, linear)],
    )


def curvature_of(task: RenewableTask, parts: Weighed) -> tuple[Matrix, Floored]:
    """Return the mean curvature of one record with its eigenvalues floored, and the repair."""
    size = task.size
    sums = total_of(parts, lambda state: state.curvature)
    slots = float(sums[-1])
    part = task.update_channels.curvature
    if part is None:
        raise PrivacyError("the task of this study has no curvature, but its state has one")
    total = unpack_upper(sums[:-2] * part.unit, size)
    squares = sum(w**2 * float(state.curvature[-2]) for w, state in parts)
    noise = math.sqrt(squares) * part.standard_deviation
    least = max(
        FLOOR_SHARE * float(np.trace(total)) / size, FLOOR_NOISE * noise * math.sqrt(2 * size)
    )
    repair = floor_eigenvalues(total, least)
    return repair.matrix / slots, repair


def between_releases(moments: Moments, curvature: Matrix) -> Matrix:
    """Estimate the variance of the summed gradient, sampling and noise together.

    r_j = g_j - n_j (c + Abar t_j) is what release j deviates from the common linear score, and
    enters with the square of its weight.
    """
    size = len(moments.gradient)
    centre = (moments.gradient - curvature @ moments.expansion) / moments.slots
    project = np.hstack([np.eye(size), -curvature, -centre[:, None]])
    spread = project @ moments.second @ project.T
    return spread * moments.releases / (moments.releases - size)


def distance_of(moments: Moments, coefficients: Vector, bread: Matrix) -> float:
    """Return the mean square distance of predictors at the releases' models from the estimate's."""
    size = len(coefficients)
    sums, count = moments.second, moments.second[-1, -1]
    points = sums[size : 2 * size, size : 2 * size] / count
    cross = np.outer(sums[size : 2 * size, -1] / count, coefficients)
    spread = points - cross - cross.T + np.outer(coefficients, coefficients)
    return float(np.sum(bread * spread) / bread[0, 0])


def total_of(parts: Weighed, of: Callable[[PrivateState], BigIntegers]) -> Vector:
    """Return the weighted total of some sums of each state."""
    return _weighted([(w, exact.as_floats(of(state))) for w, state in parts])


def _weighted(vectors: Sequence[tuple[float, Vector]], *, power: int = 1) -> Vector:
    """Return the sum of w^power times each vector; a weight of 1 rounds nothing."""
    total: Vector = np.sum([w**power * vector for w, vector in vectors], axis=0)
    return total
