"""Copies of a site's own estimate: what noise they take as the paper has it.

Source: noisy-mle, Theorem 1 and Lemmas 1 and 2, and a bound of its sensitivity that can be
computed; what studies do instead, with a public scale, is
`pipeline.methods.noisy_copies.accounting`. One record is added or removed; rows have a norm of at
most R; F >= ridge I with a public ridge; linear: sigma = 1 and |y - x'theta| <= C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr


def alpha_beta(epsilon: float, delta: float, size: int, copies: int) -> tuple[float, float]:
    """Return alpha, to which the noise is calibrated, and beta, by which sensitivities may grow."""
    tail = math.log(2 / delta)
    beta = epsilon / (4 * math.sqrt(size * copies * tail) + 4 * tail)
    return epsilon / (2 * math.sqrt(2 * math.log(2.5 / delta))), beta


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Return the least deviation of the Gaussian mechanism at sensitivity 1, exactly.

    Balle and Wang 2018.
    """

    def excess(sigma: float) -> float:
        one, two = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return float(ndtr(one) - math.exp(epsilon + log_ndtr(two))) - delta

    return float(brentq(excess, 1e-3, 1e5, xtol=1e-14, rtol=1e-15))


@dataclass(frozen=True, slots=True)
class Linear:
    """Least squares: how one record moves estimate and information."""

    bound: float
    ridge: float
    norm: float = 1.0

    def moved(self, least: float) -> float:
        """Return a bound of |F^(1/2) (theta - theta')| where F has this least eigenvalue."""
        rho = self.norm**2
        return self.bound * math.sqrt(min(rho / least, rho / (rho + self.ridge)))

    def next(self, least: float) -> tuple[float, float]:
        """Return the least eigenvalue without a record, and the gain on the way."""
        rho = self.norm**2
        left = max(self.ridge, least - rho)
        return left, 1 + rho / left


@dataclass(frozen=True, slots=True)
class Logistic:
    """Logistic regression: the same by generalised self-concordance."""

    ridge: float
    norm: float = 1.0

    def drift(self, least: float) -> float:
        """Return s: weights of other records change by at most e^s."""
        square = self.norm**2
        drift = square / self.ridge
        return min(drift, -math.log1p(-square / least)) if least > square else drift

    def moved(self, least: float) -> float:
        """As `Linear.moved`."""
        drift = self.drift(least)
        return self.norm / math.sqrt(least) * drift / -math.expm1(-drift)

    def next(self, least: float) -> tuple[float, float]:
        """As `Linear.next`."""
        square, drift = self.norm**2, self.drift(least)
        left = self.ridge + math.exp(-drift) * max(0.0, least - self.ridge - square / 4)
        return left, math.exp(drift) + square / (4 * left)


def smooth_bound(model: Linear | Logistic, least: float, beta: float) -> float:
    """Return a smooth upper bound of T at a least eigenvalue of F; infinite where there is none."""
    floor = model.next(model.ridge)[1]
    if floor > math.exp(2 * beta):
        return math.inf
    best, factor = 0.0, 1.0
    while True:
        best = max(best, factor * model.moved(least))
        left, gain = model.next(least)
        factor *= math.sqrt(gain) * math.exp(-beta)
        if left >= least or left <= model.ridge:
            return max(best, factor * model.moved(max(left, model.ridge)))
        least = left


def min_ridge(of: Callable[[float], Linear | Logistic], beta: float) -> float:
    """Return the least ridge with which the smooth bound is finite."""

    def excess(ridge: float) -> float:
        return of(ridge).next(ridge)[1] - math.exp(2 * beta)

    return float(brentq(excess, 1e-2, 1e9, xtol=1e-12, rtol=1e-15))
