"""The bread of the sandwich: the noisy mean curvature and the ridge, as far as they are known.

M = Abar, its eigenvalues shrunk and negative ones set to 0, + ridge R. The ridge belongs to the
target, so what matters is whether their sum is known beside the noise of Abar, whose spectral size
s is public. Of a direction the ridge is certain, and of Abar what is beyond s. An eigenvalue of M
below s / 2 is raised to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
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
    curvature: The positive part of Abar with its eigenvalues shrunk, shape (d, d).
    certain, axes: Eigenvalues of what is certain of M, shape (d,), and their vectors, (d, d).
    loadings: The share of each coefficient's variance that can lie in directions that are not
        known, in [0, 1], shape (d,). A direction counts by what is certain of it: one that is
        spread evenly over all coefficients can rule the variance of each.
    turned: How much of each coefficient's axis lies in those directions, in [0, 1], shape (d,).
    come: How many of the releases that are needed have come to make the hidden directions known,
        by what these seem to hold, as a share; 1 where none is hidden.
    noise: s.
    """

    matrix: Matrix
    curvature: Matrix
    certain: Vector
    axes: Matrix
    loadings: Vector
    turned: Vector
    come: float
    noise: float

    @property
    def hidden(self) -> int:
        """How many directions are not known beside the noise."""
        return int(np.count_nonzero(self.certain < READY * self.noise))

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Which coefficients lie in them, shape (d,)."""
        return self.loadings >= UNKNOWN_SHARE

    def longest(self, step: Vector) -> Vector:
        """Return a step that M has made as long as it may be in directions that are known.

        Where M holds more than is certain, which may be noise, the step is too short. What it is in
        hidden directions stays.

        step: Shape (d,).
        """
        known = (self.certain >= READY * self.noise) & (self.certain > 0)
        own = self.axes.T @ step
        own[known] = (self.axes.T @ self.matrix @ step)[known] / self.certain[known]
        return self.axes @ own


def bread_of(
    mean: Matrix, releases: float, penalty: Vector, noise: Noise, *, noisy: bool = True
) -> Bread:
    """Return the bread.

    mean, releases: Mean curvature of one record, and of how many releases it is.
    penalty: Of each coefficient, shape (d,).
    noisy: Whether the mean curvature holds the noise; a plan knows it without.
    """
    size = noise.of_curvature(releases)
    values, vectors = np.linalg.eigh(mean)
    values, ridge = shrunk(values, size) if noisy else values, np.diag(penalty)
    curvature = _assembled(vectors, np.maximum(values, 0.0))
    least = _assembled(vectors, np.maximum(values - size, 0.0))
    certain, axes = np.linalg.eigh(least + ridge)
    hidden = certain < READY * size
    # noise goes through the inverse of M; what is not certain at all counts as 1e-6 of the rest
    shares = axes**2 / np.maximum(certain, 1e-6 * max(float(certain.max()), size)) ** 2
    values, vectors = np.linalg.eigh(curvature + ridge)
    return Bread(
        matrix=_assembled(vectors, np.maximum(values, FLOOR * size)),
        curvature=curvature,
        certain=certain,
        axes=axes,
        loadings=shares[:, hidden].sum(axis=1) / shares.sum(axis=1),
        turned=(axes[:, hidden] ** 2).sum(axis=1),
        come=_come(axes[:, hidden], curvature, penalty, size),
        noise=size,
    )


def _come(axes: Matrix, curvature: Matrix, penalty: Vector, size: float) -> float:
    """Return which share of the releases has come that hidden directions need.

    axes: An orthonormal basis of them, shape (d, k). Which one does not matter: what is certain of
        several directions may be the same, and then any basis of them is as good.
    """
    if not axes.shape[1]:
        return 1.0
    own, turns = np.linalg.eigh(axes.T @ curvature @ axes)
    held = penalty @ (axes @ turns) ** 2
    # noise falls as the root of the releases, until either is enough
    found = np.maximum(held / READY, (held + own) / (1 + READY)) / size
    return float(np.min(found)) ** 2


def shrunk(values: Vector, size: float) -> Vector:
    """Return the eigenvalues of a noisy symmetric matrix without what its noise does to them.

    Noise drives eigenvalues apart and turns their vectors. For the vectors that there are, the
    values with the least mean square error are to first order

        value_i - s^2 / d  sum_j (value_i - value_j) / ((value_i - value_j)^2 + s^2 / d)

    (Bun, Allez, Bouchaud and Potters 2016, for Gaussian noise; s^2 / d, the variance of an entry on
    the diagonal, keeps values that are near each other finite). Those that would change places are
    one value. Their sum is as before.

    values: In ascending order, shape (d,).
    size: s, the spectral size of the noise, >= 0.
    """
    apart, variance = values[:, None] - values, size**2 / len(values)
    if variance == 0:
        return values
    pushed = variance * np.sum(apart / (apart**2 + variance), axis=1)
    kept: Vector = scipy.optimize.isotonic_regression(values - pushed).x
    return kept


def _assembled(vectors: Matrix, values: Vector) -> Matrix:
    whole: Matrix = (vectors * values) @ vectors.T
    return (whole + whole.T) / 2
