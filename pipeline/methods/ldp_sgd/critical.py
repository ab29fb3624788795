"""Critical values of random scaling, exact at any level, for one path or several pooled.

The pivot is W(1) / sqrt(int (W(r) - r W(1))^2 dr) of a Brownian motion W. By Craig's formula its
two-sided tail is (2 / pi) int_0^{pi/2} prod_p sqrt(z_p / sinh z_p) dphi with
z_p = q sqrt(w_p) / cos phi, one factor for each path of weight w_p: paths are independent, so that
the Laplace transforms of their denominators multiply.
Source: ldp-sgd, random scaling; several paths are this project's.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from pipeline.errors import ConfigError
from pipeline.types import Vector


def critical_value(level: float, weights: tuple[float, ...] = (1.0,)) -> float:
    """Return q of the two-sided interval estimate +- q sqrt(V / n) at `level`.

    level: In (0, 1).
    weights: Shares of the records of each path, > 0; they are scaled to sum to one.

    Raises ConfigError if the level or a weight is out of range.
    """
    if not 0 < level < 1:
        raise ConfigError("estimator.level must lie in (0, 1), for example 0.95")
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise ConfigError("weights of paths must be positive numbers")
    total = math.fsum(weights)
    # equal sets of weights share one search
    return _solved(level, tuple(sorted(weight / total for weight in weights)))


def tail(q: float, weights: tuple[float, ...] = (1.0,)) -> float:
    """Return P(|pivot| > q) for q >= 0; the weights sum to one."""
    # half a second to import, and a worker that restarts folds long before it needs an interval
    from scipy.integrate import quad  # noqa: PLC0415

    roots = np.sqrt(np.array(weights))

    def integrand(angle: float) -> float:
        return math.exp(0.5 * float(np.sum(_log_ratio(q * roots / math.cos(angle)))))

    # the integrand vanishes with all its derivatives at the right end
    found, _ = quad(integrand, 0.0, math.pi / 2 * (1 - 1e-12), epsabs=1e-13, epsrel=1e-12)
    return float(2 / math.pi * found)


@lru_cache(maxsize=256)
def _solved(level: float, weights: tuple[float, ...]) -> float:
    from scipy.optimize import brentq  # noqa: PLC0415  as in `tail`

    def excess(q: float) -> float:
        return tail(q, weights) - (1 - level)

    end = 8.0
    while excess(end) > 0:
        end *= 2
    return float(brentq(excess, 0.0, end, xtol=1e-12, rtol=1e-14))


def _log_ratio(z: Vector) -> Vector:
    """Return log(z / sinh z), shape of z, also where sinh overflows or z is tiny."""
    small = z < 1e-4
    safe = np.where(small, 1.0, z)
    ratio = np.log(safe) - (safe + np.log1p(-np.exp(-2 * safe)) - math.log(2.0))
    return np.where(small, -z * z / 6, ratio)
