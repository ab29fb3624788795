"""Sensitivities of a window's sums, for clipped records, in the L1 or the L2 norm.

A record contributes s (1, x) to the gradient and h (1, x)(1, x)' to the curvature, with
|s| <= slope and 0 <= h <= curvature. Matrices are measured in svec form: the diagonal, and the
entries above it times sqrt 2, whose L2 norm is Frobenius'. Checked by adversarial search in the
tests; proofs in docs/privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Neighbours = Literal["zero-out", "replace-one"]
#: Order of the norm that a mechanism is calibrated in: 1 for Laplace, 2 for Gaussian noise.
Order = Literal[1, 2]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Public bounds of one record (1, x).

    l1, l2: Upper bounds of its norms.
    """

    l1: float
    l2: float


def of_gradient(bounds: Bounds, slope: float, neighbours: Neighbours, order: Order) -> float:
    """Return the sensitivity of the sum of slopes times (1, x)."""
    norm = bounds.l1 if order == 1 else bounds.l2
    return slope * norm * (2.0 if neighbours == "replace-one" else 1.0)


def of_record(
    bounds: Bounds,
    slope: float,
    clipping_norm: float,
    size: int,
    neighbours: Neighbours,
    order: Order,
) -> float:
    """Return the sensitivity of one record's weighted gradient, of `size` entries.

    Its weight keeps the L2 norm of (1, x) within the clipping_norm.
    """
    norm = min(clipping_norm, bounds.l2)
    if order == 1:
        norm = min(bounds.l1, math.sqrt(size) * norm)
    return slope * norm * (2.0 if neighbours == "replace-one" else 1.0)


def of_curvature(bounds: Bounds, curvature: float, neighbours: Neighbours, order: Order) -> float:
    """Return the sensitivity of the sum of curvatures times (1, x)(1, x)', in svec form."""
    square = bounds.l2 * bounds.l2
    if order == 1:
        # sum x_i^2 + sqrt 2 sum_{i<j} |x_i x_j|
        whole = (1 - math.sqrt(0.5)) * square + math.sqrt(0.5) * bounds.l1 * bounds.l1
        return curvature * whole * (2.0 if neighbours == "replace-one" else 1.0)
    if neighbours == "zero-out":
        return curvature * square
    if square >= 2:
        return curvature * math.sqrt(2) * square
    return curvature * max(square, math.sqrt(8 * (square - 1)))


def of_outer_product(
    bounds: Bounds,
    factor: float,
    clipping_norm: float,
    size: int,
    neighbours: Neighbours,
    order: Order,
) -> float:
    """Return the sensitivity of a sum of outer products f z z' with 0 <= f <= factor, in svec form.

    z is (1, x) of `size` entries, shrunk until its L2 norm is within the clipping norm, intercept
    included: two such may be orthogonal at any norm, and |z z' - y y'|^2 <= |z|^4 + |y|^4.
    Source: ldp-sgd, matrix noise, which has the factor 2 where sqrt 2 is enough.
    """
    norm = min(clipping_norm, bounds.l2)
    if order == 1:
        within = Bounds(min(bounds.l1, math.sqrt(size) * norm), norm)
        return of_curvature(within, factor, neighbours, order)
    return factor * norm * norm * (math.sqrt(2) if neighbours == "replace-one" else 1.0)


def of_class_counts(neighbours: Neighbours, order: Order) -> float:
    """Return the sensitivity of the two class counts."""
    if neighbours == "zero-out":
        return 1.0
    return 2.0 if order == 1 else math.sqrt(2)


def of_squares(slope: float) -> float:
    """Return the sensitivity of the sum of squared slopes, under either neighbours.

    Each lies in [0, slope^2], so that two of them differ by no more than one from nothing.
    """
    return slope * slope


def rounding_of_vector(size: int, order: Order) -> float:
    """Return how far rounding to the lattice moves the distance of two vectors, in units."""
    return float(size) if order == 1 else math.sqrt(size)


def rounding_of_matrix(size: int, order: Order) -> float:
    """Return the same for symmetric matrices of `size` rows, in svec form."""
    return size + math.sqrt(2) * size * (size - 1) / 2 if order == 1 else float(size)
