"""The sites put together: one step from where their scores were taken, far sites weighed down.

theta solves sum_m w_m a_m e_m(theta) = N R theta with the scores e_m(theta) = sum (g + J (t -
theta)) of site m, its optimal weight a_m and its guard w_m. Derived in docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.linalg import Floored, floor_eigenvalues, sandwiches, solve_positive
from pipeline.methods.noisy_mle import guards, near
from pipeline.methods.noisy_mle.levels import held_back
from pipeline.methods.noisy_mle.sites import Sites
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.types import Matrix, Vector

#: What the least eigenvalue of the mean curvature is raised to, in units of its noise's spectral
#: size.
FLOOR = 0.5
#: Steps to the middle of all sites: far from it scores differ by what curvatures do.
MEDIANS = 3
#: Rounds of weighing sites by their distance.
ROUNDS = 8
#: A dispersion is known when it is so many standard deviations of its noise.
KNOWN = 4.0


@dataclass(frozen=True, slots=True)
class Fit:
    """One round: coefficients, and what the next one weighs sites by.

    weights: w_m a_m, shape (M,).
    bread: Mean curvature of one record with the ridge, repaired.
    size: Spectral size of the noise of the mean curvature.
    dispersion: Of most sites.
    each: Of each site, shape (M,): that, and what it says above what sites differ by.
    known: Whether the dispersion stands out of its noise.
    """

    coefficients: Vector
    weights: Vector
    curvature: Matrix
    bread: Floored
    size: float
    dispersion: float
    each: Vector
    known: bool


def settled(task: SiteTask, sites: Sites) -> tuple[Fit, Vector, near.Mask]:
    """Return the fit with all sites weighed by their distance.

    Besides, shape (M,): their squared distances, and which give points that are no models.
    """
    size, count = task.size, len(sites.names)
    kept = _plausible_curvature(sites)
    # from the middle of all sites, which no minority of them moves far
    coefficients = np.median(sites.point, axis=0)
    half = np.median(sites.curvature / sites.records[:, None, None], axis=0)
    noise = math.sqrt(size * float(np.median(sites.curvature_noise / sites.records**2)))
    least = max(FLOOR * noise, 1e-12)
    bread = floor_eigenvalues(half + np.diag(task.penalty), least)
    for _ in range(MEDIANS):
        each = np.median(sites.residuals(coefficients) / sites.records[:, None], axis=0)
        score = each - task.penalty * coefficients
        coefficients = coefficients + solve_positive(bread.matrix, score)
    misplaced = near.misplaced(task, sites, coefficients, half)
    kept = np.where(misplaced, 0.0, kept)
    guard, known = kept, _dispersion(task, sites, kept, coefficients)
    squared, differ = np.zeros(count), math.inf if count >= guards.LEAST_SITES else 0.0
    weights: Vector | None = None
    for _ in range(ROUNDS):
        curvature = _mean_curvature(sites, guard) if guard.any() else half
        squared, differ = _distances(
            sites, coefficients, weights, task.penalty, known[1], curvature, least, differ
        )
        guard = kept * guards.factors(squared, size)
        guard *= guards.capped(guard * sites.records, task.spec.largest_share)
        known = _dispersion(task, sites, guard, coefficients)
        fit = _solve(task, sites, guard, known)
        coefficients, weights = fit.coefficients, fit.weights
    return fit, squared, misplaced


def variances(task: SiteTask, sites: Sites, fit: Fit) -> tuple[Matrix, Matrix]:
    """Return the covariance of the coefficients, and the part of it that noise causes."""
    size, squares = len(fit.coefficients), fit.weights**2
    points = sites.points
    away, half = points.mean - fit.coefficients, squares[points.site] * points.noise / 2
    # how points scatter adds to the square of the way, in no direction by more than all of it
    way = float(half @ (np.sum(away**2, axis=1) + 2 * points.scatter))
    noise = (float(squares @ sites.score_noise) + way) * np.eye(size)
    noise += np.einsum("k,ki,kj->ij", half, away, away)
    sampling = float(squares @ (fit.each * sites.squared)) * positive(fit.curvature)
    sampling += float(squares @ sites.squared) * held_back(task, fit)
    bread = float(fit.weights @ sites.records) * fit.bread.matrix
    covariance, privacy = sandwiches(bread, sampling + noise, noise)
    return covariance, privacy


def _solve(task: SiteTask, sites: Sites, guard: Vector, known: tuple[float, Vector, bool]) -> Fit:
    if not guard.any():
        guard = np.ones(len(guard))
    curvature, size = _mean_curvature(sites, guard), task.size
    told = max(float(np.trace(curvature)) / size, 1e-12)
    # what a record tells over what its score varies: 1 / (dispersion + noise d / trace)
    optimal = sites.records / (known[1] * sites.squared + sites.score_noise / told)
    weights = guard * optimal / optimal.max()
    total = float(weights @ sites.records)
    curvature = np.einsum("m,mij->ij", weights, sites.curvature) / total
    spectral = math.sqrt(size * float(weights**2 @ sites.curvature_noise)) / total
    bread = floor_eigenvalues(curvature + np.diag(task.penalty), max(FLOOR * spectral, 1e-12))
    middle = weights * sites.records @ sites.point / total
    score = weights @ sites.residuals(middle) / total - task.penalty * middle
    coefficients = middle + solve_positive(bread.matrix, score)
    return Fit(coefficients, weights, curvature, bread, spectral, *known)


def _mean_curvature(sites: Sites, guard: Vector) -> Matrix:
    mean: Matrix = np.einsum("m,mij->ij", guard, sites.curvature) / float(guard @ sites.records)
    return mean


def _plausible_curvature(sites: Sites) -> Vector:
    """Return 1 for sites whose curvature is as the others', and 0 for those far from them.

    That of fewer records is a smaller multiple of the others': slots may be empty.
    """
    if len(sites.names) < guards.LEAST_SITES:
        return np.ones(len(sites.names))
    each = sites.curvature / sites.records[:, None, None]
    middle = np.median(each, axis=0)
    filled = np.einsum("mij,ij->m", each, middle) / max(float(np.sum(middle**2)), 1e-300)
    apart = each - np.clip(filled, 0.0, 1.0)[:, None, None] * middle
    squares, noise = np.sum(apart**2, axis=(1, 2)), sites.curvature_noise / sites.records**2
    numbers = each.shape[1] * (each.shape[1] + 1) // 2

    def squared(variance: float) -> Vector:
        found: Vector = squares / (noise + variance)
        return found

    limit = guards.FLAGGED_CURVATURE * guards.limit_of(numbers)
    far = squared(guards.difference(squared, numbers)) > limit
    return np.where(far, 0.0, 1.0)


def _distances(
    sites: Sites,
    coefficients: Vector,
    weights: Vector | None,
    penalty: Vector,
    dispersion: Vector,
    curvature: Matrix,
    least: float,
    most: float,
) -> tuple[Vector, float]:
    """Return the squared distance of each site's penalised score from zero, shape (M,).

    And by what variance sites differ, in [0, most].

    By the variance of its records, of its noise, and the one by which sites differ, which all but
    the noise's part have the shape of the curvature; and by that of the middle, with which it goes
    by its share of it. Where curvatures per record are alike, scores add up to zero there, so that
    the middle of the scores per record is what is taken from each.

    weights: Of the sites, with which the coefficients are the middle; None: they are the median.
    least: What its eigenvalues are raised to, > 0: noise alone may have made them negative.
    """
    size = len(coefficients)
    values, vectors = np.linalg.eigh(curvature)
    # what zeroes their sum has the ridge in it: without it all sites look far where it is large
    scores = sites.residuals(coefficients) - sites.records[:, None] * (penalty * coefficients)
    squares = (scores @ vectors) ** 2
    away = np.sum((sites.point - coefficients) ** 2, axis=1)
    noise = (sites.score_noise + sites.curvature_noise * away)[:, None]
    shape, records = np.maximum(values, least), sites.records[:, None] ** 2
    own = (noise + (dispersion * sites.squared)[:, None] * shape) / records
    squares /= records
    shares = None if weights is None else weights * sites.records / float(weights @ sites.records)

    beside = guards.beside_middle(own, shape, shares)

    def squared(variance: float) -> Vector:
        found: Vector = np.sum(squares / beside(variance), axis=1)
        return found

    differ = guards.difference(squared, size, most)
    return squared(differ), differ


def positive(curvature: Matrix) -> Matrix:
    """Return a mean curvature without the negative eigenvalues that noise gave it."""
    return floor_eigenvalues(curvature, 0.0).matrix


def _dispersion(
    task: SiteTask, sites: Sites, guard: Vector, coefficients: Vector
) -> tuple[float, Vector, bool]:
    """Return the variance of a record's score over its curvature: of most sites, and of each.

    And whether it is known. A site that says a larger one counts less by it, and not the others: it
    makes intervals no longer than they are without it.
    """
    scale, unit, count = task.study.estimator.noise_scale, task.response_scale[1], len(guard)
    if not task.squares:
        given = 1.0 if scale is None else (scale / unit) ** 2
        return given, np.full(count, given), True
    away = coefficients - sites.point
    left = (
        sites.squares
        - 2 * np.einsum("mi,mi->m", away, sites.score)
        + np.einsum("mi,mij,mj->m", away, sites.curvature, away)
    )
    beyond, slots = _beyond(sites, guard, left), sites.curvature[:, 0, 0]
    total, weighed = float(guard @ (left - beyond)), float(guard @ slots)
    noise = math.sqrt(float(sites.squares_noise.sum()))
    known = total > KNOWN * noise and weighed > 0
    found = max(total, noise) / weighed if weighed > 0 else 1.0
    return found, found + np.maximum(beyond, 0.0) / np.maximum(slots, 1.0), known


def _beyond(sites: Sites, guard: Vector, left: Vector) -> Vector:
    """Return by how much sites beyond the limit differ in their squared residuals, shape (M,).

    A site could make all intervals as short or as long as it likes by its squares alone. Of those
    beyond nothing counts for the others: were it cut to the limit, three of eight with wider
    residuals would make all intervals longer.
    """
    some, slots = guard > 0, sites.curvature[:, 0, 0]
    if np.count_nonzero(some) < guards.LEAST_SITES:
        return np.zeros(len(left))
    usual = float(np.median((left / np.maximum(slots, 1.0))[some]))
    apart = left - usual * slots
    own = sites.squares_noise + 2 * usual**2 * sites.squared

    def squared(variance: float) -> Vector:
        found: Vector = (apart**2 / (own + variance * sites.records**2))[some]
        return found

    varied = own + guards.difference(squared, 1) * sites.records**2
    return np.where(apart**2 > guards.limit_of(1) * varied, apart, 0.0)
