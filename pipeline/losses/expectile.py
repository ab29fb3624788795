"""Expectile regression: squared error weighted by its sign, in Huber's form beyond a threshold."""

from __future__ import annotations

import numpy as np

from pipeline.errors import ConfigError
from pipeline.losses.base import Terms
from pipeline.losses.linear import Linear
from pipeline.types import Vector


class Expectile:
    """a r^2 / 2 of the residual r = y - u with a = tau for r >= 0 and 1 - tau below.

    At tau = 1/2 it is half the loss of a linear regression; a larger tau explains a higher part of
    the response's distribution.

    tau: In (0, 1).
    residual_bound: Threshold, > 0, in units of the encoded response; None for none.

    Raises ConfigError if one of them is out of range.
    """

    name = "expectile"
    responses = "number"
    start_intercept = 0.0

    def __init__(self, tau: float, residual_bound: float | None = None) -> None:
        if not 0 < tau < 1:
            raise ConfigError("estimator.tau must lie in (0, 1), for example 0.5")
        self._tau = tau
        self._squares = Linear(residual_bound)
        largest = max(tau, 1 - tau)
        # equal sides are half a linear loss; others change their curvature at zero
        self.remainder = self._squares.remainder if tau == 0.5 else 1.0
        self.slope_bound = largest * self._squares.slope_bound
        self.curvature_bound = self.sharp_curvature_bound = largest
        self.start_curvature, self.start_slope_bound = 0.5, largest

    @classmethod
    def of(cls, terms: Terms) -> Expectile:
        """Return the loss of a study; with noise the threshold is 2, the width of the range."""
        default = 2.0 if terms.noised else None
        bound = terms.residual_bound if terms.residual_bound is not None else default
        return cls(terms.tau, bound)

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return the weighted loss of each record, shape (n,)."""
        value: Vector = self._sides(predictor, response) * self._squares.value(predictor, response)
        return value

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the derivative in the predictor, shape (n,)."""
        slope: Vector = self._sides(predictor, response) * self._squares.slope(predictor, response)
        return slope

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return a up to the threshold and 0 beyond, shape (n,)."""
        flat = self._squares.curvature(predictor, response)
        curvature: Vector = self._sides(predictor, response) * flat
        return curvature

    sharp_curvature = curvature

    def start_slope(self, response: Vector) -> Vector:
        """Return the slopes at a predictor of zero, shape (n,), without a cut."""
        slope: Vector = -self._sides(np.zeros_like(response), response) * response
        return slope

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return one step from zero against the mean slope: the best intercept has no formula."""
        del spread
        return -slope

    def mean(self, predictor: Vector) -> Vector:
        """Return the expectile of the response, which is the predictor itself."""
        return predictor

    def _sides(self, predictor: Vector, response: Vector) -> Vector:
        return np.where(response >= predictor, self._tau, 1 - self._tau)
