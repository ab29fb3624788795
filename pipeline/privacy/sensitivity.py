"""Exact L2 sensitivities of a window's sums, for clipped records.

A record contributes s (1, x) to the gradient and h (1, x)(1, x)' to the curvature, with
|s| <= slope, 0 <= h <= curvature and norm of (1, x) <= norm. Source: spec of the renewable
method, section on per-message privacy; checked by adversarial search in the tests.
"""

from __future__ import annotations

import math
from typing import Literal

Neighbours = Literal["zero-out", "replace-one"]


def of_gradient(norm: float, slope: float, neighbours: Neighbours) -> float:
    """Return the sensitivity of the sum of slopes times (1, x)."""
    return slope * norm * (2.0 if neighbours == "replace-one" else 1.0)


def of_curvature(norm: float, curvature: float, neighbours: Neighbours) -> float:
    """Return the Frobenius sensitivity of the sum of curvatures times (1, x)(1, x)'."""
    square = norm * norm
    if neighbours == "zero-out":
        return curvature * square
    if square >= 2:
        return curvature * math.sqrt(2) * square
    return curvature * max(square, math.sqrt(8 * (square - 1)))


def of_class_counts(neighbours: Neighbours) -> float:
    """Return the sensitivity of the two class counts."""
    return math.sqrt(2) if neighbours == "replace-one" else 1.0
