"""Steps scaled by direction: a matrix before the gradients that is about the inverse curvature.

One step size for all directions is too long for the steepest or too short for the flattest. The
matrix begins as the inverse of a public guess R of the mean curvature. It is made anew from the
mean of the released curvatures whenever the path has doubled; what their noise still hides stays as
guessed. It follows from public numbers and releases alone, so it costs no privacy.
Source: this project's; ldp-sgd has one step size for all directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.types import Matrix

#: Where a direction's curvature is below this share of the public guess, it counts as that share.
LEAST_SHARE = 0.02
#: A released curvature replaces the guess once its noise hides no direction of half the guess.
USEFUL = 0.5
#: Bits of a matrix that are kept: libraries of linear algebra disagree about the last ones.
_BITS = 30


@dataclass(frozen=True, slots=True)
class Known:
    """A mean curvature after its repair.

    curvature: Shape (d, d).
    floored: How many directions were raised.
    hidden: The part of the inverse in those directions, shape (d, d).
    """

    curvature: Matrix
    floored: int
    hidden: Matrix


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the steps of a study are scaled.

    reference: R, the public guess of the mean curvature of a record, positive definite, shape (d,
        d).
    cloud: Largest product of a step and the trace of the matrix; infinite without noise.
    noise: Standard deviation of a diagonal entry of the mean of released curvatures over n records,
        times the root of n.
    """

    reference: Matrix
    cloud: float
    noise: float

    def first(self) -> Matrix:
        """Return the matrix before anything is released, shape (d, d)."""
        return _inverse(self.reference)

    def matrix(self, curvature: Matrix, records: int) -> Matrix:
        """Return the matrix after a mean curvature over `records` records, both (d, d)."""
        if self.is_guess(records):
            return self.first()
        return _inverse(self.known(curvature, records).curvature)

    def reach(self, records: int, step: float) -> float:
        """Return a bound of a step times an absolute row sum of its matrix, whatever was released.

        P is at most R^-1 / L, with L the least share after so many records. Of such P the most of
        e_j' P s is half of |a| |b| + a' b, with a' b = e_j' R^-1 s / L, and signs s. The cap of the
        step by tr(P) bounds it as well: by (1 + sqrt d) / 2 times that cap.
        """
        inverse = np.abs(self.first())
        rows = (np.sqrt(np.diag(inverse) * inverse.sum()) + inverse.sum(axis=1)) / 2
        row = float(rows.max()) / self._least(records)
        return min(step * row, self.cloud * (1 + math.sqrt(len(rows))) / 2)

    def is_guess(self, records: int) -> bool:
        """Whether curvatures of so many records are too noisy to replace the guess."""
        return self._hidden(records) > USEFUL

    def known(self, curvature: Matrix, records: int) -> Known:
        """Return a mean of released curvatures with what noise hides raised, both (d, d)."""
        values, vectors = np.linalg.eigh(self.reference)
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        shares, directions = np.linalg.eigh(inverse @ curvature @ inverse)
        least = self._least(records)
        low, raised = shares < least, np.maximum(shares, least)
        repaired = root @ (directions * raised) @ directions.T @ root
        hidden = inverse @ (directions * np.where(low, 1 / raised, 0.0)) @ directions.T @ inverse
        return Known((repaired + repaired.T) / 2, int(low.sum()), hidden)

    def _least(self, records: int) -> float:
        return max(self._hidden(records), LEAST_SHARE)

    def _hidden(self, records: int) -> float:
        """Return about the largest eigenvalue of the noise, as a share of the guess.

        A symmetric matrix with entries of deviation s beside its diagonal has about 2 s sqrt d.
        """
        size = len(self.reference)
        beside = self.noise / math.sqrt(2 * records)
        return 2 * math.sqrt(size) * beside * float(np.trace(np.linalg.inv(self.reference))) / size


def _inverse(matrix: Matrix) -> Matrix:
    inverse = np.linalg.inv(matrix)
    parts, exponents = np.frexp((inverse + inverse.T) / 2)
    rounded: Matrix = np.ldexp(np.rint(np.ldexp(parts, _BITS)), exponents - _BITS)
    return rounded
