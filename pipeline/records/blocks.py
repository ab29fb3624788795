"""Windows of records, and passes over many rows in blocks that stay in the cache.

Sums over records in blocks that stay in a processor's cache; the arithmetic of `summarise`.

Rows and factors of an exact sum are whole numbers, so that every product and every sum of a block
is exact in float64 in whatever order it is taken; blocks are added as 64-bit integers.

Records to windows: consecutive slots of one client, full or empty, that make one release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pipeline.records.encoder import Arrays, Block, joined
from pipeline.types import Integers, Matrix, Vector

#: Bits of a feature and of a record's slope in an exact gradient, of a feature and of a record's
#: curvature or squared slope in an exact matrix. With blocks of 2^10 records, 20 + 20 + 10 and
#: 12 + 12 + 14 + 10 bits stay below the 53 of a float64.
GRADIENT_BITS = (20, 20)
CURVATURE_BITS = (12, 14)
BLOCK = 1024
#: Sums over so many records stay below the 63 bits of an integer: a product has 40 at most.
MOST_RECORDS = 2**22
#: Numbers of a block that stay in a processor's cache while they are worked on.
CACHED = 2**14


def with_intercept(features: Matrix, scale: Vector | float = 1.0) -> Matrix:
    """Return (1, x) times `scale`, one number or one for each column."""
    design = np.empty((len(features), features.shape[1] + 1))
    first, others = (scale, scale) if isinstance(scale, float) else (scale[0], scale[1:])
    design[:, 0] = first
    np.multiply(features, others, out=design[:, 1:])
    return design


def one_or_all(values: Vector) -> Vector | float:
    """Return the one value of all entries if they agree: arithmetic with one number is quicker."""
    return float(values[0]) if np.all(values == values[0]) else values


def predictors(design: Matrix, coefficients: Vector) -> Vector:
    """Return the linear predictor of each record, shape (n,), the same whatever rows are beside it.

    A matrix product may round a row by where it stands: leaving out one record would then move
    the terms of others, and the sensitivity would not be that of the computed sums.
    """
    # one inner loop for each row, whose order of summation is the row's length alone
    sums: Vector = np.einsum("ij,j->i", np.ascontiguousarray(design), coefficients)
    return sums


def whole_factors(values: Matrix | Vector, bound: float, bits: int) -> tuple[Matrix, int]:
    """Cut slopes or curvatures to their bound and to whole numbers of 2^unit; return both."""
    unit = exponent_of(bound) - bits
    # two calls of numpy take half as long as its clip, which windows of 100 records notice
    cut: Matrix = np.maximum(values, -bound)
    np.minimum(cut, bound, out=cut)
    cut *= 2.0**-unit
    return np.trunc(cut, out=cut), unit


def exponent_of(bound: float) -> int:
    """Return the exponent of the least power of two that is no smaller."""
    return math.ceil(math.log2(bound))


def finite(values: Vector | Matrix) -> Matrix:
    """Return features, slopes or curvatures with 0 where there is no number."""
    return np.where(np.isnan(values), 0.0, values)


def exact_sums(
    design: Matrix, slopes: Matrix | Vector, *matrix_weights: Vector
) -> tuple[Integers, ...]:
    """Sum slopes times rows, and weights times products of rows; the design is overwritten.

    design: Rows in units of their last bit of a gradient, shape (n, d).
    slopes, matrix_weights: Whole numbers of at most the bits above, shapes (n,) or (k, n), k >= 0,
        and (n,) for each sum of products: curvatures, squared slopes.

    Returns: Whole numbers in units of the factors' times the rows' last bits, shapes (d,) or (k,
    d), and (d, d) for each sum of products.
    """
    size = design.shape[1]
    gradient = np.zeros((*slopes.shape[:-1], size), dtype=np.int64)
    matrices = np.zeros((len(matrix_weights), size, size), dtype=np.int64)
    coarser = 2.0 ** (CURVATURE_BITS[0] - GRADIENT_BITS[0])
    for part, work in blocks(design):
        rows = design[part]
        np.trunc(rows, out=rows)
        gradient += (slopes[..., part] @ rows).astype(np.int64)
        if matrix_weights:
            # to cut what is cut already gives what cutting once to fewer bits gives
            np.multiply(rows, coarser, out=rows)
            np.trunc(rows, out=rows)
        for place, weights in enumerate(matrix_weights):
            np.multiply(rows, weights[part, None], out=work)
            matrices[place] += (work.T @ rows).astype(np.int64)
    return gradient, *matrices


def blocks(design: Matrix) -> Iterator[tuple[slice, Matrix]]:
    """Yield blocks of records, each with a matrix of the block's shape to work in.

    The matrix is the same for all: fresh ones would cost as much as the sums.
    """
    records, block = len(design), _rows_of_block(design)
    work = np.empty((block, design.shape[1]))
    for start in range(0, records, block):
        part = slice(start, min(start + block, records))
        yield part, work[: part.stop - start]


def _rows_of_block(design: Matrix) -> int:
    """Return how many records make a block: even blocks, each within the cache and `BLOCK`."""
    records, size = design.shape
    most = min(BLOCK, max(64, CACHED // size))
    return math.ceil(records / max(1, math.ceil(records / most))) or 1


@dataclass(slots=True)
class Window:
    """Slots that have come so far; what is bad or missing stays an empty slot.

    size: Public number of slots.
    opened: When the first slot came, in seconds of the caller's clock; None while empty.
    position: Where the source continues after the last slot.
    taken, usable: How many slots have come, and how many of them hold a sound record.
    clipped: How many values were clipped to their public range.
    keep: Takes the slots, in place of this window, which keeps them until it is closed otherwise.
    """

    size: int
    opened: float | None = None
    position: bytes | None = None
    taken: int = 0
    usable: int = 0
    clipped: int = 0
    keep: Callable[[Arrays], None] | None = None
    _parts: list[Arrays] = field(default_factory=list)

    @property
    def slots(self) -> Arrays:
        """The slots that have come, encoded."""
        return joined(self._parts)

    @property
    def room(self) -> int:
        """How many slots are left."""
        return self.size - self.taken

    def add(self, block: Block, position: bytes, now: float) -> None:
        """Take consecutive slots, at most `room`; `position` is behind the last of them."""
        if self.opened is None:
            self.opened = now
        (self.keep or self._parts.append)(block.arrays)
        self.taken += len(block.arrays.responses)
        self.usable += block.usable
        self.clipped += block.clipped
        self.position = position
