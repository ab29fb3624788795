"""Exact samplers of the discrete Gaussian and the discrete Laplace distribution.

Discrete Gaussian noise: P(X = k) proportional to exp(-k^2 / (2 sigma^2)) on the integers.
Source: Canonne, Kamath and Steinke 2020. A small sigma takes one table. For a large one the draw
is stride X1 + X2 with a table for each, whose law is a discrete Gaussian up to a factor within
1 +- 2.01 exp(-2 pi^2 s^2) at every point, with s = sigma1 sigma2 / sigma (Poisson summation;
Micciancio and Walter 2017): within 1 +- 1e-48 here. `pipeline.privacy.laws` draws exactly.

Discrete Laplace noise: P(X = k) proportional to exp(-|k| / scale) on the integers.
Source: Ghosh, Roughgarden and Sundararajan 2012 (the two-sided geometric law). A draw is written
in digits, X = stride Q + R with 0 <= R < stride a power of two. Given the sign of Q the digits are
independent, and for a negative Q the digit is stride - 1 - R: a table for each, and no error.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy.laws import Digit, Gaussian, Laplace, Table, table
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers

#: Largest sigma that one table serves: its thresholds fit the cache of one core.
SINGLE_TABLE = 1024
#: Ratio of the fine table's sigma to the stride, see the error in the module's text.
OVERLAP = 2.5
#: Range of sigma, in lattice units.
SMALLEST_SIGMA, LARGEST_SIGMA = 0.1, 2.0**40


class DiscreteGaussian:
    """A sampler of the discrete Gaussian.

    sigma: Scale in lattice units, in [0.1, 2^40).

    Raises PrivacyError if sigma is outside its range.
    """

    def __init__(self, sigma: float) -> None:
        if not SMALLEST_SIGMA <= sigma < LARGEST_SIGMA:
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

        The twelfth is that of rounding, which keeps its scale: `mechanism.gaussian`.
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


#: Scale of the leading digit, at most; and how many values a lower digit takes.
LEADING = 64
DIGITS = 1024
#: Range of the scale, in lattice units.
SMALLEST_SCALE, LARGEST_SCALE = 0.02, 2.0**38


class DiscreteLaplace:
    """A sampler of the discrete Laplace law.

    scale: In lattice units, in [0.02, 2^38).

    Raises PrivacyError if the scale is outside its range.
    """

    def __init__(self, scale: float) -> None:
        if not SMALLEST_SCALE <= scale < LARGEST_SCALE:
            raise PrivacyError("the noise scale must lie in [0.02, 2^38) lattice units")
        self.scale = scale
        self._stride = 1 << max(0, math.frexp(scale / LEADING)[1])

    @property
    def standard_deviation(self) -> float:
        """Standard deviation, in lattice units: sqrt(2 q) / (1 - q) with q = exp(-1 / scale)."""
        return math.sqrt(2 * math.exp(-1 / self.scale)) / -math.expm1(-1 / self.scale)

    @property
    def reach(self) -> float:
        """What a draw practically never passes, in lattice units."""
        return 64 * self.scale

    def scaled(self, factor: float) -> DiscreteLaplace:
        """Return the same noise with another scale."""
        return DiscreteLaplace(factor * self.scale)

    @cached_property
    def _leading(self) -> Table:
        return table(Laplace(self.scale, self._stride))

    @cached_property
    def _digits(self) -> tuple[tuple[int, Table], ...]:
        return _digits(self.scale, self._stride)

    def draw(self, count: int, stream: SecureStream) -> Integers:
        """Return `count` independent draws, int64 of shape (count,)."""
        leading = self._leading.draw(count, stream)
        if not self._digits:
            return leading
        rest = np.zeros(count, dtype=np.int64)
        for stride, part in self._digits:
            rest += stride * part.draw(count, stream)
        # stride - 1 - R is R with all its bits turned
        rest ^= (leading >> 63) & (self._stride - 1)
        leading *= self._stride
        leading += rest
        return leading


def _digits(scale: float, whole: int) -> tuple[tuple[int, Table], ...]:
    """Write 0 ... whole - 1 in digits, each with its stride and its sampler."""
    parts, stride = [], 1
    while stride < whole:
        values = min(DIGITS, whole // stride)
        parts.append((stride, table(Digit(scale, stride, values))))
        stride *= values
    return tuple(parts)
