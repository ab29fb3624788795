"""What the sites say together: of the most epochs whose scores were taken near enough.

A score that is linearised leaves out what grows with the square of the way from its point to the
estimate, and no standard error knows of it. The first models are far. So older epochs count only
where all that is left out is small beside every standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.estimators.estimate import Estimate, Progress
from pipeline.estimators.forgetting import effective
from pipeline.linalg import condition_number
from pipeline.methods.noisy_mle.sites import Sites, recent_epochs, sites_of
from pipeline.methods.noisy_mle.solving import Fit, positive, settled, variances
from pipeline.methods.noisy_mle.state import SiteState
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.methods.noisy_mle.telling import INTERVAL, dropped, empty, listed
from pipeline.types import Matrix, Vector

#: The least eigenvalue of the mean curvature with which intervals are given, in units of its
#: noise's spectral size.
READY = 2.0
#: What linearised scores leave out may move a coefficient by so many of its standard errors: 95 %
#: intervals whose middle is off by so much hold the truth in 93 %.
NEAR = 0.4
#: Older epochs are left out only where so large a share of the sites stays: those that come first
#: in a new epoch must not be a majority alone.
STAYING = 0.75
#: Why there are no intervals then.
FAR = (
    "scores were taken at models too far from this estimate, so that intervals would be too short: "
    "they come when three quarters of the sites have sent windows at newer models, usually with "
    "the third window of each site; make models sooner (stream.publish) or cut the same records "
    "into more windows (window.records)"
)
#: No model moves the predictor of any record further from the last, until intervals are given.
LONGEST_STEP = 2.0


def estimate(task: SiteTask, parts: Sequence[tuple[float, SiteState]]) -> Estimate:
    """As `Server.estimate`, a deterministic function of the sums."""
    releases = sum(state.releases for _, state in parts)
    slots = sum(state.slots for _, state in parts)
    if not releases:
        return empty(task.first_model.coefficients, slots, releases)
    found = _chosen(task, parts)
    sites, fit, squared, reason = found.sites, found.fit, found.squared, found.reason
    covariance, privacy = found.covariance, found.privacy
    # scores that are too far leave as many later ones come as there are now
    share = min(found.share, 0.5 if reason == FAR else 1.0)
    coefficients = fit.coefficients
    point = next_point(task.norm_bound, coefficients, sites.point, settled=not reason)
    if not task.at_models:
        point = task.first_model.coefficients
    missing = slots * (1 / share - 1) if share > 0 else math.inf
    return Estimate(
        coefficients=coefficients,
        covariance=None if reason else covariance,
        privacy_covariance=None if reason else privacy,
        status="warming" if reason else "ready",
        reason=reason,
        records=slots,
        releases=releases,
        condition=condition_number(fit.bread.matrix, fit.bread.eigenvalues),
        floored=fit.bread.raised,
        dispersion=fit.dispersion if task.squares and fit.known else None,
        effective_records=effective(
            float(fit.weights @ sites.records), float(fit.weights**2 @ sites.squared)
        ),
        point=point,
        interval=INTERVAL,
        progress=Progress(share, math.ceil(missing) if missing < 1e15 else None),
        details=listed(task.release, sites.names, fit.weights, sites.records, squared, task.size)
        | dropped(parts, sites.names),
    )


@dataclass(frozen=True, slots=True)
class Solution:
    """What the releases of some epochs say: the fit, its covariance, and what intervals lack.

    share: How far they are on the way to intervals, in [0, 1].
    error: Mean square error of predictors: by chance, and by what linearised scores leave out.
    """

    sites: Sites
    fit: Fit
    squared: Vector
    covariance: Matrix
    privacy: Matrix
    share: float
    reason: str
    error: float


def _chosen(task: SiteTask, parts: Sequence[tuple[float, SiteState]]) -> Solution:
    """Return the solution of the most epochs that give intervals, else that of the least error."""
    kept = sorted(recent_epochs(parts))
    tried: list[Solution] = []
    for first in range(len(kept)):
        sites = sites_of(task, parts, kept[first:])
        if tried and len(sites.names) < STAYING * len(tried[0].sites.names):
            break
        tried.append(_solution(task, sites))
        if tried[-1].reason != FAR:
            # intervals; or noise is in their way, and fewer releases have more of it
            break
    if not tried[-1].reason:
        return tried[-1]
    return min(tried, key=lambda solution: solution.error)


def _solution(task: SiteTask, sites: Sites) -> Solution:
    fit, squared = settled(task, sites)
    covariance, privacy = variances(sites, fit)
    least = float(np.linalg.eigvalsh(fit.curvature + np.diag(task.penalty))[0])
    share = min(1.0, (max(least, 0.0) / (READY * fit.size)) ** 2)
    rows = positive(fit.curvature)
    scale = max(float(rows[0, 0]), 1e-12)
    bent, left_out = _bent(task, sites, fit, rows / scale)
    inverse = np.linalg.inv(fit.bread.matrix)
    # two bounds of one mean product, that of what is left out and of what a record tells of a
    # coefficient: the first holds for rare levels, the second is less where none is rare
    moved = np.minimum(
        bent * np.sqrt(scale * np.diag(inverse)),
        left_out * scale * np.sum(np.abs(inverse), axis=1),
    )
    reason = _lacking(fit, share, moved, covariance)
    chance = float(np.sum(covariance * rows)) / scale
    return Solution(sites, fit, squared, covariance, privacy, share, reason, chance + bent**2)


def _bent(task: SiteTask, sites: Sites, fit: Fit, rows: Matrix) -> tuple[float, float]:
    """Return how far linearised scores move predictors at most, and what they leave out, in mean.

    A record's square of the way is at most its way times the longest, which ranges bound: its mean
    alone says nothing of the few records of a rare level.

    rows: Mean curvature, 1 for the intercept.
    """
    points = sites.points
    away = points.mean - fit.coefficients
    squares = np.einsum("ki,ij,kj->k", away, rows, away)
    squares += points.scatter * float(np.linalg.eigvalsh(rows)[-1])
    # encoded entries are within -1 and 1
    longest = np.minimum(
        np.sum(np.abs(away), axis=1) + np.sqrt(points.scatter * away.shape[1]),
        task.longest * np.sqrt(np.sum(away**2, axis=1) + points.scatter),
    )
    mass = fit.weights[points.site] * points.bending / float(fit.weights @ sites.records)
    half = task.loss.remainder / 2
    return half * float(mass @ (longest * np.sqrt(squares))), half * float(mass @ squares)


def next_point(
    norm_bound: float, coefficients: Vector, points: Matrix | None, *, settled: bool
) -> Vector:
    """Return where the next releases are taken: the estimate, or a step on the way there.

    points: Where those of the sites were taken, shape (M, d); None: at 0.
    """
    if settled:
        return coefficients
    middle = np.zeros(len(coefficients)) if points is None else np.median(points, axis=0)
    moved = norm_bound * float(np.linalg.norm(coefficients - middle))
    found: Vector = middle + (coefficients - middle) * min(1.0, LONGEST_STEP / max(moved, 1e-300))
    return found


def _lacking(fit: Fit, share: float, moved: Vector, covariance: Matrix) -> str:
    """Return why there are no intervals; empty if there is nothing in their way."""
    if share < 1:
        return (
            "the noise of the curvature still hides what the records say: intervals need more "
            "releases, larger windows (window.records), or a larger estimator.ridge"
        )
    if not fit.known:
        return (
            "the spread of the residuals does not stand out of its noise: intervals need more "
            "releases, or estimator.noise_scale where it is known"
        )
    return FAR if np.any(moved > NEAR * np.sqrt(np.diag(covariance))) else ""
