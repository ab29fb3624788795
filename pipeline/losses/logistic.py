"""Logistic loss, log(1 + exp(-u)) with u = response times predictor and response in {-1, +1}."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy

from pipeline.losses.base import Terms
from pipeline.types import Vector

#: Pieces of the joint bounds: each loses less than its width.
PIECES = 2**16


class Logistic:
    """The negative log-likelihood of a logistic regression."""

    name = "logistic"
    remainder = 1.0
    responses = "class"
    slope_bound = 1.0
    curvature_bound = 0.25
    sharp_curvature_bound = 0.25
    start_curvature = 0.25
    start_intercept = 0.0
    # every probability is 1/2 at the start, and so is every slope up to its sign
    start_slope_bound = 0.5

    @classmethod
    def of(cls, terms: Terms) -> Logistic:
        """Return the loss of a study; it needs nothing of it."""
        del terms
        return cls()

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return log(1 + exp(-u)), shape (n,)."""
        return np.logaddexp(0.0, -response * predictor)

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the derivative in the predictor, shape (n,), in [-1, 1]."""
        slope: Vector = -response * scipy.special.expit(-response * predictor)
        return slope

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return p (1 - p), shape (n,), in [0, 1/4]; it does not depend on the response."""
        probability = scipy.special.expit(predictor)
        curvature: Vector = probability * (1.0 - probability)
        return curvature

    sharp_curvature = curvature

    def probability(self, predictor: Vector, response: Vector) -> Vector:
        """Return 1 / (1 + exp(-u)), shape (n,): exact to rounding also where it is tiny."""
        probability: Vector = scipy.special.expit(response * predictor)
        return probability

    def joint_bounds(self) -> tuple[Vector, Vector]:
        """As `Bends.joint_bounds`."""
        return _joint_bounds()


@cache
def _joint_bounds() -> tuple[Vector, Vector]:
    """Cut p, the size of the slope, into pieces from 1/2 to 1.

    Relative to its largest the curvature is 4 p (1 - p), which falls there: it is largest where a
    piece begins, and p where it ends. Below 1/2 the curvature is that of 1 - p, with a smaller
    slope.
    """
    ends = np.linspace(0.5, 1.0, PIECES + 1)
    return ends[1:], 4 * ends[:-1] * (1 - ends[:-1])
