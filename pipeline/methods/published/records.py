"""Records of one client, the sums over them that a message holds, and the ridge beside them.

Sums hold no ridge: the number of records is public, so whoever adds messages adds the ridge once.
Source: dwd, eq. (16).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import DataError
from pipeline.estimators.objective import Rows
from pipeline.losses import Loss
from pipeline.methods.published.spec import Shape
from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Ridge:
    """A penalty of weight lambda >= 0 for each record, with one matrix R wherever it appears.

    R is the identity, or diag(0, 1, ..., 1), which leaves the intercept free. `printed` is for
    reproduction: the shape of R in the curvature where it differs from the gradient's. The paper
    prints it so; online, the intercept then lags for thousands of batches.
    """

    weight: float
    shape: Shape = "intercept-free"
    printed: Shape | None = None

    @classmethod
    def as_printed(cls, weight: float) -> Ridge:
        """Return the paper's text: intercept free in the gradient, identity in the curvature."""
        return cls(weight, "intercept-free", printed="identity")

    def of_gradient(self, size: int) -> Vector:
        """Return the diagonal of weight * R in the gradient, shape (size,)."""
        return self.weight * _diagonal(self.shape, size)

    def of_curvature(self, size: int) -> Vector:
        """Return the diagonal of weight * R in the curvature, shape (size,)."""
        return self.weight * _diagonal(self.printed or self.shape, size)


def _diagonal(shape: Shape, size: int) -> Vector:
    diagonal = np.ones(size)
    if shape == "intercept-free":
        diagonal[0] = 0.0
    return diagonal


@dataclass(frozen=True, slots=True)
class Records(Rows):
    """Rows of one client: responses are -1 or +1, and without weights every record counts once."""

    @classmethod
    def of(cls, features: Matrix, responses: Vector) -> Records:
        """Check features (n, p) and responses (n,), -1 or +1, and put the intercept in front."""
        if features.ndim != 2 or responses.shape != (len(features),):
            raise DataError("features must have shape (n, p) and responses shape (n,)")
        if not np.all(np.isfinite(features)):
            raise DataError("features must be finite numbers")
        if not np.all(np.abs(responses) == 1):
            raise DataError("responses must be -1 or +1")
        return cls(np.column_stack([np.ones(len(features)), features]), responses)

    def __len__(self) -> int:
        return self.responses.size

    @property
    def size(self) -> int:
        """Number d of coefficients."""
        return int(self.design.shape[1])

    def class_counts(self) -> tuple[int, int]:
        """Return how many records are negative, and how many positive."""
        positive = int(np.count_nonzero(self.responses > 0))
        return len(self) - positive, positive

    def weighted(self, weights: tuple[float, float]) -> Records:
        """Return the records with one weight for the negative and one for the positive class."""
        if weights == (1.0, 1.0):
            return replace(self, weights=None)
        return replace(self, weights=np.where(self.responses > 0, weights[1], weights[0]))

    def clipped(self, *, l1: float = math.inf, l2: float = math.inf) -> Records:
        """Shorten features so that (1, x) keeps public bounds > 1 of its 1-norm and 2-norm."""
        if math.isinf(l1) and math.isinf(l2):
            return self
        shares = np.ones(len(self))
        if math.isfinite(l1):
            lengths = np.abs(self.design).sum(axis=1) - 1
            shares = (l1 - 1) / np.maximum(lengths, l1 - 1)
        if math.isfinite(l2):
            room = l2 * l2 - 1
            squares = np.einsum("ij,ij->i", self.design, self.design) - 1
            shares = np.minimum(shares, np.sqrt(room / np.maximum(squares, room)))
        design = self.design * shares[:, None]
        design[:, 0] = self.design[:, 0]
        return replace(self, design=design)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over records at one point: their number, gradient (d,), curvature (d, d)."""

    records: int
    gradient: Vector
    curvature: Matrix


def sums_at(loss: Loss, clients: Iterable[Records], point: Vector) -> Sums:
    """Return the clients' summed messages at `point`, shape (d,), with the smoothed curvature."""
    size = len(point)
    records, gradient, curvature = 0, np.zeros(size), np.zeros((size, size))
    for client in clients:
        predictor = client.design @ point
        slope = loss.slope(predictor, client.responses)
        curvature_weight = loss.curvature(predictor, client.responses)
        if client.weights is not None:
            slope, curvature_weight = slope * client.weights, curvature_weight * client.weights
        records += len(client)
        gradient += client.design.T @ slope
        # the product of one matrix with itself is exactly symmetric
        rows = client.design * np.sqrt(curvature_weight)[:, None]
        curvature += rows.T @ rows
    return Sums(records, gradient, curvature)
