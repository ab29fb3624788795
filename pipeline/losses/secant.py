"""The curvature of a loss as a noised release sums it: its own, or the mean of it over a width.

Over a width h it is the secant (V'(u + h) - V'(u - h)) / 2h, the mean of V'' over u - h to u + h.
It is at most what V' gains on its whole way over 2h, so that the noise falls as h grows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.losses.base import Bends, Loss
from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class Secant:
    """The curvature of `loss` over a `width`; a width of 0 leaves the loss's own.

    width: h >= 0, in units of the linear predictor.
    """

    loss: Loss
    width: float

    @property
    def bound(self) -> float:
        """Largest curvature over all predictors and responses: a public constant."""
        if not self.width:
            return self.loss.curvature_bound
        return min(self.loss.sharp_curvature_bound, self.loss.slope_range / (2 * self.width))

    def joint_bounds(self) -> tuple[Vector, Vector]:
        """As `Bends.joint_bounds`; of a loss that does not say better, both are 1."""
        if not self.width and isinstance(self.loss, Bends):
            return self.loss.joint_bounds()
        return np.ones(1), np.ones(1)

    def of(self, predictor: Vector, response: Vector) -> Vector:
        """Return the curvature of each record, shape (n,), within the bound up to rounding."""
        if not self.width:
            return self.loss.curvature(predictor, response)
        above = self.loss.slope(predictor + self.width, response)
        return (above - self.loss.slope(predictor - self.width, response)) / (2 * self.width)
