"""Losses of two classes: logistic, and generalised distance-weighted discrimination.

Logistic: log(1 + exp(-u)) with u = response times predictor and response in {-1, +1}.

GDWD, for any q > 0: Guo et al. 2025 (renewable DWD). The slope is exact. The curvature jumps at u0,
and is released with a linear ramp that ends in the paper's point u0 + smoothing. The paper starts
its ramp at u0 - smoothing, which leaves out up to half of the curvature's area there and makes
intervals too wide; by default it starts where that area comes out right, with the same largest
curvature.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import numpy as np
import scipy

from pipeline.errors import ConfigError
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


#: Pieces of the joint bounds.
RAMP_PIECES = 2**12


class GeneralisedDWD:
    """V(u) = 1 - u below u0 = q / (q + 1), then a power tail; u = response times predictor.

    q: Exponent of the tail, in [1e-6, 1e6]; 1 is classical DWD, large values approach the hinge.
    smoothing: How far above u0 the ramp ends, 0 < smoothing <= u0; the default is u0 min(1/2, 1/(q
        + 1)), so that the ramp ends where the curvature still is of its order. A wider ramp lowers
        the largest curvature, and so the noise of a private Hessian.
    ramp: Where the ramp starts: "equal-area", or the paper's "symmetric" point u0 - smoothing,
        which is there to reproduce the paper.

    Raises ConfigError if a parameter is outside its range.
    """

    name = "gdwd"
    remainder = 1.0
    responses = "class"
    slope_bound = 1.0
    start_curvature = 0.5
    start_intercept = 0.0
    # zero lies below the knee for every q: all slopes are full there
    start_slope_bound = 1.0

    def __init__(
        self,
        q: float = 1.0,
        smoothing: float | None = None,
        ramp: Literal["equal-area", "symmetric"] = "equal-area",
    ) -> None:
        if not 1e-6 <= q <= 1e6:
            raise ConfigError("estimator.q must lie in [1e-6, 1e6], for example q = 1.0")
        self.q = q
        self.knee = q / (q + 1)
        widest = self.knee * min(0.5, 1 / (q + 1))
        self.smoothing = widest if smoothing is None else smoothing
        if not 0 < self.smoothing <= self.knee:
            raise ConfigError(f"estimator.smoothing must lie in (0, {self.knee:.6g}] for q = {q:g}")
        if ramp not in ("equal-area", "symmetric"):
            raise ConfigError("estimator.ramp must be equal-area or symmetric")
        self.sharp_curvature_bound = (q + 1) ** 2 / q
        top = self.knee + self.smoothing
        # (q + 1) u0^(q+1) / (u0 + e)^(q+2), by way of logarithms: large q must not overflow
        self.curvature_bound = math.exp(
            math.log(q + 1) + (q + 1) * math.log(self.knee / top) - math.log(top)
        )
        # the ramp's area is what the slope gains below its top, so the mean curvature is unbiased
        gained = -math.expm1((q + 1) * math.log(self.knee / top))
        self._top = top
        self._foot = top - 2 * gained / self.curvature_bound
        if ramp == "symmetric":
            self._foot = self.knee - self.smoothing

    @classmethod
    def of(cls, terms: Terms) -> GeneralisedDWD:
        """Return the loss of a study: without noise, a sharper curvature is the better default."""
        loss = cls(terms.q, terms.smoothing)
        if terms.smoothing is None and not terms.noised:
            return cls(terms.q, loss.smoothing / 5)
        return loss

    def value(self, predictor: Vector, response: Vector) -> Vector:
        """Return V(u), shape (n,)."""
        margin = response * predictor
        tail = np.maximum(margin, self.knee)
        curved = (self.knee / tail) ** self.q / (self.q + 1)
        return np.where(margin <= self.knee, 1.0 - margin, curved)

    def slope(self, predictor: Vector, response: Vector) -> Vector:
        """Return response * V'(u), shape (n,), in [-1, 1]."""
        tail = np.maximum(response * predictor, self.knee)
        return -response * (self.knee / tail) ** (self.q + 1)

    def curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return the ramped V''(u), shape (n,), in [0, curvature_bound]."""
        margin = response * predictor
        tail = np.maximum(margin, self._top)
        curved = (self.q + 1) * (self.knee / tail) ** (self.q + 1) / tail
        ramp = self.curvature_bound * (margin - self._foot) / (self._top - self._foot)
        return np.where(margin >= self._top, curved, np.maximum(ramp, 0.0))

    def sharp_curvature(self, predictor: Vector, response: Vector) -> Vector:
        """Return V''(u) without a ramp, shape (n,): 0 up to u0, in [0, (q + 1)^2 / q]."""
        margin = response * predictor
        tail = np.maximum(margin, self.knee)
        curved = (self.q + 1) * (self.knee / tail) ** (self.q + 1) / tail
        return np.where(margin > self.knee, curved, 0.0)

    def joint_bounds(self) -> tuple[Vector, Vector]:
        """As `Bends.joint_bounds`: pieces of the ramp from the knee to its top.

        The slope falls from there, so that a piece has its largest where it begins; the curvature
        rises to its end. Below the knee the slope is as large and the curvature no larger than in
        the first piece; beyond the top both are no larger than in the last one.
        """
        ends, ones = np.linspace(self.knee, self._top, RAMP_PIECES + 1), np.ones(RAMP_PIECES)
        curved = np.minimum(self.curvature(ends[1:], ones) / self.curvature_bound, 1.0)
        curved[-1] = 1.0
        return -self.slope(ends[:-1], ones), curved
