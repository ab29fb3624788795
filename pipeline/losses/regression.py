"""Losses of numbers and counts: least squares and expectiles, and Poisson regression.

With noise, the first are in Huber's form beyond a threshold. Poisson regression has a log link,
continued by a straight line beyond a public mean.
"""

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


#: Largest mean without noise: far beyond any count, and far below an overflow.
_NO_LIMIT = math.exp(50.0)


class Poisson:
    """exp(u) - y u, the negative log-likelihood up to a constant; linear where exp(u) > the limit.

    With counts y in [0, largest] and the same limit for the mean, slopes lie in
    [-largest, largest] and curvatures in [0, largest]: public bounds. Where the true means are
    within the limit the minimiser is the same as without it.

    largest: Largest count, >= 1.
    limit: Largest mean, > 0; None for exp(50), which is no limit.

    Raises ConfigError if one of them is outside its range.
    """

    name = "poisson"
    remainder = 1.0
    responses = "count"

    def __init__(self, largest: float, limit: float | None = None) -> None:
        if not 1 <= largest < math.inf:
            raise ConfigError("data.response.max must be at least 1 for counts")
        if limit is not None and not 0 < limit < math.inf:
            raise ConfigError("the largest mean must be a positive number")
        self._limit = _NO_LIMIT if limit is None else limit
        self._end = math.log(self._limit)
        self.slope_bound = max(largest, self._limit)
        self.curvature_bound = self.sharp_curvature_bound = self._limit
        # half of the range has the smallest slopes, and so the least noise
        self.start_slope_bound = self.start_curvature = largest / 2
        self.start_intercept = math.log(largest / 2)

    @classmethod
    def of(cls, terms: Terms) -> Poisson:
        """Return the loss of a study; with noise no mean is larger than the largest count."""
        return cls(terms.largest, terms.largest if terms.noised else None)

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return the loss of each record, shape (n,)."""
        beyond = np.maximum(predictor - self._end, 0.0)
        value: Vector = self.mean(predictor) * (1.0 + beyond) - response * predictor
        return value

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return mean less count, shape (n,)."""
        return self.mean(predictor) - response

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the mean, and 0 beyond the limit; it does not depend on the response."""
        del response
        return np.where(predictor <= self._end, self.mean(predictor), 0.0)

    sharp_curvature = curvature

    def start_slope(self, response: Vector) -> Vector:
        """Return half of the range less the counts, shape (n,)."""
        return self.start_slope_bound - response

    def intercept_of(self, slope: float, spread: float) -> float:
        """Return the logarithm of the mean count from the mean slope at the start.

        A mean below its noise, or no mean at all, is taken for as much as the noise.
        """
        most = 2 * self.start_slope_bound
        least = min(max(spread, 1e-3), most)
        return math.log(min(max(self.start_slope_bound - slope, least), most))

    def mean(self, predictor: Vector) -> Vector:
        """Return the expected count, at most the limit, shape (n,)."""
        return np.exp(np.minimum(predictor, self._end))
