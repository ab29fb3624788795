"""mu-GDP calibration: exact conversion between mu and (epsilon, delta).

Source: the analytic Gaussian mechanism (Balle and Wang 2018) in the form of Gaussian
differential privacy (Dong, Roth and Su 2022): delta(epsilon) = Phi(-epsilon/mu + mu/2)
- exp(epsilon) Phi(-epsilon/mu - mu/2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy

from pipeline.errors import PrivacyError


def delta_of(mu: float, epsilon: float) -> float:
    """Return the smallest delta that a mu-GDP mechanism reaches at `epsilon`.

    mu: > 0.
    epsilon: >= 0.
    """
    first = float(scipy.special.log_ndtr(-epsilon / mu + mu / 2))
    second = float(scipy.special.log_ndtr(-epsilon / mu - mu / 2)) + epsilon
    # exp(first) - exp(second), without cancellation where the two nearly agree
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu whose mechanism is (epsilon, delta)-differentially private.

    Raises PrivacyError if epsilon <= 0 or delta is outside (0, 1).
    """
    check_budget(epsilon, delta)
    low, high = 1e-12, 1.0
    while delta_of(high, epsilon) < delta:
        low, high = high, 2 * high
    while delta_of(low, epsilon) > delta:
        low /= 2
    return _last_true(lambda mu: delta_of(mu, epsilon) <= delta, low, high)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which a mu-GDP mechanism keeps `delta`; 0 for mu = 0."""
    if mu == 0 or delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return high - _last_true(lambda back: delta_of(mu, high - back) <= delta, 0.0, high)


def _last_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest float in [low, high] at which a condition holds that low keeps.

    Plain bisection: the answer errs on the side of privacy, and a client need not load an
    optimisation library, which takes longer than all else that it does at its start.
    """
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low
        if holds(middle):
            low = middle
        else:
            high = middle


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse a budget that no Gaussian mechanism can keep.

    Raises PrivacyError if epsilon is not finite and > 0, or delta is outside (0, 1).
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError("privacy.epsilon must be a finite number > 0, for example 1.0")
    if not 0 < delta < 1:
        raise PrivacyError("privacy.delta must lie in (0, 1), for example 1e-6")
