"""Discrete Gaussian noise: P(X = k) proportional to exp(-k^2 / (2 sigma^2)) on the integers.

Source: Canonne, Kamath and Steinke 2020. A small sigma takes one table. For a large one the draw
is stride X1 + X2 with a table for each, whose law is a discrete Gaussian up to a factor within
1 +- 2.01 exp(-2 pi^2 s^2) at every point, with s = sigma1 sigma2 / sigma (Poisson summation;
Micciancio and Walter 2017): within 1 +- 1e-48 here. `pipeline.privacy.tables` draws exactly.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy.laws import Gaussian
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.tables import Table, table
from pipeline.types import Integers

#: Largest sigma that one table serves: its thresholds fit the cache of one core.
SINGLE_TABLE = 1024
#: Ratio of the fine table's sigma to the stride, see the error in the module's text.
OVERLAP = 2.5
#: Range of sigma, in lattice units.
SMALLEST, LARGEST = 0.1, 2.0**40


class DiscreteGaussian:
    """A sampler of the discrete Gaussian.

    sigma: Scale in lattice units, in [0.1, 2^40).

    Raises PrivacyError if sigma is outside its range.
    """

    def __init__(self, sigma: float) -> None:
        if not SMALLEST <= sigma < LARGEST:
            raise PrivacyError("the noise scale must lie in [0.1, 2^40) lattice units")
        self.sigma = sigma

    @property
    def standard_deviation(self) -> float:
        """Standard deviation, in lattice units; sigma itself where that is not tiny."""
        return self.sigma

    @property
    def reach(self) -> float:
        """What a draw practically never passes, in lattice units."""
        return 16 * self.sigma

    def scaled(self, factor: float) -> DiscreteGaussian:
        """Return the noise that stands for a continuous one of another scale.

        The twelfth is that of rounding, which keeps its scale: `pipeline.privacy.channel.gaussian`.
        """
        return DiscreteGaussian(math.sqrt((self.sigma**2 - 1 / 12) * factor**2 + 1 / 12))

    @cached_property
    def _terms(self) -> tuple[tuple[int, Table], ...]:
        return _decompose(self.sigma)

    def draw(self, count: int, stream: SecureStream) -> Integers:
        """Return `count` independent draws, int64 of shape (count,)."""
        total = np.zeros(count, dtype=np.int64)
        for stride, part in self._terms:
            total += stride * part.draw(count, stream)
        return total


def _decompose(sigma: float) -> tuple[tuple[int, Table], ...]:
    """Write a draw as a sum of strides times table draws."""
    if sigma <= SINGLE_TABLE:
        return ((1, table(Gaussian(sigma))),)
    # powers of two: all sigmas of one octave share their fine table
    stride = 1 << math.frexp(sigma / SINGLE_TABLE)[1]
    fine = OVERLAP * stride
    coarse = math.sqrt(sigma * sigma - fine * fine) / stride
    return ((stride, table(Gaussian(coarse))), *_decompose(fine))
