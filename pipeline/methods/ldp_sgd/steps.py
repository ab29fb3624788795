"""Step sizes eta_i = min(eta0 i^-alpha, cap), with two caps that keep the path where theory holds.

The noise cap bounds the jitter of the linear predictor: at a constant step eta the linearised path
has the stationary covariance eta noise^2 A^-1 / 2. The staleness cap bounds the overshoot of
gradients that were taken at an old point: it keeps eta lambda_max (records late) at 1 or less.
Source: ldp-sgd, path; the caps are this project's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.errors import ConfigError
from pipeline.types import Vector

#: Steps are made in whole tables of this length, so that a step has the same bits wherever a batch
#: begins: vector instructions may round a power otherwise at the ends of an array.
_TABLE = 1 << 14


@dataclass(frozen=True, slots=True)
class StepRule:
    """A public rule of steps.

    eta0: Scale, > 0.
    alpha: Decay, in (1/2, 1]; averages need no curvature below 1.
    cap: Largest step, > 0; infinite for none.

    Raises ConfigError if one of them is out of range.
    """

    eta0: float = 1.0
    alpha: float = 0.501
    cap: float = math.inf

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 0 < self.eta0 < math.inf:
            raise ConfigError("estimator.path.eta0 must be a positive number")
        if not 0.5 < self.alpha <= 1:
            raise ConfigError("estimator.path.alpha must lie in (1/2, 1], for example 0.501")
        if not self.cap > 0:
            raise ConfigError("the cap of the steps must be positive")

    def steps(self, first: int, count: int) -> Vector:
        """Return the steps of records first, ..., first + count - 1, counted from 1."""
        tables = [
            _table(self, number)
            for number in range((first - 1) // _TABLE, (first + count - 2) // _TABLE + 1)
        ]
        start = (first - 1) % _TABLE
        return np.concatenate(tables)[start : start + count] if count else np.zeros(0)

    def step(self, record: int) -> float:
        """Return the step of one record, counted from 1."""
        return min(self.eta0 * math.pow(record, -self.alpha), self.cap)


@lru_cache(maxsize=8)
def _table(rule: StepRule, number: int) -> Vector:
    index = np.arange(number * _TABLE + 1, (number + 1) * _TABLE + 1, dtype=np.float64)
    steps: Vector = np.minimum(rule.eta0 * index**-rule.alpha, rule.cap)
    steps.setflags(write=False)
    return steps


def noise_cap(kappa: float, curvature: float, slope: float, noise: float, trace: float) -> float:
    """Return the largest step at which the noise moves a predictor by a variance kappa slope^2.

    With the matrix P in front of gradients about the inverse of A, the iterate jitters with
    covariance eta noise^2 P^2 / 2, and so x' theta with variance eta noise^2 tr(P) / (2 H), where
    A = H E[x x']. Without a matrix, d stands for the trace. Infinite without noise.

    kappa: 0.5 to 1 for linear losses, 0.1 to 0.25 for others.
    curvature: H, a public guess of a record's mean curvature, > 0.
    slope: Largest slope of a record.
    noise: Standard deviation of the noise of one gradient entry.
    trace: tr(P).
    """
    if noise == 0:
        return math.inf
    return 2 * kappa * curvature * slope * slope / (noise * noise * trace)


def staleness_cap(largest_curvature: float, behind: float, *, rho: float = 1.0) -> float:
    """Return rho / (lambda_max behind): no overshoot from records linearised `behind` records ago.

    largest_curvature: A guess of the largest eigenvalue of the mean curvature, > 0.
    behind: D + k: how many records late a model is at most, and how many a release holds.
    """
    return rho / (largest_curvature * behind)
