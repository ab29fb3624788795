"""How far each site is from the others, and how much it may weigh.

Sites truly differ, besides what records and noise vary: by so much that half of them are nearer
than half of equal sites would be. Measured so, an honest site has a squared distance of d on
average. Beyond the limit it is weighed down in proportion, so that its pull no longer grows; far
beyond it is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from pipeline.types import Vector

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
