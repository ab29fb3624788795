"""Random scaling: intervals from the path's own wandering, without any estimate of curvature.

V = n^-2 sum_s s^2 (thetabar_s - thetabar_n)(.)' over the n records after the burn-in; the interval
is thetabar +- q sqrt(V_jj / n). Several paths are pooled with their shares of the records as
weights. Logs of one shared path are copies of the same pivot: the mean of their V_jj / n goes with
the critical value of one path.

Critical values q are exact at any level, for one path or several pooled. The pivot is
W(1) / sqrt(int (W(r) - r W(1))^2 dr) of a Brownian motion W. By Craig's formula its two-sided tail
is (2 / pi) int_0^{pi/2} prod_p sqrt(z_p / sinh z_p) dphi with z_p = q sqrt(w_p) / cos phi, one
factor for each path of weight w_p: paths are independent, so that the Laplace transforms of their
denominators multiply.
Source: ldp-sgd, random scaling; several paths are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.errors import ConfigError, NumericError
from pipeline.methods.ldp_sgd.sums import Sums
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


@dataclass(frozen=True, slots=True)
class RandomScaling:
    """A pooled average with the scale of its intervals.

    mean: The average iterate, shape (d,).
    scale: sqrt(V_jj / n), shape (d,).
    weights: Shares of the paths, which sum to one; one share for a shared path.
    """

    mean: Vector
    scale: Vector
    weights: tuple[float, ...]

    def half_width(self, level: float) -> Vector:
        """Return half the length of the intervals at `level`, shape (d,)."""
        return critical_value(level, self.weights) * self.scale


def random_scaling(paths: Sequence[tuple[Sums, Vector]], *, shared: bool = False) -> RandomScaling:
    """Return the average of some paths and its scale.

    paths: For each path its sums after the burn-in, and their origin m, shape (d,).
    shared: Whether they are logs of one path.

    Raises NumericError if no path has a record after its burn-in.
    """
    used = [(sums, origin) for sums, origin in paths if sums.records]
    if not used:
        raise NumericError(
            "no record has come after the burn-in, so there is nothing to average yet: "
            "more records are needed"
        )
    total = sum(sums.records for sums, _ in used)
    weights = tuple(sums.records / total for sums, _ in used)
    mean = np.zeros(len(used[0][1]))
    for weight, (sums, origin) in zip(weights, used, strict=True):
        mean = mean + weight * (origin + sums.c / sums.records)
    spread = pooled([(sums, variance(sums)) for sums, _ in used], shared=shared)
    return RandomScaling(mean, np.sqrt(spread), (1.0,) if shared else weights)


def pooled(variances: Sequence[tuple[Sums, Vector]], *, shared: bool) -> Vector:
    """Return the variance of the pooled average, shape (d,), from limit variances of its parts.

    Averages of n_p records of paths of their own have variance V_p / n_p and are independent; of
    one shared path each of them is the whole.
    """
    total = sum(sums.records for sums, _ in variances)
    found = np.zeros(len(variances[0][1]))
    for sums, value in variances:
        found = found + sums.records / total * value / (sums.records if shared else total)
    return found


def variance(sums: Sums) -> Vector:
    """Return the diagonal of V, shape (d,), never below zero."""
    count = sums.records
    centre = sums.c / count
    squares = count * (count + 1) * (2 * count + 1) // 6
    diagonal = np.diag(sums.a) if sums.a.ndim == 2 else sums.a
    found: Vector = (diagonal - 2 * sums.b * centre + squares * centre * centre) / count**2
    return np.maximum(found, 0.0)


def contrast(sums: Sums, direction: Vector) -> tuple[float, float]:
    """Return direction' (thetabar - m) and its scale, for a path that keeps the whole matrix A.

    Raises NumericError if the path keeps the diagonal alone.
    """
    if sums.a.ndim != 2:
        raise NumericError("contrasts need the whole matrix: set estimator.path.full = true")
    count = sums.records
    centre = float(direction @ sums.c) / count
    squares = count * (count + 1) * (2 * count + 1) // 6
    inner = float(direction @ sums.a @ direction) - 2 * float(direction @ sums.b) * centre
    value = max((inner + squares * centre * centre) / count**2, 0.0)
    return centre, math.sqrt(value / count)
