"""Noisy copies of a fit: their mean and their scatter, which say the same as all of them.

Of K copies N(theta, psi F^-1) the mean is N(theta, psi F^-1 / K), and the scatter, the sum of
squares about it, is the sum of K - 1 squares of N(0, psi F^-1), independent of the mean. Both are
drawn so, in floating point, and leave rounded to public lattices: docs/privacy/copies.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from pipeline.linalg import pack_upper
from pipeline.privacy.normals import normal_numbers
from pipeline.privacy.randomness import SecureStream
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True)
class Law:
    """The law of one copy of a window's fit.

    theta, information: The fit, shapes (d,) and (d, d).
    scale, copies: psi and K, public.
    """

    theta: Vector
    information: Matrix
    scale: float
    copies: int

    @cached_property
    def root(self) -> Matrix:
        """A with A A' = psi F^-1, shape (d, d)."""
        lower = np.linalg.cholesky(self.information)
        inverse: Matrix = solve_triangular(lower, np.eye(len(lower)), lower=True)
        return math.sqrt(self.scale) * inverse.T

    def divergence(self, other: Law, order: float) -> float:
        """Return the Renyi divergence of all copies from those of another law, exactly.

        Infinite where the other's precision is too large for this order.
        """
        ratios = np.linalg.eigvals(np.linalg.solve(self.information, other.information)).real
        mixed = order * self.information - (order - 1) * other.information
        if np.linalg.eigvalsh(mixed)[0] <= 0:
            return math.inf
        away = self.theta - other.theta
        pulled = self.information @ np.linalg.solve(mixed, other.information @ away)
        spread = np.log(order - (order - 1) * ratios) / (order - 1) + np.log(ratios)
        shifted = order * float(away @ pulled) / (2 * self.scale)
        return self.copies * (shifted - float(spread.sum()) / 2)


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Mean or scatter of the copies, on a public lattice.

    scatter: Which of the two it is.
    exponent: The lattice unit is 2^exponent.
    largest: No number leaves beyond it, in lattice units; public.
    simulated: Whether the study is a simulation, whose noise protects nobody.
    """

    law: Law
    scatter: bool
    exponent: int
    largest: float
    simulated: bool

    def noised(self, stream: SecureStream) -> Integers:
        """Draw mean or scatter, round it and cut it to its bound: post-processing."""
        law, size = self.law, len(self.law.theta)
        columns = law.copies - 1 if self.scatter else 1
        drawn = normal_numbers(size * columns, stream, simulated=self.simulated).reshape(
            size, columns
        )
        moved = law.root @ drawn
        if self.scatter:
            found = pack_upper(moved @ moved.T)
        else:
            found = law.theta + moved[:, 0] / math.sqrt(law.copies)
        bound = math.floor(self.largest)
        rounded = np.rint(np.ldexp(found, -self.exponent))
        return np.clip(rounded, -bound, bound).astype(np.int64)
