"""Random scaling: intervals from the path's own wandering, without any estimate of curvature.

V = n^-2 sum_s s^2 (thetabar_s - thetabar_n)(.)' over the n records after the burn-in; the interval
is thetabar +- q sqrt(V_jj / n) with the critical values of `critical`. Several paths are pooled
with their shares of the records as weights. Logs of one shared path are copies of the same pivot:
the mean of their V_jj / n goes with the critical value of one path.
Source: ldp-sgd, random scaling; several paths are this project's, see `critical`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import NumericError
from pipeline.methods.ldp_sgd.critical import critical_value
from pipeline.methods.ldp_sgd.sums import Sums
from pipeline.types import Vector


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
        raise NumericError("no record has come after the burn-in")
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
