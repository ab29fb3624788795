"""Running sums of a path, from which every interval is read; differences of them serve any stretch.

With C_s the sum of theta - m up to record s: A = sum C_s C_s' (or its diagonal), b = sum s C_s,
S = sum C_s; and over gradients g taken at points u the sums of g, u, g u', u u' and g g'. What
releases hold beside gradients is summed as it came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Sums:
    """Running sums after the burn-in, of `records` records.

    behind: Sum over releases of how many records late their models were.
    moved: Sum of the step sizes.
    c, s, b: C, S and b, shape (d,).
    a: A, shape (d, d), or its diagonal, shape (d,).
    g, u: Sums of gradients and of the points they were taken at, shape (d,).
    gu, uu, gg: Sums of their products, shape (d, d).
    extra: Sums of the released curvatures and then outer products, each a packed upper triangle of
        d (d + 1) / 2 entries; empty where neither is released.
    """

    records: int
    behind: int
    moved: float
    c: Vector
    s: Vector
    b: Vector
    a: Vector | Matrix
    g: Vector
    u: Vector
    gu: Matrix
    uu: Matrix
    gg: Matrix
    extra: Vector

    @classmethod
    def zero(cls, size: int, *, full: bool, extra: int = 0) -> Sums:
        """Return the sums of nothing."""
        vector, matrix = np.zeros(size), np.zeros((size, size))
        a = matrix if full else vector
        return cls(
            0, 0, 0.0, vector, vector, vector, a, vector, vector, matrix, matrix, matrix,
            np.zeros(extra),
        )  # fmt: skip

    @property
    def arrays(self) -> tuple[NDArray[np.float64], ...]:
        """All sums that are arrays, in the order of the fields."""
        return (
            self.c, self.s, self.b, self.a, self.g, self.u, self.gu, self.uu, self.gg, self.extra,
        )  # fmt: skip

    def since(self, mark: Sums) -> Sums:
        """Return the sums of the records after `mark`, as if C had begun at zero there."""
        t0, c0 = mark.records, mark.c
        count = self.records - t0
        s = self.s - mark.s - count * c0
        # sum (s - t0)(C_s - c0): the sum of the numbers 1..count is exact in Python
        b = self.b - mark.b - t0 * (self.s - mark.s) - c0 * (count * (count + 1) // 2)
        between = self.s - mark.s
        if self.a.ndim == 2:
            cross = np.outer(c0, between)
            a = self.a - mark.a - cross - cross.T + count * np.outer(c0, c0)
        else:
            a = self.a - mark.a - 2 * c0 * between + count * c0 * c0
        return Sums(
            count, self.behind - mark.behind, self.moved - mark.moved, self.c - c0, s, b, a,
            self.g - mark.g, self.u - mark.u, self.gu - mark.gu, self.uu - mark.uu,
            self.gg - mark.gg, self.extra - mark.extra,
        )  # fmt: skip
