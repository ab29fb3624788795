"""How long intervals are that come only where a noised number stands far enough out of its noise.

An estimate divides by what records say in each direction, which is noised, and is shown only where
all of it is above a limit. Near the limit those streams come first in which noise made it larger,
and so drew the estimate to the points of its scores. So the noise of such a number reaches as far
as that of a normal number that is shown only above a limit (Lee, Sun, Sun and Taylor 2016, Exact
post-selection inference, theorem 5.2). And a true coefficient is farther from those points than its
estimate is, by what the same noise may have drawn: ends are those of Fieller's set (1954, Some
problems in interval estimation), which knows that. Derived in docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtri

from pipeline.types import Matrix, Vector

#: No noise is said to reach farther, in deviations.
FARTHEST = 5.0
#: Nor to be a larger share of a number at its limit: with all of it no interval would end.
SHARE = 7 / 8
#: No limit is nearer, in deviations: ends near it would be cut short by the share above. With less,
#: intervals of features that nearly move together would miss too often where few streams have them.
NEAREST = 5.0
#: What ends of intervals of low levels are not less than, in deviations.
LEAST = 1e-3
HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Shown:
    """Numbers that decide whether an estimate is shown: what records say in some directions.

    axes: The directions, unit columns, shape (d, k).
    clear: How far above their limits the numbers are, in deviations of their noise, > 0, (k,).
    limits: Their limits, in deviations, (k,).
    gains: By how much one deviation moves coefficients for each unit of the way, shape (d, k).
    way: From the points of the scores to the coefficients, shape (d,).
    """

    axes: Matrix
    clear: Vector
    limits: Vector
    gains: Matrix
    way: Vector


def widened(
    shown: Shown, covariance: Matrix, privacy: Matrix, level: float
) -> tuple[Matrix, Matrix]:
    """Return a covariance and its noise's part as intervals need them; NaN: no interval ends.

    Each coefficient for itself: others that were withheld with it would be shown only where it is,
    which is one more choice by chance.
    """
    longer = factors(shown, covariance, level)
    longer[np.isinf(longer)] = math.nan
    wider = covariance * np.outer(longer, longer)
    # it is the noise that is in doubt
    return wider, privacy + wider - covariance


def factors(shown: Shown, covariance: Matrix, level: float) -> Vector:
    """Return how many times as long intervals are as those of a covariance, >= 1, shape (d,).

    Infinite where the noise of a number may be all of it.

    covariance: Of the coefficients, with the noise of the numbers at its usual size.

    The far end misses the truth in 1 - level of what is shown, and the near one, as far away, in
    next to none where that is longer than usual.
    """
    usual, one_sided = -float(ndtri((1 - level) / 2)), max(float(ndtri(level)), LEAST)
    ends = np.array(
        [
            reach(clear, level, one_sided, min(FARTHEST, SHARE * limit))
            for clear, limit in zip(shown.clear.tolist(), shown.limits.tolist(), strict=True)
        ]
    )
    longer, variances = (ends / one_sided) ** 2, np.diag(covariance)
    # along this other coefficients follow one that is moved; column j: of coefficient j
    along = shown.axes.T @ (covariance / variances)
    gains, way = (shown.gains**2).T, (shown.axes.T @ shown.way)[:, None]
    # the variance of what an estimate lacks is c + b s + a s^2 where the coefficient is s away
    constant = variances + np.sum(gains * (longer[:, None] - 1) * way**2, axis=0)
    slope = 2 * np.sum(gains * longer[:, None] * way * along, axis=0)
    square = np.sum(gains * longer[:, None] * along**2, axis=0)
    rest = 1 - one_sided**2 * square
    middle = one_sided**2 * np.abs(slope) / 2
    ended = rest > 0
    root = np.sqrt(middle**2 + one_sided**2 * constant * np.maximum(rest, 0.0))
    far = np.where(ended, (middle + root) / np.where(ended, rest, 1.0), math.inf)
    found: Vector = np.maximum(1.0, far / (usual * np.sqrt(variances)))
    return found


def reach(clear: float, level: float, least: float, most: float) -> float:
    """Return how far the end of an interval is of a normal number that is shown below a limit.

    clear: How far below the limit it is, in deviations, > 0.
    least, most: What the end is not less and not more than, in deviations.

    Numbers that are shown have the truth beyond it in 1 - level of cases.
    """
    rarest = math.log(1 - level)

    def misses(half: float) -> bool:
        return float(log_ndtr(-half) - log_ndtr(clear - half)) > rarest

    low, high = least, max(least, most)
    if not misses(low):
        return low
    for _ in range(HALVINGS):
        half = (low + high) / 2
        low, high = (half, high) if misses(half) else (low, half)
    return high
