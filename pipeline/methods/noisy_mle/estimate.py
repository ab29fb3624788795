"""What the sites say together: of the most epochs whose scores were taken near enough.

The first models are far. So older epochs count only where all that linearised scores leave out is
small beside every standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.estimators.estimate import Estimate, Progress
from pipeline.estimators.forgetting import effective
from pipeline.linalg import condition_number, solve_positive
from pipeline.methods.noisy_mle import near, shown, telling
from pipeline.methods.noisy_mle.sites import Sites, needed_sites, recent_epochs, sites_of
from pipeline.methods.noisy_mle.solving import Fit, positive, settled, variances
from pipeline.methods.noisy_mle.state import SiteState
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.types import Matrix, Vector

#: The least eigenvalue of the mean curvature with which intervals are given, in units of its
#: noise's spectral size.
READY = 2.0
#: How far a stream is on the way in which the interval of a coefficient has no end.
UNSURE = 0.9
#: No model moves the predictor of any record further from the last, until intervals are given.
LONGEST_STEP = 2.0


def estimate(task: SiteTask, parts: Sequence[tuple[float, SiteState]]) -> Estimate:
    """As `Server.estimate`, a deterministic function of the sums."""
    releases = sum(state.releases for _, state in parts)
    slots = sum(state.slots for _, state in parts)
    if not releases:
        return telling.empty(task.first_model.coefficients, slots, releases)
    found, reason = _chosen(task, parts)
    sites, fit = found.sites, found.fit
    # scores that are too far leave as many later ones come as there are now
    endless = "" if reason else telling.endless(task.study.coefficient_names, found.covariance)
    share = min(found.share, 0.5 if found.far else UNSURE if endless else 1.0)
    coefficients = fit.coefficients
    point = next_point(task.norm_bound, coefficients, sites.point, settled=not reason)
    if not task.at_models:
        point = task.first_model.coefficients
    missing = slots * (1 / share - 1) if share > 0 else math.inf
    return Estimate(
        coefficients=coefficients,
        covariance=None if reason else found.covariance,
        privacy_covariance=None if reason else found.privacy,
        status="warming" if reason else "ready",
        reason=reason or endless,
        records=slots,
        releases=releases,
        condition=condition_number(fit.bread.matrix, fit.bread.eigenvalues),
        floored=fit.bread.raised,
        dispersion=fit.dispersion if task.squares and fit.known else None,
        effective_records=effective(
            float(fit.weights @ sites.records), float(fit.weights**2 @ sites.squared)
        ),
        point=point,
        interval=telling.INTERVAL,
        progress=Progress(share, math.ceil(missing) if missing < 1e15 else None),
        details=telling.listed(
            task.release, sites.names, fit.weights, sites.records, found.squared, task.size
        )
        | telling.dropped(parts, sites.names)
        | {"misplaced": found.strangers[: telling.LISTED]},
    )


@dataclass(frozen=True, slots=True)
class Solution:
    """What the releases of some epochs say: the fit, its covariance, and what intervals lack.

    misplaced: Sites whose points are no models, shape (M,).
    share: How far they are on the way to intervals, in [0, 1].
    reason: What intervals lack beside scores that were taken near; far: whether they lack that.
    error: Mean square error of predictors: by chance, and by what linearised scores leave out.
    """

    sites: Sites
    fit: Fit
    squared: Vector
    misplaced: near.Mask
    covariance: Matrix
    privacy: Matrix
    share: float
    reason: str
    far: bool
    error: float

    @property
    def strangers(self) -> list[str]:
        """Names of the sites whose points are no models."""
        return [self.sites.names[place] for place in np.flatnonzero(self.misplaced).tolist()]


def _chosen(task: SiteTask, parts: Sequence[tuple[float, SiteState]]) -> tuple[Solution, str]:
    """Return the solution of the most epochs that give intervals, else that of the least error.

    And why there are no intervals; empty if there is nothing in their way.
    """
    kept = sorted(recent_epochs(parts))
    tried: list[Solution] = []
    staying = count = needed = 0
    for first in range(len(kept)):
        sites = sites_of(task, parts, kept[first:])
        staying, count = len(sites.names), count or len(sites.names)
        needed = needed or needed_sites(parts, sites.names)
        if staying < needed:
            break
        tried.append(_solution(task, sites))
        if not tried[-1].far:
            # intervals; or noise is in their way, and fewer releases have more of it
            break
    if not (tried[-1].far or tried[-1].reason):
        return tried[-1], ""
    best = min(tried, key=lambda solution: solution.error)
    if best.far:
        return best, telling.far(staying, count, needed, best.strangers)
    return best, best.reason


def _solution(task: SiteTask, sites: Sites) -> Solution:
    fit, squared, misplaced = settled(task, sites)
    covariance, privacy = variances(task, sites, fit)
    least = float(np.linalg.eigvalsh(fit.curvature + np.diag(task.penalty))[0])
    wanted = limit(task.size) * fit.size / math.sqrt(task.size)
    share = min(1.0, (max(least, 0.0) / wanted) ** 2)
    rows = positive(fit.curvature)
    moved, bent = near.moved(
        task, sites, fit.weights, fit.coefficients, rows, fit.bread.matrix, covariance
    )
    chance = float(np.sum(covariance * rows)) / max(float(rows[0, 0]), 1e-12)
    far = bool(np.any(moved > near.NEAR * np.sqrt(np.diag(covariance))))
    if share == 1:
        covariance, privacy = shown.widened(
            _deciding(task, sites, fit), covariance, privacy, task.study.estimator.level
        )
        if np.isnan(covariance).all():
            share = UNSURE
    reason = telling.lacking(share, known=fit.known)
    return Solution(
        sites=sites,
        fit=fit,
        squared=squared,
        misplaced=misplaced,
        covariance=covariance,
        privacy=privacy,
        share=share,
        reason=reason,
        far=not reason and far,
        error=chance + bent**2,
    )


def limit(size: int) -> float:
    """Return how many deviations the least eigenvalue is out of its noise with intervals."""
    return max(READY * math.sqrt(size), shown.NEAREST)


def _deciding(task: SiteTask, sites: Sites, fit: Fit) -> shown.Shown:
    """Return what decides whether there are intervals: the eigenvalues of the mean curvature."""
    values, axes = np.linalg.eigh(fit.curvature + np.diag(task.penalty))
    deviation, points = fit.size / math.sqrt(task.size), sites.points
    mass = fit.weights[points.site] ** 2 * points.noise
    return shown.Shown(
        axes=axes,
        clear=np.maximum(values / deviation - limit(task.size), 0.0),
        limits=np.full(task.size, limit(task.size)),
        gains=solve_positive(fit.bread.matrix, axes) * deviation,
        way=fit.coefficients - mass @ points.mean / float(mass.sum()),
    )


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
