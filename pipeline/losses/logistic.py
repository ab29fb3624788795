"""Logistic loss, log(1 + exp(-u)) with u = response times predictor and response in {-1, +1}."""

from __future__ import annotations

import numpy as np
import scipy

from pipeline.losses.base import Terms
from pipeline.types import Vector


class Logistic:
    """The negative log-likelihood of a logistic regression."""

    name = "logistic"
    remainder = 1.0
    responses = "class"
    slope_bound = slope_range = 1.0
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
