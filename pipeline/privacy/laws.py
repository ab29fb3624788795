"""Laws of integers by their weights, bounded from both sides in integer arithmetic.

A sampler that decides every comparison by these bounds is exact: no rounding enters its law.

Exact draws of integers by table look-up, many at a time.

A uniform number U in [0, 1) stands for the k with P(X < k) <= U < P(X <= k). The table holds
floor(2^64 P(X <= k)); the first 64 bits of U decide unless they equal an entry. Then further bits
are drawn, and compared with bounds of the probabilities at a higher precision, until they decide:
the draw follows its law exactly. That happens once in about 2^50 draws.

How long a look-up takes depends on the draw, and so does a draw that needs further bits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers


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


#: Numbers drawn at a time: their buffers stay in the cache of one core.
BLOCK = 16_384
#: After so many numbers a guide, which takes a few milliseconds to make, is worth it.
GUIDED = 2_048
#: Fewer numbers at a time are looked up without it.
FEWEST = 128
_GUIDE_BITS = 16
_SHIFT = np.uint64(64 - _GUIDE_BITS)
#: Thresholds are rounded down from probabilities known to so many bits.
_PRECISION = 128
#: No draw is larger than this; beyond lies less than 2^-1000 of any law that fits the lattice.
LARGEST = 2**45


class Table:
    """A sampler of one law.

    law: Its tables are made once and shared: they depend on public numbers only.
    """

    def __init__(self, law: Law) -> None:
        self._law = law
        self.first, thresholds = _thresholds(law)
        # one entry behind the last, so that every index can be looked up
        self._thresholds = np.append(thresholds, np.uint64(2**64 - 1))
        self._guide: tuple[NDArray[np.intp], NDArray[np.bool_]] | None = None
        self._asked = 0

    def draw(self, count: int, stream: SecureStream) -> Integers:
        """Return `count` independent draws, int64 of shape (count,)."""
        self._asked += count
        if count < FEWEST or self._asked < GUIDED:
            uniforms = stream.uint64(count)
            index = np.searchsorted(self._thresholds, uniforms)
            chosen = self._thresholds.take(index, mode="clip")
            return self._settled(index, uniforms, chosen == uniforms, stream)
        draws = np.empty(count, dtype=np.int64)
        for start in range(0, count, BLOCK):
            part = draws[start : start + BLOCK]
            part[:] = self._guided(stream.uint64(len(part)), stream)
        return draws

    def _guided(self, uniforms: NDArray[np.uint64], stream: SecureStream) -> Integers:
        """Look up by the leading bits first: most of them leave one threshold to compare with."""
        if self._guide is None:
            self._guide = self._make_guide()
        guide, crowded = self._guide
        cells = (uniforms >> _SHIFT).view(np.int64)
        index = guide.take(cells, mode="clip")
        chosen = self._thresholds.take(index, mode="clip")
        ties = np.equal(chosen, uniforms)
        index += np.less(chosen, uniforms)
        several = crowded.take(cells, mode="clip").nonzero()[0]
        if several.size:
            index[several] = np.searchsorted(self._thresholds, uniforms[several])
            chosen = self._thresholds.take(index[several], mode="clip")
            ties[several] = chosen == uniforms[several]
        return self._settled(index, uniforms, ties, stream)

    def _make_guide(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        cells = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << _SHIFT
        begin = np.searchsorted(self._thresholds, cells)
        end = np.searchsorted(self._thresholds, cells | np.uint64((1 << 48) - 1), side="right")
        return begin, end - begin > 1

    def _settled(
        self,
        index: NDArray[np.intp],
        uniforms: NDArray[np.uint64],
        ties: NDArray[np.bool_],
        stream: SecureStream,
    ) -> Integers:
        """Return the draws, after more bits for those that 64 do not decide."""
        index += self.first
        if ties.any():
            for i in ties.nonzero()[0]:
                index[i] = resolve(self._law, int(uniforms[i]), stream)
        return index


@lru_cache(maxsize=128)
def table(law: Law) -> Table:
    """Return the sampler of a law."""
    return Table(law)


def resolve(law: Law, leading: int, stream: SecureStream) -> int:
    """Return the draw whose uniform number starts with these 64 bits.

    leading: The first 64 bits.
    stream: Where further bits come from.
    """
    bits = 64
    while True:
        leading = leading << 64 | int(stream.uint64(1)[0])
        bits += 64
        weights = law.weights(bits + 64)
        lower, upper = weights.cumulative(bits)
        if not law.endless:
            lower[-1] = 1 << bits
        # above every P(X < k) that it could be, and below P(X <= k)
        index = bisect_right(upper, leading)
        within = index < len(lower) and leading < lower[index]
        above = index > 0 and leading > upper[index - 1]
        if within and (above or (index == 0 and not law.endless)):
            return max(-LARGEST, min(LARGEST, weights.first + index))


def _thresholds(law: Law) -> tuple[int, NDArray[np.uint64]]:
    """Return the first integer of the table and floor(2^64 P(X <= k)) from there on."""
    bits = _PRECISION
    while True:
        weights = law.weights(bits)
        lower, upper = weights.cumulative(64)
        # the end of a finite support has probability one, which is no threshold
        end = None if law.endless else -1
        if lower[:end] == upper[:end]:
            return weights.first, np.array(lower[:end], dtype=np.uint64)
        bits *= 2
