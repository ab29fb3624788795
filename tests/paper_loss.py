"""Generalised DWD with the curvature of its paper, to reproduce the paper."""

from __future__ import annotations

import numpy as np

from pipeline.losses import GeneralisedDWD
from pipeline.types import Vector


class PaperDWD(GeneralisedDWD):
    """V'' with a ramp from u0 - e to u0 + e, which leaves out up to half of the area there.

    Source: Guo et al. 2025.

    q, e: As `GeneralisedDWD` takes q and smoothing.
    """

    def __init__(self, q: float, e: float) -> None:
        super().__init__(q, e)
        self.foot, self.top, self.curvature_bound = self.knee - e, self.knee + e, self.height

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the ramped V''(u), shape (n,), in [0, curvature_bound]."""
        margin = response * predictor
        ramp = np.maximum(self.height * (margin - self.foot) / (self.top - self.foot), 0.0)
        return np.where(margin >= self.top, self.sharp_curvature(predictor, response), ramp)
