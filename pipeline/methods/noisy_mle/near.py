"""Whether scores were taken near enough to the estimate, and which sites' points are no models.

A score that is linearised leaves out what grows with the square of the way from its point to the
estimate, and no standard error knows of it. Honest sites of an epoch had the same few models.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipeline.linalg import floor_eigenvalues
from pipeline.methods.noisy_mle.guards import LEAST_SITES
from pipeline.methods.noisy_mle.sites import Sites
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.methods.noisy_mle.weighing import WeighedTask
from pipeline.types import Matrix, Vector

Mask: TypeAlias = NDArray[np.bool_]

#: What linearised scores leave out may move a coefficient by so many of its standard errors: 95 %
#: intervals whose middle is off by so much hold the truth in 93 %.
NEAR = 0.4
#: Ways from the public start and from the first model, one step from there, are longer by a
#: standard error: they are short by chance alone. Later models are apart by chance themselves.
FIRST = 1
#: No way is longer: it is far beyond all that is near, and so are its squares.
ANYWHERE = 1e30
#: A site lies where its square of the way is so many times that of the median site of its epoch.
FARTHER = 25.0


def ways(task: WeighedTask, away: Matrix, scatter: Vector, rows: Matrix) -> tuple[Vector, Vector]:
    """Return the mean square of a predictor's way from each of the points, and a bound, (k,).

    The bound is of its way times the longest, which ranges allow: the mean square alone says
    nothing of the few records of a rare level.

    away: From the coefficients to the mean points, shape (k, d); scatter: their scatter, (k,).
    rows: Mean curvature, 1 for the intercept, without negative eigenvalues.
    """
    # where records say nothing an estimate may lie anywhere, and its square is to be a number
    away = np.clip(away, -ANYWHERE, ANYWHERE)
    squares = np.einsum("ki,ij,kj->k", away, rows, away)
    squares += scatter * float(np.linalg.eigvalsh(rows)[-1])
    # encoded entries are within -1 and 1
    longest = np.minimum(
        np.sum(np.abs(away), axis=1) + np.sqrt(scatter * away.shape[1]),
        task.longest * np.sqrt(np.sum(away**2, axis=1) + scatter),
    )
    # rounding makes a square of next to nothing negative
    squares = np.maximum(squares, 0.0)
    return squares, longest * np.sqrt(squares)


def moved(
    task: SiteTask, sites: Sites, weights: Vector, coefficients: Vector, rows: Matrix,
    bread: Matrix, covariance: Matrix,
) -> tuple[Vector, float]:  # fmt: skip
    """Return by how much linearised scores move each coefficient at most, (d,), and predictors.

    weights: Of the sites, shape (M,).
    rows: Mean curvature of one record, without negative eigenvalues.
    bread: Mean curvature with the ridge, repaired.
    covariance: Of the coefficients.
    """
    scale = max(float(rows[0, 0]), 1e-12)
    points = sites.points
    away = points.mean - coefficients
    first = points.epoch <= FIRST
    away[first] *= longer(away[first], rows, covariance)[:, None]
    squares, products = ways(task, away, points.scatter, rows / scale)
    mass = weights[points.site] * points.bending / float(weights @ sites.records)
    half = task.loss.remainder / 2
    left_out, bent = half * float(mass @ squares), half * float(mass @ products)
    return of_each(left_out, bent, scale, bread), bent


def longer(away: Matrix, rows: Matrix, chance: Matrix) -> Vector:
    """Return by which factors ways are longer that chance makes short by a standard error, (k,).

    Else intervals would come to those streams first whose estimates chance drew to the points.

    away: Shape (k, d); chance: covariance of their ends; rows: as in `ways`, of any scale.
    """
    turned = away @ rows
    lengths = np.maximum(np.einsum("ki,ki->k", away, turned), 1e-300)
    errors = np.sqrt(np.einsum("ki,ij,kj->k", turned, chance, turned))
    found: Vector = 1 + errors / lengths
    return found


def of_each(left_out: float, bent: float, scale: float, bread: Matrix) -> Vector:
    """Return how far each coefficient moves at most, shape (d,).

    left_out, bent: Means over records of what is left out, and of its bound that `ways` gives.
    scale: Mean curvature of one record that the means are in units of.
    """
    inverse = np.linalg.inv(bread)
    # two bounds of one mean product, that of what is left out and of what a record tells of a
    # coefficient: the first holds for rare levels, the second is less where none is rare
    either: Vector = np.minimum(
        bent * np.sqrt(scale * np.diag(inverse)),
        left_out * scale * np.sum(np.abs(inverse), axis=1),
    )
    return either


def misplaced(task: SiteTask, sites: Sites, coefficients: Vector, curvature: Matrix) -> Mask:
    """Return which sites give points that none of the models of their epochs can be, shape (M,).

    Such a point need not move the estimate, where the score fits it, but would keep intervals away
    or widen them without end. Epochs of fewer sites than can accuse one of them are judged by the
    farthest of the others.

    coefficients, curvature: As most sites say, whatever a minority of them does.
    """
    points = sites.points
    rows = floor_eigenvalues(curvature, 0.0).matrix
    rows /= max(float(rows[0, 0]), 1e-12)
    # what an epoch of few sites is judged by where there is none before it: the public start
    begun = ways(task, task.first_model.coefficients[None] - coefficients, np.zeros(1), rows)
    found = ways(task, points.mean - coefficients, points.scatter, rows)
    epochs, which = np.unique(points.epoch, return_inverse=True)
    far = np.zeros(len(sites.names), dtype=bool)
    for values, first in zip(found, begun, strict=True):
        # the farthest of a site's buckets in each epoch
        each, usual = np.full((len(epochs), len(far)), -1.0), max(1.0, float(first[0]))
        np.maximum.at(each, (which, points.site), values)
        for of_epoch in each:
            held = of_epoch[of_epoch >= 0]
            if len(held) >= LEAST_SITES:
                usual = float(np.median(held))
            far |= of_epoch > FARTHER * usual
    return far
