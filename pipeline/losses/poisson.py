"""Poisson regression with a log link, continued by a straight line beyond a public mean."""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import ConfigError
from pipeline.losses.base import Terms
from pipeline.types import Vector

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
