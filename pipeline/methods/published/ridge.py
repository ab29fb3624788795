"""The ridge penalty: (n weight / 2) theta' R theta over n records. Source: dwd, eq. (6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.methods.published.spec import Shape
from pipeline.types import Vector


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
