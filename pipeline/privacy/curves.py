"""Privacy curves of discrete noise: the smallest delta at an epsilon, exact or bounded from above.

Sources: Canonne, Kamath and Steinke 2020 (discrete Gaussian: exact curve of one integer, Theorem 7;
concentrated privacy of vectors, Theorem 14; conversion, Proposition 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pipeline.errors import PrivacyError

#: Beyond this the exact sum is not needed: the continuous law is as good (module `channel`).
LARGEST_SIGMA = 2.0**16


def discrete_gaussian_delta(sigma: float, sensitivity: int, epsilon: float) -> float:
    """Return the exact delta of one integer with discrete Gaussian noise.

    sigma: Scale in lattice units, in (0, 2^16].
    sensitivity: Distance of neighbours in lattice units, >= 1.
    epsilon: >= 0.

    Raises PrivacyError if sigma is outside its range.
    """
    if not 0 < sigma <= LARGEST_SIGMA:
        raise PrivacyError("the exact curve is for a scale in (0, 65536] lattice units")
    # the outputs that favour one neighbour by more than e^epsilon, as seen from it
    limit = sensitivity / 2 - epsilon * sigma**2 / sensitivity
    if limit < -40 * sigma:
        return 0.0  # below the smallest float
    # beyond these ends the terms are e^-72 of the largest or less
    ends = math.hypot(min(limit, 0.0), 12 * sigma), min(limit, 12 * sigma)
    k = np.arange(-math.ceil(ends[0]) - 1, math.ceil(ends[1]), dtype=np.float64)
    loss = sensitivity * (sensitivity - 2 * k) / (2 * sigma**2)
    terms = np.exp(-(k**2) / (2 * sigma**2)) * -np.expm1(np.minimum(epsilon - loss, 0.0))
    return min(1.0, float(np.sum(terms)) / _gaussian_total(sigma))


def concentrated_delta(rho: float, epsilon: float) -> float:
    """Return an upper bound of the delta at `epsilon` of a rho-zCDP mechanism.

    rho: > 0; discrete Gaussian vectors at L2 distance D, in any dimension, have D^2 / (2 sigma^2),
        and rhos of several releases add up.
    epsilon: >= 0.
    """

    def logarithm(order: float) -> float:
        gain = (order - 1) * (order * rho - epsilon)
        return gain + order * math.log1p(-1 / order) - math.log(order - 1)

    # convex in the order; golden sections in log(order - 1), where every bound found is valid
    low, high, section = -12.0, 60.0, (math.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - section * (high - low), low + section * (high - low)
        if logarithm(1 + math.exp(left)) < logarithm(1 + math.exp(right)):
            high = right
        else:
            low = left
    return min(1.0, math.exp(min(0.0, logarithm(1 + math.exp((low + high) / 2)))))


def smallest(holds: Callable[[float], bool], start: float) -> float:
    """Return a number at which a condition holds, within 1e-12 of the smallest such number.

    holds: False below some positive number, and true from there on.
    start: Where to look first, > 0.

    Raises PrivacyError if it holds nowhere below 1e300.
    """
    high = start
    while not holds(high):
        high *= 2
        if high > 1e300:
            raise PrivacyError(
                "no noise, however large, keeps this budget: give a larger epsilon or delta"
            )
    low = high / 2
    while holds(low) and low > 1e-300:
        low, high = low / 2, low
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _gaussian_total(sigma: float) -> float:
    """Return the sum of exp(-k^2 / (2 sigma^2)) over all integers, by Poisson summation."""
    if sigma < 1:
        return 1 + 2 * math.fsum(math.exp(-(k**2) / (2 * sigma**2)) for k in range(1, 40))
    other = math.fsum(math.exp(-2 * (math.pi * sigma * k) ** 2) for k in range(1, 8))
    return sigma * math.sqrt(2 * math.pi) * (1 + 2 * other)
