"""The exact sandwich of the limit law, where the truth is known: the measure of all intervals.

sqrt n (average - theta*) -> N(0, A^-1 M A^-1) with A = E[w h x x'] and
M = E[w^2 s^2 x x'] + noise^2 I, taken over a population or a large sample of it at theta*.
Source: ldp-sgd, limit.
"""

from __future__ import annotations

import numpy as np

from pipeline.linalg import sandwich
from pipeline.losses import Loss
from pipeline.methods.ldp_sgd.client import GradientTask, mallows
from pipeline.records.blocks import with_intercept
from pipeline.types import Matrix, Vector


def moments(
    loss: Loss, design: Matrix, responses: Vector, truth: Vector, clipping_norm: float
) -> tuple[Matrix, Matrix]:
    """Return the mean weighted curvature and the mean outer product of gradients, each (d, d).

    design: Records (1, x), shape (n, d).
    responses: Encoded, shape (n,).
    truth: theta*, shape (d,).
    clipping_norm: Of the weights min(1, clipping_norm^2 / |(1, x)|^2).
    """
    weights, predictor = mallows(design, clipping_norm), design @ truth
    curvature_weight = weights * loss.curvature(predictor, responses)
    slope = weights * loss.slope(predictor, responses)
    curvature = (design * curvature_weight[:, None]).T @ design / len(design)
    products = (design * (slope * slope)[:, None]).T @ design / len(design)
    return curvature, products


def covariance(curvature: Matrix, products: Matrix, noise: float, records: int) -> Matrix:
    """Return the covariance of an average over `records` records, shape (d, d).

    curvature, products: As `moments` gives them.
    noise: Standard deviation of the noise of one gradient entry; 0 without.

    Raises NumericError if the curvature is not positive definite.
    """
    return sandwich(curvature, products + noise * noise * np.eye(len(products))) / records


def standard_errors(
    task: GradientTask, features: Matrix, responses: Vector, truth: Vector, records: int
) -> Vector:
    """Return the exact standard errors of a study's average, in encoded units, shape (d,).

    Personal levels of privacy are taken to have equal shares of the records.

    features, responses: A population or a large sample of it, encoded, shapes (n, d - 1) and (n,).
    truth: theta* of that population, encoded, shape (d,).
    records: How many the average is over.

    Raises NumericError as `covariance`.
    """
    found = moments(task.loss, with_intercept(features), responses, truth, task.clipping_norm)
    noise = task.record_noise if task.study.noised else 0.0
    return np.sqrt(np.diag(covariance(*found, noise, records)))
