"""How far sites are from each other, what they weigh then, and what is shown.

Sites truly differ, besides what records and noise vary: by so much that half of them are nearer
than half of equal sites would be. Measured so, an honest site has a squared distance of d on
average. Beyond the limit it is weighed down in proportion, so that its pull no longer grows; far
beyond it is left out.

A score that is linearised leaves out what grows with the square of the way from its point to the
estimate, and no standard error knows of it. Honest sites of an epoch had the same few models.

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, log_ndtr, ndtri

from pipeline.methods.sites.client import WeighedTask
from pipeline.types import Matrix, Vector

#: With fewer sites nobody can tell who of them is wrong.
LEAST_SITES = 4
#: Share of honest sites beyond the limit, of normal scores.
BEYOND = 0.01
#: A site is left out where its squared distance is so many times the limit.
FLAGGED = 2.5
#: Curvatures differ as records do, which no normal law describes: theirs may be so many times it.
FLAGGED_CURVATURE = 16.0
#: Where the search for how much sites differ begins.
TINY = 1e-24
#: A site that is all of the middle varies about it by this share of its variance, and not by 0.
ALONE = 1e-9
Values = NDArray[np.float64]


def limit_of(numbers: int) -> float:
    """Return the squared distance that `BEYOND` of honest sites pass, of so many numbers."""
    return float(chdtri(numbers, BEYOND))


def difference(squared: Callable[[float], Vector], numbers: int, most: float = math.inf) -> float:
    """Return the variance by which sites differ, in [0, most].

    squared: Returns their squared distances, (M,), for such a variance; falling in it, to zero.
    most: What it was from the middle of all sites. A site with many records draws the estimate away
        from all others, which then look as if they differed, and it no longer does.
    """
    usual = float(chdtri(numbers, 0.5))

    def differ(variance: float) -> bool:
        return float(np.median(squared(variance))) > usual

    if not differ(0.0):
        return 0.0
    high = TINY
    while differ(high):
        high *= 16
    low = high / 16
    for _ in range(10):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if differ(middle) else (low, middle)
    return min(high, most)


def beside_middle(
    own: Values, shape: Vector | float, shares: Vector | None
) -> Callable[[float], Values]:
    """Return the variance of what each site says beside the middle of all, itself among them.

    As a function of the variance by which sites differ, times their shape.

    own: That of what it says where they do not, > 0, shape (M,) or (M, k).
    shares: Of a mean of sites, in [0, 1] with the sum 1, shape (M,); None: it is their median.
    """
    if shares is not None:
        # linear in what varies, so that a search for the variance adds two numbers of each
        alike = _beside_mean(own, shares)
        apart = _beside_mean(np.broadcast_to(shape, own.shape), shares)
        return lambda variance: alike + variance * apart
    usual = np.median(own, axis=0)
    return lambda variance: _beside_median(own + variance * shape, usual + variance * shape)


def _beside_mean(varied: Values, shares: Vector) -> Values:
    each = shares if varied.ndim == 1 else shares[:, None]
    found: Values = varied * (1 - 2 * each) + shares**2 @ varied
    # a site that is all of the middle is at no distance from it
    return np.maximum(found, ALONE * varied)


def _beside_median(varied: Values, usual: Values) -> Values:
    """Return that of a median.

    It moves by sign(x) / (2 sum f) with each x, f its density there: of a normal number of variance
    v, 1 / sqrt(2 pi v). None is denser than the median itself, or one exact site among noisy ones
    would count as if they all stood where it does.

    usual: The median of what varies.
    """
    count = len(varied)
    density = 1 / np.sqrt(np.maximum(varied, math.pi / 2 * usual / count))
    total = density.sum(axis=0)
    found: Values = varied * (1 - 2 * density / total) + count * math.pi / 2 / total**2
    return np.maximum(found, ALONE * varied)


def factors(squared: Vector, numbers: int) -> Vector:
    """Return the factors in [0, 1] by which sites weigh less for their distance, shape (M,)."""
    if len(squared) < LEAST_SITES:
        return np.ones(len(squared))
    limit = limit_of(numbers)
    least = np.maximum(squared, limit)
    return np.where(squared > FLAGGED * limit, 0.0, np.sqrt(limit / least))


def possible(share: float, count: int) -> float:
    """Return the share, or where so few sites cannot all keep it, twice that of equal ones."""
    return share if count * share > 1 else min(1.0, 2 / max(count, 1))


def capped(mass: Vector, share: float) -> Vector:
    """Return factors in (0, 1] with which no mass is more than a share of their sum, shape (M,)."""
    some = mass > 0
    share = possible(share, int(np.count_nonzero(some)))
    largest = np.sort(mass)[::-1]
    rest = float(largest.sum())
    for cut, value in enumerate(largest.tolist()):
        total = rest / (1 - cut * share) if cut * share < 1 else 0.0
        if value <= share * total:
            break
        rest -= value
    return np.where(some, np.minimum(1.0, share * total / np.where(some, mass, 1.0)), 1.0)


Mask: TypeAlias = NDArray[np.bool_]

#: What linearised scores leave out may move a coefficient by so many of its standard errors: 95 %
#: intervals whose middle is off by so much hold the truth in 93 %.
NEAR = 0.4
#: Ways from the public start and from the first model, one step from there, are longer by a
#: standard error: they are short by chance alone. Later models are apart by chance themselves.
FIRST = 1
#: No way is longer: it is far beyond all that is near, and so are its squares.
ANYWHERE = 1e30
#: A site lies where its square of the way is so many times that of the median site of its epoch.
FARTHER = 25.0


def ways(task: WeighedTask, away: Matrix, scatter: Vector, rows: Matrix) -> tuple[Vector, Vector]:
    """Return the mean square of a predictor's way from each of the points, and a bound, (k,).

    The bound is of its way times the longest, which ranges allow: the mean square alone says
    nothing of the few records of a rare level.

    away: From the coefficients to the mean points, shape (k, d); scatter: their scatter, (k,).
    rows: Mean curvature, 1 for the intercept, without negative eigenvalues.
    """
    # where records say nothing an estimate may lie anywhere, and its square is to be a number
    away = np.clip(away, -ANYWHERE, ANYWHERE)
    squares = np.einsum("ki,ij,kj->k", away, rows, away)
    squares += scatter * float(np.linalg.eigvalsh(rows)[-1])
    # encoded entries are within -1 and 1
    longest = np.minimum(
        np.sum(np.abs(away), axis=1) + np.sqrt(scatter * away.shape[1]),
        task.longest * np.sqrt(np.sum(away**2, axis=1) + scatter),
    )
    # rounding makes a square of next to nothing negative
    squares = np.maximum(squares, 0.0)
    return squares, longest * np.sqrt(squares)


def longer(away: Matrix, rows: Matrix, chance: Matrix) -> Vector:
    """Return by which factors ways are longer that chance makes short by a standard error, (k,).

    Else intervals would come to those streams first whose estimates chance drew to the points.

    away: Shape (k, d); chance: covariance of their ends; rows: as in `ways`, of any scale.
    """
    turned = away @ rows
    lengths = np.maximum(np.einsum("ki,ki->k", away, turned), 1e-300)
    errors = np.sqrt(np.einsum("ki,ij,kj->k", turned, chance, turned))
    found: Vector = 1 + errors / lengths
    return found


def of_each(left_out: float, bent: float, scale: float, bread: Matrix) -> Vector:
    """Return how far each coefficient moves at most, shape (d,).

    left_out, bent: Means over records of what is left out, and of its bound that `ways` gives.
    scale: Mean curvature of one record that the means are in units of.
    """
    inverse = np.linalg.inv(bread)
    # two bounds of one mean product, that of what is left out and of what a record tells of a
    # coefficient: the first holds for rare levels, the second is less where none is rare
    either: Vector = np.minimum(
        bent * np.sqrt(scale * np.diag(inverse)),
        left_out * scale * np.sum(np.abs(inverse), axis=1),
    )
    return either


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
    longer = widening_factors(shown, covariance, level)
    longer[np.isinf(longer)] = math.nan
    wider = covariance * np.outer(longer, longer)
    # it is the noise that is in doubt
    return wider, privacy + wider - covariance


def widening_factors(shown: Shown, covariance: Matrix, level: float) -> Vector:
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
