"""Discrete Gaussian noise by table look-up, from cryptographic uniforms.

P(X = k) is proportional to exp(-k^2 / (2 sigma^2)) on the integers (Canonne, Kamath and Steinke
2020). A table of cumulative probabilities in units of 2^-64, computed with 256-bit integers, turns
one uniform 64-bit integer into one draw. For a large sigma the draw is `stride` X1 + X2 with two
small tables, whose law is a discrete Gaussian up to a relative error of 4 exp(-2 pi^2 s^2) with
s = sigma1 sigma2 / sigma (Poisson summation; Micciancio and Walter 2017): below 1e-40 here.

The noise never depends on the data, and neither do the tables. How long a look-up takes does
depend on the draw.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PrivacyError
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers

#: The support is cut at this many standard deviations: mass below 1e-31 is left out.
REACH = 12
#: Largest sigma that one table serves; 64-bit thresholds of 24 sigma + 1 steps fit the cache.
SINGLE_TABLE = 256.0
#: Half the ratio of the fine table's sigma to the stride, see the error in the module's text.
OVERLAP = 2.5
_PRECISION = 256


class DiscreteGaussian:
    """A sampler of integers with P(X = k) proportional to exp(-k^2 / (2 sigma^2)).

    Parameters
    ----------
    sigma
        Scale in lattice units, >= 0.5 and below 2^40.

    Raises
    ------
    PrivacyError
        If sigma is outside its range.
    """

    def __init__(self, sigma: float) -> None:
        if not 0.5 <= sigma < 2**40:
            raise PrivacyError("the noise scale must lie in [0.5, 2^40) lattice units")
        self.sigma = sigma
        self._terms = _decompose(sigma)

    @property
    def bound(self) -> int:
        """Largest absolute value that can be drawn."""
        return sum(stride * (len(table) // 2) for stride, table in self._terms)

    @property
    def total_variation(self) -> float:
        """Upper bound of the distance of one draw from the exact law."""
        return sum(2.0**-63 + (len(table) + 1) * 2.0**-64 for _, table in self._terms) + 1e-30

    def draw(self, count: int, stream: SecureStream) -> Integers:
        """Return `count` independent draws, int64 of shape (count,)."""
        total = np.zeros(count, dtype=np.int64)
        for stride, table in self._terms:
            steps = np.searchsorted(table, stream.uint64(count), side="right")
            total += stride * (steps - len(table) // 2)
        return total


def _decompose(sigma: float) -> tuple[tuple[int, NDArray[np.uint64]], ...]:
    """Write a draw as a sum of stride times table draws."""
    if sigma <= SINGLE_TABLE:
        return ((1, _thresholds(sigma)),)
    stride = math.floor(sigma / (SINGLE_TABLE / 2))
    fine = OVERLAP * stride
    coarse = math.sqrt(sigma * sigma - fine * fine) / stride
    return ((stride, _thresholds(coarse)), *_decompose(fine))


@lru_cache(maxsize=256)
def _thresholds(sigma: float) -> NDArray[np.uint64]:
    """Return floor(2^64 P(X <= k)) for k from -reach to reach - 1; length 2 reach.

    A uniform u below entry i, and not below entry i - 1, means the draw i - reach.
    """
    reach = math.ceil(REACH * sigma)
    one = 1 << _PRECISION
    with localcontext() as context:
        context.prec = 90
        base = (Decimal(-1) / (2 * Decimal(sigma) ** 2)).exp()
        ratio = int(base * one)
        square = int(base * base * one)
    # weight(k + 1) = weight(k) r^(2k + 1); each product loses less than 2^-255 of itself
    weights, weight = [one], one
    for _ in range(reach):
        weight = weight * ratio >> _PRECISION
        ratio = ratio * square >> _PRECISION
        weights.append(weight)
    total = weights[0] + 2 * sum(weights[1:])
    running, cumulative = 0, []
    for k in range(-reach, reach):
        running += weights[abs(k)]
        cumulative.append((running << 64) // total)
    return np.array(cumulative, dtype=np.uint64)
