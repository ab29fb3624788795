"""Noise of a given size for OnWDP: reproduction, without any claim."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.types import Vector


@dataclass(frozen=True, slots=True)
class GivenNoise:
    """Normal noise of a given standard deviation: a `TrustedNoise` that protects nobody.

    Attributes
    ----------
    deviation
        tau >= 0 of each coordinate.
    """

    deviation: float
    stabiliser: float = 0.0
    bounds: tuple[float, float] = (math.inf, math.inf)

    def draw(
        self, rng: np.random.Generator, size: int, curvature_bound: float, penalty: float
    ) -> Vector:
        """Return normal noise, shape (size,)."""
        return rng.normal(0.0, self.deviation, size)
