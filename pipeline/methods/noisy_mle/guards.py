"""How far each site is from the others, and how much it may weigh.

A site that says what the others say has a squared distance of d on average. Beyond the limit it is
weighed down in proportion, so that its pull no longer grows; far beyond it is left out. The limit
grows with the usual distance, so that sites which truly differ are not all suspected.
"""

from __future__ import annotations

import numpy as np
from scipy.special import chdtri

from pipeline.types import Matrix, Vector

#: With fewer sites nobody can tell who of them is wrong.
LEAST_SITES = 4
#: Share of honest sites beyond the limit, of normal scores.
BEYOND = 0.01
#: A site is left out where its squared distance is so many times the limit.
FLAGGED = 4.0


def limit_of(numbers: int) -> float:
    """Return the squared distance that `BEYOND` of honest sites pass, of so many numbers."""
    return float(chdtri(numbers, BEYOND))


def distances(residuals: Matrix, covariances: Matrix) -> Vector:
    """Return the squared Mahalanobis norm of each row, shapes (M, d) and (M, d, d)."""
    solved = np.linalg.solve(covariances, residuals[:, :, None])[:, :, 0]
    found: Vector = np.einsum("ij,ij->i", residuals, solved)
    return np.maximum(found, 0.0)


def usual(squared: Vector, numbers: int) -> float:
    """Return by what factor the usual squared distance passes that of equal sites, >= 1."""
    return max(1.0, float(np.median(squared)) / float(chdtri(numbers, 0.5)))


def factors(squared: Vector, numbers: int) -> Vector:
    """Return the factors in [0, 1] by which sites weigh less for their distance, shape (M,)."""
    if len(squared) < LEAST_SITES:
        return np.ones(len(squared))
    limit = limit_of(numbers) * usual(squared, numbers)
    least = np.maximum(squared, limit)
    return np.where(squared > FLAGGED * limit, 0.0, np.sqrt(limit / least))


def capped(mass: Vector, share: float) -> Vector:
    """Return factors in (0, 1] with which no mass is more than a share of their sum, shape (M,).

    Where there are too few sites for that, nothing is cut.
    """
    some = mass > 0
    if np.count_nonzero(some) * share <= 1:
        return np.ones(len(mass))
    largest = np.sort(mass)[::-1]
    rest = float(largest.sum())
    for cut, value in enumerate(largest.tolist()):
        total = rest / (1 - cut * share) if cut * share < 1 else 0.0
        if value <= share * total:
            break
        rest -= value
    return np.where(some, np.minimum(1.0, share * total / np.where(some, mass, 1.0)), 1.0)
