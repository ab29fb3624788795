"""The bread of the sandwich: the noisy mean curvature and the ridge, as far as they are known.

M = Abar, its negative eigenvalues set to 0, + ridge R. The ridge belongs to the target, so what
matters is whether their sum is known beside the noise of Abar, whose spectral size s is public. Of
a direction the ridge is certain, and of Abar what is beyond s. An eigenvalue of M below s / 2 is
raised to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.methods.renewable.precision import FLOOR, READY, Noise
from pipeline.types import Matrix, Vector

#: A coefficient of whose variance this share can lie in unknown directions has no interval: steps
#: along them are too short by an unknown factor.
UNKNOWN_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Bread:
    """M, and what is known of it.

    matrix: M with its floor, shape (d, d).
    curvature: The positive part of Abar, shape (d, d).
    certain: What is certain of M in the direction of each of its eigenvectors, shape (d,).
    loadings: The share of each coefficient's variance that can lie in directions that are not
        known, in [0, 1], shape (d,). A direction counts by what is certain of it: one that is
        spread evenly over all coefficients can rule the variance of each.
    turned: How much of each coefficient's axis lies in those directions, in [0, 1], shape (d,).
    noise: s.
    """

    matrix: Matrix
    curvature: Matrix
    certain: Vector
    loadings: Vector
    turned: Vector
    noise: float

    @property
    def hidden(self) -> int:
        """How many directions are not known beside the noise."""
        return int(np.count_nonzero(self.certain < READY * self.noise))

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Which coefficients lie in them, shape (d,)."""
        return self.loadings >= UNKNOWN_SHARE


def bread_of(mean: Matrix, releases: float, penalty: Vector, noise: Noise) -> Bread:
    """Return the bread.

    mean, releases: Mean noisy curvature of one record, and of how many releases it is.
    penalty: Of each coefficient, shape (d,).
    """
    size = noise.of_curvature(releases)
    values, vectors = np.linalg.eigh(mean)
    curvature = _assembled(vectors, np.maximum(values, 0.0))
    values, vectors = np.linalg.eigh(curvature + np.diag(penalty))
    held = penalty @ vectors**2
    certain = held + np.maximum(values - held - size, 0.0)
    hidden = certain < READY * size
    # noise goes through the inverse of M; what is not certain at all counts as 1e-6 of the rest
    shares = vectors**2 / np.maximum(certain, 1e-6 * max(float(certain.max()), size)) ** 2
    return Bread(
        matrix=_assembled(vectors, np.maximum(values, FLOOR * size)),
        curvature=curvature,
        certain=certain,
        loadings=shares[:, hidden].sum(axis=1) / shares.sum(axis=1),
        turned=(vectors[:, hidden] ** 2).sum(axis=1),
        noise=size,
    )


def _assembled(vectors: Matrix, values: Vector) -> Matrix:
    whole: Matrix = (vectors * values) @ vectors.T
    return (whole + whole.T) / 2
