"""Discrete Laplace noise: P(X = k) proportional to exp(-|k| / scale) on the integers.

Source: Ghosh, Roughgarden and Sundararajan 2012 (the two-sided geometric law). A draw is written
in digits, X = stride Q + R with 0 <= R < stride a power of two. Given the sign of Q the digits are
independent, and for a negative Q the digit is stride - 1 - R: a table for each, and no error.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.privacy.laws import Digit, Laplace
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.tables import Table, table
from pipeline.types import Integers

#: Scale of the leading digit, at most; and how many values a lower digit takes.
LEADING = 64
DIGITS = 1024
#: Range of the scale, in lattice units.
SMALLEST, LARGEST = 0.02, 2.0**38


class DiscreteLaplace:
    """A sampler of the discrete Laplace law.

    scale: In lattice units, in [0.02, 2^38).

    Raises PrivacyError if the scale is outside its range.
    """

    def __init__(self, scale: float) -> None:
        if not SMALLEST <= scale < LARGEST:
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
