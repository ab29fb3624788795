"""The renewable estimate from sums alone: A = sum H, v = sum (H t - g), theta = A^-1 v.

theta is the exact zero of the summed linearised scores g + H (theta - t), whatever the points t
were: it does not depend on the order of arrival or on how old a message is, sums of several
servers add, and a message can be taken out. Where every message of a batch was taken at the newest
theta it equals the recursion (37), by induction. Source: dwd, eq. (37), rewritten.
"""

from __future__ import annotations

import numpy as np

from pipeline.estimators.modes.objective import Sums
from pipeline.estimators.modes.result import FEDERATED
from pipeline.estimators.modes.ridge import Ridge
from pipeline.linalg import solve_positive
from pipeline.types import Vector


class AdditiveSums:
    """Sums over messages, each with the point at which it was taken.

    Parameters
    ----------
    ridge
        It enters gradient and curvature of every message; only one matrix in both keeps the
        intercept from lagging.
    size
        d, the number of coefficients.
    """

    guarantee = FEDERATED

    def __init__(self, ridge: Ridge, size: int) -> None:
        self.ridge, self.size = ridge, size
        self.curvature = np.zeros((size, size))
        self.right = np.zeros(size)
        self.records = 0

    def add(self, message: Sums, at: Vector) -> None:
        """Add one message that was taken at the point `at`, shape (d,)."""
        self._put(message, at, 1)

    def remove(self, message: Sums, at: Vector) -> None:
        """Take out a message that was added before."""
        self._put(message, at, -1)

    def merge(self, other: AdditiveSums) -> None:
        """Add the sums of another server."""
        self.curvature += other.curvature
        self.right += other.right
        self.records += other.records

    def solve(self) -> Vector:
        """Return the coefficients, shape (d,).

        Raises
        ------
        NumericError
            If the summed curvature is singular.
        """
        coefficients: Vector = solve_positive(self.curvature, self.right)
        return coefficients

    def _put(self, message: Sums, at: Vector, sign: int) -> None:
        records = message.records
        curvature = message.curvature + np.diag(records * self.ridge.of_curvature(self.size))
        gradient = message.gradient + records * self.ridge.of_gradient(self.size) * at
        self.curvature += sign * curvature
        self.right += sign * (curvature @ at - gradient)
        self.records += sign * records
