"""Squared error of a linear regression; with noise, Huber's form of it with a public threshold."""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import ConfigError
from pipeline.losses.base import Terms
from pipeline.types import Vector


class Linear:
    """Half the squared residual; beyond `residual_bound` it goes on as a straight line.

    Without a threshold this is least squares. A private release needs one, because the slope of a
    record is its residual: the noise is in proportion to the largest.

    residual_bound: Threshold, > 0, in units of the encoded response; None for none.

    Raises ConfigError if the threshold is not a positive number.
    """

    name = "linear"
    responses = "number"
    curvature_bound = 1.0
    sharp_curvature_bound = 1.0
    start_curvature = 1.0
    start_intercept = 0.0
    start_slope_bound = 1.0

    def __init__(self, residual_bound: float | None = None) -> None:
        if residual_bound is not None and not 0 < residual_bound < math.inf:
            raise ConfigError("estimator.residual_bound must be a positive number")
        self.slope_bound = math.inf if residual_bound is None else residual_bound
        # up to the threshold nothing is left out, and most records stay within it
        self.remainder = 1 / (4 * self.slope_bound)

    @classmethod
    def of(cls, terms: Terms) -> Linear:
        """Return the loss of a study; with noise the threshold is 2, the width of the range."""
        default = 2.0 if terms.noised else None
        return cls(terms.residual_bound if terms.residual_bound is not None else default)

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return r^2 / 2 of the residual r, or its linear continuation; shape (n,)."""
        size = np.abs(predictor - response)
        inner = np.minimum(size, self.slope_bound)
        value: Vector = inner * (size - inner / 2)
        return value

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return the residual, cut at the threshold, shape (n,)."""
        # two calls of numpy take half as long as its clip, which windows of 100 records notice
        least = np.maximum(predictor - response, -self.slope_bound)
        slope: Vector = np.minimum(least, self.slope_bound)
        return slope

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return 1 up to the threshold and 0 beyond, shape (n,)."""
        return np.where(np.abs(predictor - response) <= self.slope_bound, 1.0, 0.0)

    sharp_curvature = curvature

    def start_slope(self, response: Vector) -> Vector:
        """Return the residuals of the predictor 0, in [-1, 1], shape (n,).

        They are not cut at the threshold: a mean response beyond it would be out of reach.
        """
        return -response

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return the mean response from the mean slope at the start, within its range."""
        del spread
        return min(max(-slope, -1.0), 1.0)

    def mean(self, predictor: Vector) -> Vector:
        """Return the expected response, which is the predictor itself."""
        return predictor
