"""The estimate of sites: one Newton step over what their integer sums say in real units.

Of the most epochs whose scores were taken near enough. The first models are far. So older epochs
count only where all that linearised scores leave out is small beside every standard error.

Far sites are weighed down: theta solves sum_m w_m a_m e_m(theta) = N R theta with the scores
e_m(theta) = sum (g + J (t - theta)) of site m, its optimal weight a_m and its guard w_m. Derived in
docs/methods/noisy-mle.md.

A ridge holds a level's coefficient back, so that its records' responses m are off on average: the
score is zero where share * m = ridge * theta. Squared residuals are then larger than the curvature
by m (1 - 2 q) for classes, q the chance that is estimated, and by m^2 for numbers: the product with
the share needs no share for classes, however rare the level is. Exact where a model has levels
alone; numbers beside them enter by the mean predictor of a level's records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.linalg import (
    Floored,
    condition_number,
    floor_eigenvalues,
    packed_indices,
    sandwiches,
    solve_positive,
)
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.methods.sites import report, robust
from pipeline.methods.sites.state import BLOCKS, FIRST, RELEASES, UNSURE, Weighed, gathered
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.types import Integers, Matrix, Vector


@dataclass(frozen=True, slots=True)
class Points:
    """Where releases were taken: those of each site, epoch and bucket together, in k rows.

    site, epoch: Place of their site, and their epoch; shape (k,).
    mean: Their mean point over record slots, shape (k, d).
    scatter: Mean of |t - mean|^2 over record slots, >= 0, shape (k,).
    bending: Sums of w n over those that leave something out beyond their point, shape (k,).
    noise: Variance of the noise of the summed curvature's diagonal, shape (k,).
    """

    site: Integers
    epoch: Integers
    mean: Matrix
    scatter: Vector
    bending: Vector
    noise: Vector


@dataclass(frozen=True, slots=True)
class Sites:
    """The releases of M sites in the last epochs; what is linear in one has its weight w.

    names: Digests of the clients' ids, sorted.
    score: Sums of w times the score at the release's own point, the negative gradient; shape (M,
        d).
    curvature, drift: Sums of w J, shape (M, d, d), and of w J t of curvatures times points, shape
        (M, d).
    squares: Sums of w times squared slopes, shape (M,); zeros where they are not released.
    records, squared: Sums of w n and of w^2 n over releases of n slots, shape (M,).
    score_noise, curvature_noise: Variance of the noise of an entry of the score, and of the
        curvature's diagonal; shape (M,).
    squares_noise: That of the squares, shape (M,).
    point: Mean point of the releases over record slots, shape (M, d).
    points: The same by epoch.
    """

    names: list[str]
    score: Matrix
    curvature: Matrix
    drift: Matrix
    squares: Vector
    records: Vector
    squared: Vector
    score_noise: Vector
    curvature_noise: Vector
    squares_noise: Vector
    point: Matrix
    points: Points

    def residuals(self, point: Vector) -> Matrix:
        """Return the sites' scores at a point, to first order, shape (M, d)."""
        moved: Matrix = self.score + self.drift - self.curvature @ point
        return moved


def sites_of(task: SiteTask, parts: Weighed, kept: Collection[int]) -> Sites:
    """Return the sites of some buckets with their weights: their releases in the epochs `kept`."""
    names, which, weights, epochs, integers = gathered(parts, kept)
    start, rows, shape = epochs == 0, integers.astype(np.float64), parts[0][1].shape
    size = shape.size

    def unit(of: Iterable[float]) -> Vector:
        """Return the first of two units for releases at the start, else the second."""
        one, other = of
        return np.where(start, one, other)

    def summed(values: Matrix) -> Matrix:
        total: Matrix = np.zeros((len(names), *values.shape[1:]))
        np.add.at(total, which, values)
        return total

    both = (task.initial_channels, task.update_channels)
    curved, point_unit = task.update_channels.curvature, math.ldexp(1.0, COEFFICIENT_EXPONENT)
    # noise goes with releases, all that records say with blocks of slots
    blocks, twice = weights * rows[:, BLOCKS], weights**2 * rows[:, RELEASES]
    gradients = rows[:, FIRST : shape.curvature.start]
    gradient = (weights * unit(c.gradient.unit for c in both))[:, None] * gradients
    packed = (weights * curved.unit)[:, None] * rows[:, shape.curvature]
    squares, squares_noise = np.zeros(len(rows)), np.zeros(len(rows))
    if shape.squares:
        channels = [c.squares for c in both if c.squares is not None]
        squares = weights * unit(c.unit for c in channels) * rows[:, shape.curvature.stop]
        squares_noise = twice * unit(c.standard_deviation**2 for c in channels)
    means, scatter = shape.points_of(integers)
    curvature_noise = twice * curved.standard_deviation**2
    held = summed(blocks)
    exact = start & (task.loss.name == "linear")
    return Sites(
        names=names,
        score=-summed(gradient),
        curvature=summed(packed)[:, packed_indices(size)],
        drift=summed((weights * curved.unit * point_unit)[:, None] * shape.products(integers)),
        squares=summed(squares),
        records=held * task.slots,
        squared=summed(weights * blocks) * task.slots,
        score_noise=summed(twice * unit(c.gradient.standard_deviation**2 for c in both)),
        curvature_noise=summed(curvature_noise),
        squares_noise=summed(squares_noise),
        point=summed(blocks[:, None] * means) / held[:, None],
        points=Points(
            site=which,
            epoch=epochs,
            mean=means,
            scatter=scatter,
            bending=np.where(exact, 0.0, blocks) * task.slots,
            noise=curvature_noise,
        ),
    )


