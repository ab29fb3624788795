"""Generalised DWD with a ramp in place of the jump of its curvature, as published methods have it.

They add noise to each sum by itself, in proportion to the largest curvature, so that what a step
gains beside a full slope is lost on them; and Newton's steps go to the end on a ramp.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.losses import GeneralisedDWD
from pipeline.types import Vector


class RampedDWD(GeneralisedDWD):
    """V'' with a ramp that ends at u0 + e, where V'' is T.

    q, smoothing: As `GeneralisedDWD` takes them; e is by default half of the largest smoothing.
    symmetric: Whether the ramp begins at u0 - e, as in the paper, which leaves out up to half of
        the area there; else where the area comes out right. Source: Guo et al. 2025.
    """

    def __init__(
        self, q: float = 1.0, smoothing: float | None = None, *, symmetric: bool = False
    ) -> None:
        super().__init__(q, self.most_smoothing(q) / 2 if smoothing is None else smoothing)
        self.curvature_bound, self.top = self.height, self.knee + self.smoothing
        gained = -math.expm1((q + 1) * math.log(self.knee / self.top))
        self.foot = self.top - 2 * gained / self.height
        if symmetric:
            self.foot = self.knee - self.smoothing

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the ramped V''(u), shape (n,), in [0, curvature_bound]."""
        margin = response * predictor
        ramp = np.maximum(self.height * (margin - self.foot) / (self.top - self.foot), 0.0)
        return np.where(margin >= self.top, self.sharp_curvature(predictor, response), ramp)
