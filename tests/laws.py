"""Exact laws of integers and tests of draws against them, on formulas of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
import numpy as np
from scipy import stats

from pipeline.privacy.laws import Digit, Gaussian, Laplace
from pipeline.types import Integers, Vector


def cumulative(
    law: Gaussian | Laplace | Digit, first: int, last: int, digits: int
) -> list[mpmath.mpf]:
    """Return P(X <= k) for k = first ... last, right to about so many digits."""
    with mpmath.workdps(digits + 20):
        if isinstance(law, Gaussian):
            return _gaussian_sums(law.sigma, first, last, digits)
        if isinstance(law, Laplace):
            return _laplace_sums(law, first, last)
        powers = geometric(mpmath.exp(-law.stride / mpmath.mpf(law.scale)), law.count + 1)
        return [(1 - powers[k + 1]) / (1 - powers[-1]) for k in range(first, last + 1)]


def geometric(base: mpmath.mpf, count: int) -> list[mpmath.mpf]:
    """Return base^k for k = 0 ... count - 1, by products: an exponential for each takes long."""
    powers = [mpmath.mpf(1)]
    for _ in range(count - 1):
        powers.append(powers[-1] * base)
    # each product errs by a unit in the last place
    assert abs(powers[-1] / base ** (count - 1) - 1) < 4 * count * mpmath.eps
    return powers


def bell(sigma: float, count: int) -> list[mpmath.mpf]:
    """Return exp(-k^2 / (2 sigma^2)) for k = 0 ... count - 1, by products too."""
    base = mpmath.exp(-1 / (2 * mpmath.mpf(sigma) ** 2))
    weights, ratio = [mpmath.mpf(1)], base
    for _ in range(count - 1):
        weights.append(weights[-1] * ratio)
        ratio *= base * base
    assert abs(weights[-1] / base ** ((count - 1) ** 2) - 1) < 4 * count**2 * mpmath.eps
    return weights


def _gaussian_sums(sigma: float, first: int, last: int, digits: int) -> list[mpmath.mpf]:
    # beyond this is less than 10^-digits of the mass
    reach = math.ceil(sigma * math.sqrt(2 * math.log(10) * digits)) + 2
    half = bell(sigma, reach + 1)
    total = 2 * mpmath.fsum(half) - 1
    running, sums = mpmath.mpf(0), []
    for k in range(-reach, last + 1):
        if abs(k) <= reach:
            running += half[abs(k)]
        if k >= first:
            sums.append(running / total)
    return sums


def _laplace_sums(law: Laplace, first: int, last: int) -> list[mpmath.mpf]:
    """X <= k where Y <= stride (k + 1) - 1 for a discrete Laplace Y."""
    b = mpmath.mpf(law.scale)
    q, powers = mpmath.exp(-1 / b), geometric(mpmath.exp(-law.stride / b), max(-first, last + 2))
    below = {k: powers[-k - 1] * q / (1 + q) for k in range(first, 0)}
    above = {k: 1 - powers[k + 1] / (1 + q) for k in range(last + 1)}
    return [(below if k < 0 else above)[k] for k in range(first, last + 1)]


def laplace_cdf(scale: float, k: int) -> mpmath.mpf:
    """Return P(X <= k) of the discrete Laplace law, in closed form."""
    b = mpmath.mpf(scale)
    q = mpmath.exp(-1 / b)
    if k < 0:
        return mpmath.exp(k / b) / (1 + q)
    return 1 - mpmath.exp(-(k + 1) / b) / (1 + q)


@dataclass(frozen=True)
class Masses:
    """A law as float64 masses of first, first + 1, ...; less than 1e-18 is left out."""

    first: int
    mass: Vector

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        k = self.first + np.arange(len(self.mass))
        return math.sqrt(float(np.sum(self.mass * k**2)))


def gaussian_masses(sigma: float) -> Masses:
    """Return the discrete Gaussian."""
    reach = math.ceil(9.2 * sigma) + 2
    k = np.arange(-reach, reach + 1, dtype=float)
    weight = np.exp(-(k**2) / (2 * sigma**2))
    return Masses(-reach, weight / math.fsum(weight))


def laplace_masses(scale: float) -> Masses:
    """Return the discrete Laplace law."""
    reach = math.ceil(42 * scale) + 2
    weight = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    return Masses(-reach, weight / math.fsum(weight))


def misfit(draws: Integers, law: Masses) -> float:
    """Return how likely draws of a law fit it no better than these; small means another law.

    The smallest p-value, times the number of tests: chi-square tests with few and with many cells,
    whose smallest hold ten draws of a tail; exact tests of the share above zero, and of the shares
    beyond 3, 4, 5 and 8 standard deviations; the means of |X| and of X^2, which tell the scale.
    """
    index = draws - law.first
    if index.min() < 0 or index.max() >= len(law.mass):
        return 0.0
    seen = np.bincount(index, minlength=len(law.mass)).astype(float)
    found = [_chi_square(seen, law.mass, cells) for cells in (100, 3000)]
    k = law.first + np.arange(len(law.mass))
    for kind in (k > 0, *(np.abs(k) > far * law.deviation for far in (3, 4, 5, 8))):
        count, chance = int(seen[kind].sum()), float(law.mass[kind].sum())
        trial = stats.binom(len(draws), chance)
        found.append(2 * min(trial.cdf(count), trial.sf(count - 1)))
    for power in (1, 2):
        moment = np.abs(k).astype(float) ** power
        mean = float(np.sum(law.mass * moment))
        error = math.sqrt((float(np.sum(law.mass * moment**2)) - mean**2) / len(draws))
        found.append(2 * stats.norm.sf(abs(float(seen @ moment) / len(draws) - mean) / error))
    return min(found) * len(found)


def _chi_square(seen: Vector, mass: Vector, cells: int) -> float:
    """Return the p-value of a chi-square test with about so many cells of equal mass.

    The outer ones are halved again and again down to an expectation of ten.
    """
    n = seen.sum()
    width = n / cells
    left = n * np.cumsum(mass)
    right = n - left + n * mass
    outside = np.minimum(left, right)
    level = np.where(
        outside >= width, outside // width + 100, np.log2(np.maximum(outside, 10) / 10) // 1
    )
    label = np.where(left <= right, level - 1e9, 1e9 - level)
    starts = np.flatnonzero(np.diff(label, prepend=-math.inf))
    expected, observed = np.add.reduceat(n * mass, starts), np.add.reduceat(seen, starts)
    merged: list[list[float]] = [[0.0, 0.0]]
    for wanted, count in zip(expected, observed, strict=True):
        if merged[-1][0] >= 10:
            merged.append([0.0, 0.0])
        merged[-1][0] += wanted
        merged[-1][1] += count
    if merged[-1][0] < 10 and len(merged) > 1:
        rest = merged.pop()
        merged[-1] = [merged[-1][0] + rest[0], merged[-1][1] + rest[1]]
    table = np.array(merged)
    statistic = np.sum((table[:, 1] - table[:, 0]) ** 2 / table[:, 0])
    return float(stats.chi2.sf(statistic, len(table) - 1))
