"""Laws of integers by their weights, bounded from both sides in integer arithmetic.

A sampler that decides every comparison by these bounds is exact: no rounding enters its law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Weights:
    """Bounds of the weights of consecutive integers, all in one unit.

    first: The integer that the first weight belongs to.
    low, high: Lower and upper bounds of the weights.
    left, right: Upper bounds of what lies to the left and to the right of the list; lower bounds
        are 0.
    """

    first: int
    low: list[int]
    high: list[int]
    left: int
    right: int

    def cumulative(self, bits: int) -> tuple[list[int], list[int]]:
        """Return lower and upper bounds of 2^bits P(X <= k), rounded down, for all k listed."""
        below_low, below_high = 0, self.left
        above_low, above_high = sum(self.low), sum(self.high) + self.right
        lower, upper = [], []
        for low, high in zip(self.low, self.high, strict=True):
            below_low += low
            below_high += high
            above_low -= low
            above_high -= high
            lower.append((below_low << bits) // (below_low + above_high))
            # where weight is left out on the right, no probability listed is one
            top = (below_high << bits) // (below_high + above_low)
            upper.append(min(top, (1 << bits) - 1) if self.right else top)
        return lower, upper


class Law(Protocol):
    """A probability law of integers; `endless`: its support has no end."""

    endless: ClassVar[bool]

    def weights(self, bits: int) -> Weights:
        """Return weights that leave out less than about 2^-bits of the mass.

        Their own relative errors are below 2^-bits too.
        """


@dataclass(frozen=True, slots=True)
class Gaussian:
    """P(X = k) proportional to exp(-k^2 / (2 sigma^2)) on all integers."""

    sigma: float
    endless: ClassVar[bool] = True

    def weights(self, bits: int) -> Weights:
        """Return weights from -reach to reach; see `Law.weights`."""
        reach = math.ceil(self.sigma * math.sqrt(2 * math.log(2) * bits)) + 1
        low_base, high_base, unit = _exponential(-1, 2 * Fraction(self.sigma) ** 2, bits)
        low = _squares(low_base, unit, reach, 0)
        high = _squares(high_base, unit, reach, 1)
        # beyond the reach each weight is less than exp(-reach / sigma^2) times the one before
        tail = math.ceil(high[-1] * self.sigma**2 / reach) + 1
        return Weights(-reach, low[:0:-1] + low, high[:0:-1] + high, tail, tail)


@dataclass(frozen=True, slots=True)
class Laplace:
    """The law of floor(Y / stride) for a discrete Laplace Y, P(Y = k) as exp(-|k| / scale).

    P(X = k) is proportional to exp(-stride k / scale) for k >= 0, and to exp(-1 / scale) times
    exp(stride (k + 1) / scale) for k < 0.
    """

    scale: float
    stride: int
    endless: ClassVar[bool] = True

    def weights(self, bits: int) -> Weights:
        """Return weights from -reach to reach - 1; see `Law.weights`."""
        reach = math.ceil(self.scale / self.stride * math.log(2) * bits) + 1
        low_base, high_base, unit = _exponential(-self.stride, Fraction(self.scale), bits)
        low_step, high_step, _ = _exponential(-1, Fraction(self.scale), bits)
        low = _powers(low_base, unit, reach, 0)
        high = _powers(high_base, unit, reach, 1)
        tail = math.ceil(high[-1] * (1 + self.scale / self.stride)) + 1
        return Weights(
            -reach,
            [w * low_step >> unit for w in reversed(low)] + low,
            [(w * high_step >> unit) + 1 for w in reversed(high)] + high,
            tail,
            tail,
        )


@dataclass(frozen=True, slots=True)
class Digit:
    """P(X = k) proportional to exp(-stride k / scale) for k = 0 ... count - 1."""

    scale: float
    stride: int
    count: int
    endless: ClassVar[bool] = False

    def weights(self, bits: int) -> Weights:
        """Return all weights; see `Law.weights`."""
        low_base, high_base, unit = _exponential(-self.stride, Fraction(self.scale), bits)
        low = _powers(low_base, unit, self.count, 0)
        high = _powers(high_base, unit, self.count, 1)
        return Weights(0, low, high, 0, 0)


def _exponential(top: int, bottom: Fraction, bits: int) -> tuple[int, int, int]:
    """Return integers around 2^unit exp(top / bottom), and the unit, well above `bits`."""
    unit = bits + 128
    with localcontext() as context:
        # floats are exact as fractions; the quotient, the exponential and the product are wrong
        # in their last digit at most
        context.prec = 400 + unit
        value = (Decimal(top * bottom.denominator) / Decimal(bottom.numerator)).exp()
        near = int(value * (1 << unit))
    return near - 1, min(near + 2, 1 << unit), unit


def _squares(base: int, unit: int, reach: int, excess: int) -> list[int]:
    """Return base^(k^2) for k = 0 ... reach; each product is rounded down, plus `excess`."""
    weight, ratio = 1 << unit, base
    square = (base * base >> unit) + excess
    weights = [weight]
    for _ in range(reach):
        weight = (weight * ratio >> unit) + excess
        ratio = (ratio * square >> unit) + excess
        weights.append(weight)
    return weights


def _powers(base: int, unit: int, count: int, excess: int) -> list[int]:
    """Return base^k for k = 0 ... count - 1; each product is rounded down, plus `excess`."""
    weight, weights = 1 << unit, []
    for _ in range(count):
        weights.append(weight)
        weight = (weight * base >> unit) + excess
    return weights
