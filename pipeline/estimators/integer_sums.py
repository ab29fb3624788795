"""Sums of integers that cannot overflow unseen and do not depend on order.

A batch is summed in int64 or float64 within bounds that make every step exact, then added to
integers of 128 bits. They are stored as they are added: little-endian two's complement. Releases
hold integers below 2^42, their products are below 2^86, and 2^41 releases of them still fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StateError
from pipeline.linalg import pack_upper
from pipeline.types import Integers, Vector

WIDTH = 16
_LIMB = 22
_ROWS = 512
_HALF = 64


@dataclass(frozen=True, slots=True, eq=False)
class BigIntegers:
    """A vector of integers of 128 bits; they behave as Python integers that raise on overflow.

    low, high: Entry i is high[i] 2^64 + low[i]; shapes (m,).
    """

    low: NDArray[np.uint64]
    high: Integers

    def __len__(self) -> int:
        return len(self.low)

    def __iter__(self) -> Iterator[int]:
        return iter(self.tolist())

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> BigIntegers: ...
    def __getitem__(self, place: int | slice) -> int | BigIntegers:
        if isinstance(place, slice):
            return BigIntegers(self.low[place], self.high[place])
        return (int(self.high[place]) << _HALF) + int(self.low[place])

    def __add__(self, other: BigIntegers) -> BigIntegers:
        low = self.low + other.low
        # a sum of unsigned numbers that is smaller than one of them has gone round
        high = self.high + other.high
        high += low < self.low
        if np.any((self.high ^ high) & (other.high ^ high) < 0):
            raise OverflowError("a sum of a state does not fit 128 bits")
        return BigIntegers(low, high)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.tolist(), dtype=object).astype(dtype or object)

    def take(self, places: Integers) -> BigIntegers:
        """Return the entries at some places."""
        return BigIntegers(self.low[places], self.high[places])

    def tolist(self) -> list[int]:
        """Return Python integers."""
        pairs = zip(self.high.tolist(), self.low.tolist(), strict=True)
        return [(high << _HALF) + low for high, low in pairs]


def zeros(count: int) -> BigIntegers:
    """Return `count` integer zeros."""
    return BigIntegers(np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.int64))


def of(values: Sequence[int]) -> BigIntegers:
    """Return Python integers of less than 128 bits; OverflowError if one does not fit."""
    data = b"".join([int(value).to_bytes(WIDTH, "little", signed=True) for value in values])
    return decode(data, len(values))


def join(*parts: BigIntegers) -> BigIntegers:
    """Return the entries of some vectors, one after the other."""
    return BigIntegers(
        np.concatenate([part.low for part in parts]), np.concatenate([part.high for part in parts])
    )


def column_sums(rows: Integers) -> BigIntegers:
    """Return the sums over the first axis of an (n, m) array of integers below 2^42, n < 2^20."""
    return _widened(rows.sum(axis=0))


def gram(rows: Integers) -> BigIntegers:
    """Return the packed upper triangle of rows' rows, exactly.

    rows: Shape (n, m), absolute values below 2^42.

    Each entry is split as high 2^22 + low with |low| <= 2^21 and |high| < 2^21; products of such
    parts summed over 512 rows stay below 2^52, where float64 matrix products are exact in any
    order of summation.
    """
    total = _gram_block(rows[:_ROWS])
    for start in range(_ROWS, len(rows), _ROWS):
        total += _gram_block(rows[start : start + _ROWS])
    return total


def cross(left: Integers, right: Integers) -> BigIntegers:
    """Return the sums of products of two sets of columns, exactly, row by row.

    left, right: Shapes (n, k) and (n, m), absolute values below 2^42.

    Returns: k m integers: those of the first column of `left` first. Parts are those of `gram`.
    """
    total = zeros(left.shape[1] * right.shape[1])
    for start in range(0, len(left), _ROWS):
        (high, low), (upper, lower) = (
            tuple(part.astype(np.float64) for part in _limbs(rows[start : start + _ROWS]))
            for rows in (left, right)
        )
        crosses = low.T @ upper + high.T @ lower
        products = (low.T @ lower, crosses, high.T @ upper)
        total = total + _joined(*(part.astype(np.int64).ravel() for part in products))
    return total


def _limbs(values: Integers) -> tuple[Integers, Integers]:
    """Return high and low of high 2^22 + low, |low| <= 2^21."""
    high = (values + (np.int64(1) << (_LIMB - 1))) >> _LIMB
    return high, values - (high << _LIMB)


def _gram_block(rows: Integers) -> BigIntegers:
    high, rest = _limbs(rows)
    low = rest.astype(np.float64)
    lows = pack_upper(low.T @ low).astype(np.int64)
    if not high.any():
        return _widened(lows)
    upper = high.astype(np.float64)
    cross = upper.T @ low
    crosses = pack_upper(cross + cross.T).astype(np.int64)
    return _joined(lows, crosses, pack_upper(upper.T @ upper).astype(np.int64))


def _joined(lows: Integers, crosses: Integers, highs: Integers) -> BigIntegers:
    """Return lows + crosses 2^22 + highs 2^44."""
    # what a limb has beyond 22 bits goes to the next one, which stays below 2^54
    limb = (1 << _LIMB) - 1
    crosses = crosses + (lows >> _LIMB)
    highs = highs + (crosses >> _LIMB)
    rest = ((crosses & limb) << _LIMB) | (lows & limb)
    return BigIntegers(((highs << 2 * _LIMB) | rest).view(np.uint64), highs >> (_HALF - 2 * _LIMB))


def as_floats(values: BigIntegers) -> Vector:
    """Return the nearest float64 of each integer, ties to even."""
    sign = values.high >> (_HALF - 1)
    if np.array_equal(values.high, values.low.view(np.int64) >> (_HALF - 1)):
        return values.low.view(np.int64).astype(np.float64)
    # the magnitude: minus v is the complement of v, plus one
    flip = sign.view(np.uint64)
    low = (values.low ^ flip) - flip
    high = (values.high ^ sign).view(np.uint64) + ((sign != 0) & (low == 0))
    # its first 64 bits, the last of them set if any bit behind them is: that rounds as all bits do
    bits = np.frexp(high.astype(np.float64))[1]
    below = bits.astype(np.uint64)
    above = np.uint64(_HALF) - below
    first = (high << above) | (low >> below) | ((low << above) != 0)
    sizes: Vector = np.ldexp(first.astype(np.float64), bits)
    return sizes * (1 + 2 * sign)


def encode(values: BigIntegers) -> bytes:
    """Write integers as 16 bytes each, little-endian, two's complement."""
    both = np.empty((len(values), 2), dtype="<u8")
    both[:, 0] = values.low
    both[:, 1] = values.high.view(np.uint64)
    return both.tobytes()


def decode(data: bytes, count: int) -> BigIntegers:
    """Read what `encode` wrote; StateError if the length is not that of `count` integers."""
    if len(data) != WIDTH * count:
        raise StateError(
            f"stored sums have {len(data)} bytes where {WIDTH * count} are needed; run "
            "`veilstream state rebuild`"
        )
    both = np.frombuffer(data, dtype="<u8").reshape(count, 2).astype(np.uint64)
    return BigIntegers(both[:, 0].copy(), both[:, 1].copy().view(np.int64))


def _widened(values: Integers) -> BigIntegers:
    return BigIntegers(values.view(np.uint64), values >> (_HALF - 1))
