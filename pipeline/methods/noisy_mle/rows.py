"""Releases as rows of integers, which a site's sums are made of.

A release of b blocks of `window.records` slots at the point t has the score g, the curvature J and
the squares s, and its row is (1, b, g, J, s, b t, J t, b |t|^2). J t has up to 80 bits, and is kept
in parts of 22, 32 and the other bits; b |t|^2 in one of 32 and the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.linalg import packed_indices
from pipeline.types import Integers, Matrix, Vector

_LOW, _MIDDLE, _SQUARED = 22, 32, 32
#: What stands in front of a release's own numbers: how many releases and blocks are in a row.
RELEASES, BLOCKS, FIRST = 0, 1, 2
#: Of so many numbers below 2^22 times some up to 2^24 a float holds the sum.
_EXACT = 64


class Room:
    """Arrays that each fold uses again.

    Else the allocator gives their pages back after each, and taking them again costs more than all
    that is computed in them.
    """

    def __init__(self) -> None:
        self._held: dict[str, Integers] = {}

    def integers(self, name: str, rows: int, columns: int) -> Integers:
        """Return the array of that name, whatever it held."""
        held = self._held.get(name)
        if held is None or len(held) < rows * columns:
            held = self._held[name] = np.empty(rows * columns, dtype=np.int64)
        return held[: rows * columns].reshape(rows, columns)

    def floats(self, name: str, rows: int, columns: int) -> Matrix:
        """As `integers`."""
        return self.integers(name, rows, columns).view(np.float64)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many numbers a release holds: d coefficients, and squares (1) or none (0).

    moving: Whether it matters at which point it was taken; else the sums of points are left out.
    """

    size: int
    squares: int
    moving: bool = True

    @property
    def packed(self) -> int:
        """Entries of a packed curvature."""
        return self.size * (self.size + 1) // 2

    @property
    def points(self) -> int:
        """Where the sum of the points begins in a row, behind the releases' own numbers."""
        return FIRST + self.size + self.packed + self.squares

    @property
    def curvature(self) -> slice:
        """Where the packed curvature stands in a row."""
        return slice(FIRST + self.size, FIRST + self.size + self.packed)

    @property
    def width(self) -> int:
        """Length of the sums of one epoch."""
        return self.points + (4 * self.size + 2) * self.moving

    def rows_of(
        self, points: Integers, numbers: Integers, blocks: Integers, room: Room | None = None
    ) -> Integers:
        """Return releases as rows of sums.

        points, numbers, blocks: Of n releases: where they were taken, (n, d), what they hold, (n,
            `points` - 2), and their blocks of `window.records` slots, (n,).

        Numbers are below 2^42, points up to 2^24 and blocks up to 2^17, so that no product of parts
        passes 2^57. The parts are not carried yet: one row may be added to carried ones, not many.
        With a room rows hold until it is used again.
        """
        room = room or Room()
        rows = room.integers("rows", len(points), self.width)
        rows[:, RELEASES], rows[:, BLOCKS] = 1, blocks
        rows[:, FIRST : self.points] = numbers[:, : self.points - FIRST]
        if not self.moving:
            return rows
        first = self.points + self.size
        np.multiply(points, blocks[:, None], out=rows[:, self.points : first])
        low, middle, high = self._products(rows)
        high[:] = 0
        squares = np.einsum("ij,ij->i", points, points, dtype=np.int64)
        rows[:, -2] = blocks * (squares & ((1 << _SQUARED) - 1))
        rows[:, -1] = blocks * (squares >> _SQUARED)
        packed = rows[:, self.curvature]
        one = self.size <= _EXACT and len(points) > 0 and bool((points == points[0]).all())
        if one:
            self._times_one(packed, points[0], low, middle, room)
        else:
            low[:] = self._times(packed & ((1 << _LOW) - 1), points)
            middle[:] = self._times(packed >> _LOW, points)
        return rows

    def _times(self, packed: Integers, points: Integers) -> Integers:
        """Return symmetric matrices times points, shape (n, d)."""
        found: Integers = np.matmul(packed[:, packed_indices(self.size)], points[:, :, None])
        return found[:, :, 0]

    def _times_one(
        self, packed: Integers, point: Integers, low: Integers, middle: Integers, room: Room
    ) -> None:
        """As `_times` where all points are one: products of floats, none of which is rounded."""
        spread = np.zeros((self.packed, self.size))
        spread[packed_indices(self.size), np.arange(self.size)[:, None]] = point
        part = room.floats("part", *packed.shape)
        found = room.floats("found", *low.shape)
        np.bitwise_and(packed, (1 << _LOW) - 1, out=part)
        low[:] = np.matmul(part, spread, out=found)
        np.right_shift(packed, _LOW, out=part)
        middle[:] = np.matmul(part, spread, out=found)

    def carry(self, rows: Integers) -> None:
        """Give the parts of J t and b |t|^2 their own bits again, in place, shape (n, width)."""
        if not self.moving:
            return
        low, middle, high = self._products(rows)
        middle += low >> _LOW
        low &= (1 << _LOW) - 1
        high += middle >> _MIDDLE
        middle &= (1 << _MIDDLE) - 1
        rows[:, -1] += rows[:, -2] >> _SQUARED
        rows[:, -2] &= (1 << _SQUARED) - 1

    def products(self, rows: Integers) -> Vector:
        """Return the sums of J t as floats, shape (n, d)."""
        low, middle, high = (part.astype(np.float64) for part in self._products(rows))
        return (np.ldexp(high, _LOW + _MIDDLE) + np.ldexp(middle, _LOW)) + low

    def squared(self, rows: Integers) -> Vector:
        """Return the sums of b |t|^2 as floats, shape (n,)."""
        found: Vector = np.ldexp(rows[:, -1].astype(np.float64), _SQUARED) + rows[:, -2]
        return found

    def _products(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        first = self.points + self.size
        low, middle, high = (
            rows[:, first + k * self.size : first + (k + 1) * self.size] for k in range(3)
        )
        return low, middle, high
