"""The ridge penalty: (n weight / 2) theta' R theta over n records. Source: dwd, eq. (6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from pipeline.errors import ConfigError
from pipeline.types import Vector

Shape = Literal["identity", "intercept-free"]


@dataclass(frozen=True, slots=True)
class Ridge:
    """A penalty for each record, with one matrix R wherever it appears.

    Attributes
    ----------
    weight
        lambda >= 0, per record.
    shape
        R is the identity, or diag(0, 1, ..., 1), which leaves the intercept free.
    printed
        Reproduction only: the shape of R in the curvature where it differs from the gradient's.
        The paper prints it so; online, the intercept then lags for thousands of batches.

    Raises
    ------
    ConfigError
        If the weight is not finite and >= 0, or a shape is unknown.
    """

    weight: float
    shape: Shape = "intercept-free"
    printed: Shape | None = None

    def __post_init__(self) -> None:
        """Refuse what is no penalty."""
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ConfigError("ridge.weight must be a finite number >= 0, for example 0.1")
        allowed = get_args(Shape)
        if self.shape not in allowed or self.printed not in (None, *allowed):
            raise ConfigError(f"ridge.shape must be one of {', '.join(allowed)}")

    @classmethod
    def as_printed(cls, weight: float) -> Ridge:
        """Return the paper's text: intercept free in the gradient, identity in the curvature."""
        return cls(weight, "intercept-free", printed="identity")

    @property
    def label(self) -> str:
        """Name the penalty, and say so where it only reproduces the paper's text."""
        if self.printed is None:
            return f"ridge {self.weight:g}, {self.shape}"
        return (
            f"reproduction: ridge {self.weight:g}, {self.shape} in the gradient but "
            f"{self.printed} in the curvature"
        )

    @property
    def intercept_is_free(self) -> bool:
        """Whether nothing holds the intercept back."""
        return self.weight == 0 or self.shape == "intercept-free"

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
