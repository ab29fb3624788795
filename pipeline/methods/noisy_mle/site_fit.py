"""A site's own fit with a public ridge: exact minimisers, whose information is never singular.

A ridge makes fits of separated classes, of fewer records than coefficients and of none at all.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.types import Matrix, Vector

#: Newton steps at most, and the length of the last one as a share of what one record can pull.
STEPS, SHORT = 200, 1e-7
#: Steps that move no predictor further than this are whole ones: curvature hardly changes on them.
NEAR = 0.1
#: Of a linear fit at the edge of its ball: halvings of the search for its multiplier.
HALVINGS = 200


def linear_fit(
    design: Matrix, responses: Vector, ridge: float, deviation: float, most: float
) -> tuple[Vector, Matrix]:
    """Return the ridge fit within |theta| <= most and its information X'X / deviation^2 + ridge I.

    Shapes (n, d) and (n,); returns (d,) and (d, d).
    """
    size, precision = design.shape[1], deviation**-2
    information = precision * (design.T @ design) + ridge * np.eye(size)
    right = precision * (design.T @ responses)
    theta = solve_positive(information, right)
    if np.linalg.norm(theta) <= most:
        return theta, information
    values, vectors = np.linalg.eigh(information)
    turned = vectors.T @ right

    def length(multiplier: float) -> float:
        return float(np.linalg.norm(turned / (values + multiplier)))

    low, high = 0.0, float(np.linalg.norm(right)) / most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) > most else (low, middle)
    return vectors @ (turned / (values + high)), information


def logistic_fit(
    loss: Loss, design: Matrix, responses: Vector, weights: Vector, start: Vector, ridge: float
) -> tuple[Vector, Matrix]:
    """Return the minimiser of the weighed loss and ridge |theta|^2 / 2, and the curvature there.

    start: Predictors at theta = 0, shape (n,): it is the way from a public point.

    Newton's method with steps halved until they help; strictly convex, so that it ends at the one
    minimiser. The curvature of `loss` changes by at most a factor e^s on a way s of predictors:
    near the end whole steps help, where rounding would hide it. Shapes as in `linear_fit`.

    Raises PrivacyError if it has not ended after `STEPS` steps.
    """
    size, weights = design.shape[1], np.ascontiguousarray(weights)
    squares = np.einsum("ij,ij->i", design, design)
    near = NEAR**2 * ridge / float(np.max(squares, initial=1.0))
    small = SHORT**2 * float(np.max(weights**2 * squares, initial=0.0)) / ridge
    theta = np.zeros(size)

    def value(at: Vector) -> float:
        return float(weights @ loss.value(start + design @ at, responses)) + ridge / 2 * float(
            at @ at
        )

    def curved(at: Vector) -> Matrix:
        bends = weights * loss.curvature(start + design @ at, responses)
        found: Matrix = (design.T * bends) @ design + ridge * np.eye(size)
        return found

    for _ in range(STEPS):
        slope = design.T @ (weights * loss.slope(start + design @ theta, responses)) + ridge * theta
        move = solve_positive(curved(theta), slope)
        decrement, share = float(slope @ move), 1.0
        if decrement > near:
            here = value(theta)
            while value(theta - share * move) > here - share * decrement / 4:
                share /= 2
        theta = theta - share * move
        if decrement <= min(small, near):
            return theta, curved(theta)
    raise PrivacyError(
        f"estimator.method.site_ridge: the fit of a window has not ended within {STEPS} steps, so "
        "that nothing was sent; the study's operator must give a larger one"
    )


def reach_of(radius: float, deviation: float) -> float:
    """Return what a normal number plus a bounded one practically never passes."""
    return radius + 16 * deviation


def scatter_reach(largest: float, degrees: int) -> float:
    """Return what no entry of a scatter practically passes, for variances up to `largest`."""
    return largest * (math.sqrt(degrees) + 16) ** 2