#: The least eigenvalue of the mean curvature with which intervals are given, in units of its
#: noise's spectral size.
READY = 2.0


def estimate(task: SiteTask, parts: Weighed) -> Estimate:
    """As `Server.estimate`, a deterministic function of the sums."""
    if not any(state.releases for _, state in parts):
        return report.empty(task.first_model.coefficients, parts)
    return report.chosen(parts, partial(sites_of, task, parts), partial(_solution, task, parts))


def _solution(task: SiteTask, parts: Weighed, sites: Sites) -> report.Solution:
    fit, squared, misplaced = settled(task, sites)
    covariance, privacy = variances(task, sites, fit)
    least = float(np.linalg.eigvalsh(fit.curvature + np.diag(task.penalty))[0])
    wanted = limit(task.size) * fit.size / math.sqrt(task.size)
    share = min(1.0, (max(least, 0.0) / wanted) ** 2)
    rows = positive(fit.curvature)
    moves, bent = moved(
        task, sites, fit.weights, fit.coefficients, rows, fit.bread.matrix, covariance
    )
    chance = float(np.sum(covariance * rows)) / max(float(rows[0, 0]), 1e-12)
    far = bool(np.any(moves > robust.NEAR * np.sqrt(np.diag(covariance))))
    if share == 1:
        covariance, privacy = robust.widened(
            _deciding(task, sites, fit), covariance, privacy, task.study.estimator.level
        )
        if np.isnan(covariance).all():
            share = UNSURE
    lacks = report.lacking(share, known=fit.known)
    far = far and not lacks

    def estimate_at(standing: report.Standing) -> Estimate:
        strangers = [sites.names[place] for place in np.flatnonzero(misplaced).tolist()]
        found = report.estimate_of(
            task, parts, sites.names, fit.coefficients, covariance, privacy,
            weights=fit.weights, records=sites.records, varied=sites.squared, squared=squared,
            share=share, reason=report.far(standing, strangers) if far else lacks, far=far,
            points=sites.point, settled=not (lacks or far),
            more={"release": task.release, "misplaced": strangers[: report.LISTED]},
        )  # fmt: skip
        return replace(
            found,
            condition=condition_number(fit.bread.matrix, fit.bread.eigenvalues),
            floored=fit.bread.raised,
            dispersion=fit.dispersion if task.squares and fit.known else None,
        )

    return report.Solution(bool(lacks), far, chance + bent**2, estimate_at)


def limit(size: int) -> float:
    """Return how many deviations the least eigenvalue is out of its noise with intervals."""
    return max(READY * math.sqrt(size), robust.NEAREST)


def _deciding(task: SiteTask, sites: Sites, fit: Fit) -> robust.Shown:
    """Return what decides whether there are intervals: the eigenvalues of the mean curvature."""
    values, axes = np.linalg.eigh(fit.curvature + np.diag(task.penalty))
    deviation, points = fit.size / math.sqrt(task.size), sites.points
    mass = fit.weights[points.site] ** 2 * points.noise
    return robust.Shown(
        axes=axes,
        clear=np.maximum(values / deviation - limit(task.size), 0.0),
        limits=np.full(task.size, limit(task.size)),
        gains=solve_positive(fit.bread.matrix, axes) * deviation,
        way=fit.coefficients - mass @ points.mean / float(mass.sum()),
    )


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


