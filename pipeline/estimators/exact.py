"""Sums of integers that cannot overflow and do not depend on order.

A batch is summed in int64 or float64 within bounds that make every step exact, then added to
Python integers. They are stored as 128-bit little-endian two's complement: releases hold integers
below 2^42, their products are below 2^86, and 2^41 releases of them still fit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import StateError
from pipeline.linalg import pack_upper
from pipeline.types import Integers, Vector

#: An array of Python integers.
BigIntegers = NDArray[np.object_]
WIDTH = 16
_LIMB = 22
_ROWS = 512


def zeros(count: int) -> BigIntegers:
    """Return `count` integer zeros."""
    return np.zeros(count, dtype=object)


def column_sums(rows: Integers) -> BigIntegers:
    """Return the sums over the first axis of an (n, m) array of integers below 2^42, n < 2^20."""
    total: BigIntegers = rows.sum(axis=0).astype(object)
    return total


def gram(rows: Integers) -> BigIntegers:
    """Return the packed upper triangle of rows' rows, exactly.

    Parameters
    ----------
    rows
        Shape (n, m), absolute values below 2^42.

    Notes
    -----
    Each entry is split as high 2^22 + low with |low| <= 2^21 and |high| < 2^21; products of such
    parts summed over 512 rows stay below 2^52, where float64 matrix products are exact in any
    order of summation.
    """
    size = rows.shape[1]
    total = zeros(size * (size + 1) // 2)
    for start in range(0, len(rows), _ROWS):
        total += _gram_block(rows[start : start + _ROWS])
    return total


def _gram_block(rows: Integers) -> BigIntegers:
    half = np.int64(1) << (_LIMB - 1)
    high = (rows + half) >> _LIMB
    low = (rows - (high << _LIMB)).astype(np.float64)
    lows: BigIntegers = pack_upper(low.T @ low).astype(np.int64).astype(object)
    if not high.any():
        return lows
    upper = high.astype(np.float64)
    cross = upper.T @ low
    crosses = pack_upper(cross + cross.T).astype(np.int64).astype(object)
    highs = pack_upper(upper.T @ upper).astype(np.int64).astype(object)
    total: BigIntegers = lows + crosses * (1 << _LIMB) + highs * (1 << (2 * _LIMB))
    return total


def as_floats(values: BigIntegers) -> Vector:
    """Return the nearest float64 of each integer."""
    return values.astype(np.float64)


def encode(values: BigIntegers) -> bytes:
    """Write integers as 16 bytes each, little-endian, two's complement."""
    return b"".join([int(value).to_bytes(WIDTH, "little", signed=True) for value in values])


def decode(data: bytes, count: int) -> BigIntegers:
    """Read what `encode` wrote.

    Raises
    ------
    StateError
        If the length is not that of `count` integers.
    """
    if len(data) != WIDTH * count:
        raise StateError(
            f"stored sums have {len(data)} bytes where {WIDTH * count} are needed; run "
            "`veilstream state rebuild`"
        )
    values = zeros(count)
    for i in range(count):
        values[i] = int.from_bytes(data[WIDTH * i : WIDTH * (i + 1)], "little", signed=True)
    return values