def settled(task: SiteTask, sites: Sites) -> tuple[Fit, Vector, robust.Mask]:
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
    misplaced = misplaced_sites(task, sites, coefficients, half)
    kept = np.where(misplaced, 0.0, kept)
    guard, known = kept, _dispersion(task, sites, kept, coefficients)
    squared, differ = np.zeros(count), math.inf if count >= robust.LEAST_SITES else 0.0
    weights: Vector | None = None
    for _ in range(ROUNDS):
        curvature = _mean_curvature(sites, guard) if guard.any() else half
        squared, differ = _distances(
            sites, coefficients, weights, task.penalty, known[1], curvature, least, differ
        )
        guard = kept * robust.factors(squared, size)
        guard *= robust.capped(guard * sites.records, task.spec.largest_share)
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
    if len(sites.names) < robust.LEAST_SITES:
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

    limit = robust.FLAGGED_CURVATURE * robust.limit_of(numbers)
    far = squared(robust.difference(squared, numbers)) > limit
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

    beside = robust.beside_middle(own, shape, shares)

    def squared(variance: float) -> Vector:
        found: Vector = np.sum(squares / beside(variance), axis=1)
        return found

    differ = robust.difference(squared, size, most)
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
    if np.count_nonzero(some) < robust.LEAST_SITES:
        return np.zeros(len(left))
    usual = float(np.median((left / np.maximum(slots, 1.0))[some]))
    apart = left - usual * slots
    own = sites.squares_noise + 2 * usual**2 * sites.squared

    def squared(variance: float) -> Vector:
        found: Vector = (apart**2 / (own + variance * sites.records**2))[some]
        return found

    varied = own + robust.difference(squared, 1) * sites.records**2
    return np.where(apart**2 > robust.limit_of(1) * varied, apart, 0.0)


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
    first = points.epoch <= robust.FIRST
    away[first] *= robust.longer(away[first], rows, covariance)[:, None]
    squares, products = robust.ways(task, away, points.scatter, rows / scale)
    mass = weights[points.site] * points.bending / float(weights @ sites.records)
    half = task.loss.remainder / 2
    left_out, bent = half * float(mass @ squares), half * float(mass @ products)
    return robust.of_each(left_out, bent, scale, bread), bent


def misplaced_sites(
    task: SiteTask, sites: Sites, coefficients: Vector, curvature: Matrix
) -> robust.Mask:
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
    begun = robust.ways(task, task.first_model.coefficients[None] - coefficients, np.zeros(1), rows)
    found = robust.ways(task, points.mean - coefficients, points.scatter, rows)
    epochs, which = np.unique(points.epoch, return_inverse=True)
    far = np.zeros(len(sites.names), dtype=bool)
    for values, first in zip(found, begun, strict=True):
        # the farthest of a site's buckets in each epoch
        each, usual = np.full((len(epochs), len(far)), -1.0), max(1.0, float(first[0]))
        np.maximum.at(each, (which, points.site), values)
        for of_epoch in each:
            held = of_epoch[of_epoch >= 0]
            if len(held) >= robust.LEAST_SITES:
                usual = float(np.median(held))
            far |= of_epoch > robust.FARTHER * usual
    return far


#: Below so many deviations of its noise the curvature of a level says nothing of its records.
KNOWN_LEVEL = 2.0


def held_back(task: SiteTask, fit: Fit) -> Matrix:
    """Return what a record's score varies beyond the model, in mean, shape (d, d)."""
    size, curvature, theta = task.size, fit.curvature, fit.coefficients
    added, pulls = np.zeros((size, size)), task.penalty * theta
    low, high = task.encoding.ends
    levels = 1 + np.flatnonzero((low == 0) & (high == 1))
    spread = np.diag(curvature) / max(float(curvature[0, 0]), 1e-12)
    spread[[0, *levels]] = 0.0
    noise = fit.size / math.sqrt(size)
    for column in levels.tolist():
        pull, share = float(pulls[column]), float(curvature[column, column])
        known = share > KNOWN_LEVEL * noise and share > 0
        # the mean row of the level's records, whose entries are within -1 and 1
        row = np.clip(curvature[column] / share, -1, 1) if known else np.zeros(size)
        row[[0, column]] = 1.0
        if task.classes:
            more = max(0.0, -pull * math.tanh(float(row @ theta) / 2)) if known else abs(pull)
        else:
            off = abs(pull) / share if known else math.inf
            more = abs(pull) * min(off, task.loss.slope_bound)
        # numbers vary in a level as in all records
        added += more * (np.outer(row, row) + np.diag(np.maximum(spread - row**2, 0.0)))
    return added
