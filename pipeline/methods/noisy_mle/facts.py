"""What such a study needs and promises, from public numbers alone: for `study check` and planning.

Of features that are as their ranges and typical values say. Derived in docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import ndtri

from pipeline.estimators.estimate import median_kept
from pipeline.estimators.forgetting import counted_slots
from pipeline.methods.base import Plan, Proposal
from pipeline.methods.noisy_mle.copies_task import CopiesTask
from pipeline.methods.noisy_mle.estimate import limit
from pipeline.methods.noisy_mle.guards import LEAST_SITES, limit_of, possible
from pipeline.methods.noisy_mle.planned import (
    LATER,
    away,
    covariance,
    dispersion,
    first_windows,
    near_windows,
    of_each_model,
    planned_curvature,
    releases_in,
    slots_until,
    window_sizes,
)
from pipeline.methods.noisy_mle.solving import KNOWN
from pipeline.methods.noisy_mle.task import SiteTask
from pipeline.study.model import Study
from pipeline.study.reference import kept_moments, typical_norm_bound
from pipeline.study.variants import replace_keys

#: A smaller ridge changes nothing that could be seen.
LEAST_RIDGE = 1e-3
#: A larger one leaves little of the coefficients.
LARGEST_RIDGE = 0.3
#: A ridge draws a level's coefficient to 0 by a tenth or more where the level's share of the
#: records is less than so many times the ridge.
OUTWEIGHED = 10
#: Levels with a smaller share are rare.
RARE = 0.05
#: What brings models near.
SOONER = (
    "a larger estimator.ridge, which keeps models from moving far by noise alone; or the same "
    "records in more windows (window.records), where models have not come near yet"
)
#: What brings coverage to its level.
REMEDIES = ("larger windows (window.records), and more sites",)
#: Share of the streams that have intervals where a plan says that they come; so much of the
#: Tracy-Widom law of real matrices lies below the second number.
NINE_TENTHS, DRIVEN = 0.9, 0.45
#: No least eigenvalue is said to be further below the noise of one release.
FARTHEST = 1e15


def facts(task: SiteTask) -> dict[str, object]:
    """Return what `study check` prints of a study."""
    later = task.channels(1)
    noise = {
        "gradient_sd": later.gradient.standard_deviation,
        "curvature_sd": later.curvature.standard_deviation,
        "start_gradient_sd": task.initial_channels.gradient.standard_deviation,
        "norm_bound": task.norm_bound,
    }
    if later.squares is not None:
        noise["squared_slopes_sd"] = later.squares.standard_deviation
    return {
        "noise": noise,
        "sites": {
            "release": task.release,
            "because": because(task),
            "records_of_a_site": least_records(task),
            "that_is": (
                "with at least this many records in each site, the noised estimate of all "
                f"{task.spec.sites} sites is more precise than what one of them could compute "
                "from its own records without noise"
            ),
            "largest_share": task.spec.largest_share,
        }
        | influence(task),
    }


def because(task: SiteTask) -> str:
    """Say why a study has its release."""
    if task.spec.release != "auto":
        return "estimator.method.release says so"
    if task.release == "sufficient":
        return "the sums of a linear model at 0 say everything, so no site waits for a model"
    if task.loss.name == "linear":
        return "residuals are cut below the response's range, and a model makes them smaller"
    return (
        "a curved loss is known only near the point where its score is taken, and models bring "
        "that point near"
    )


def largest_move(task: SiteTask | CopiesTask) -> float:
    """Return how far one site moves an estimate that has `LEAST_SITES` or more, at most."""
    share = possible(task.spec.largest_share, task.spec.sites)
    return math.sqrt(limit_of(task.size) * share)


def influence(task: SiteTask | CopiesTask) -> dict[str, object]:
    """Return how far sites that lie can move an estimate, and from how many on without limit."""
    sites = task.spec.sites
    # estimates start from medians over sites
    many = math.ceil(sites / 2) if sites >= LEAST_SITES else 1
    return {
        "one_site_moves_at_most": largest_move(task),
        "in": (
            "standard errors of all coefficients jointly, where many sites of about equal size "
            "do not truly differ. One of a handful of sites, or one with most of the records, "
            f"can move it by several times that; with fewer than {LEAST_SITES} sites nothing "
            "bounds it"
        ),
        "sites_that_lie_together": (
            f"{many} or more of {sites} sites move estimates without limit. Fewer move them by a "
            "bounded distance, and may not be flagged: a quarter by about 2 standard errors of "
            "one site alone, a third by 3, and 45 % by 6"
        ),
    }


def least_records(task: SiteTask) -> int:
    """Return from how many records of each site on noised scores tell more than a site of its own.

    n sqrt(M) >= 2 (R^2 / lambda) s sqrt(2 d), s R^2 being the noise of the curvature's diagonal.
    """
    spread = float(np.trace(kept_moments(task.encoding, task.norm_bound))) / task.size
    curvature = task.update_channels.curvature.standard_deviation / task.loss.curvature_bound
    return math.ceil(2 * curvature * math.sqrt(2 * task.size / task.spec.sites) / spread)


def warnings(task: SiteTask) -> tuple[str, ...]:
    """Return what the operator should know, in words."""
    said, least, largest = [], least_records(task), task.growth.largest
    if least > 20 * largest:
        said.append(
            f"a site should have about {least:,} records, and a window has {largest} at most. "
            "Noise enters each window anew: use larger windows (window.records), a larger epsilon "
            "or fewer features"
        )
    levels = max((len(f.levels or ()) for f in task.encoding.features.values()), default=0)
    ridge = task.study.estimator.ridge
    if levels and OUTWEIGHED * ridge > min(RARE, 1 / levels):
        said.append(
            f"estimator.ridge: {ridge:g} outweighs what the records say about levels that fewer "
            f"than {OUTWEIGHED * ridge:.2g} of them have. It pulls the coefficients of these "
            "levels to 0 by a tenth or more, and intervals are for the smaller coefficients. Use "
            "a smaller ridge, or join rare levels"
        )
    return tuple(said)


def plan(task: SiteTask, records: int) -> Plan:
    """As `Method.plan`: its study names the clients."""
    counted = counted_slots(task.study, records)
    reach = float(ndtri((1 + task.study.estimator.level) / 2)) * task.response_scale[1]
    curvature = planned_curvature(task)
    bread = curvature + np.diag(task.penalty)
    ridge, usual = task.study.estimator.ridge, _until(task, float(np.linalg.eigvalsh(bread)[0]))
    releases = releases_in(task, records) - releases_in(task, records - counted)
    half = np.diag(covariance(task, curvature, counted, max(releases, 1.0)))[1:]
    latest = _until(task, ridge) if ridge else None
    narrow: int | None = None
    sooner: tuple[str, ...] = ()
    if task.at_models:
        # no number of windows is known to bring a model near, whatever the records say
        near = _until_near(task)
        latest, narrow = None, None if latest is None else max(latest, near)
        usual = max(usual, near)
    usual = usual if latest is None else min(usual, latest)
    if task.at_models and usual == _until_near(task):
        sooner = (SOONER,)
    return Plan(
        latest=latest,
        usual=usual,
        usual_half=reach * math.sqrt(float(np.median(half))),
        why=_why(task),
        narrow=narrow,
        kept=median_kept(bread, task.penalty),
        sooner=sooner,
        remedies=REMEDIES,
        facts=facts(task),
        warnings=warnings(task),
    )


def _why(task: SiteTask) -> str:
    if not task.study.estimator.ridge:
        return (
            "estimator.ridge is 0, so intervals wait until the records' own curvature is clear "
            "of the noise"
        )
    return "intervals wait until models are near the estimate" if task.at_models else ""


def propose(study: Study, records: int, clients: int) -> Proposal:
    """As `Method.propose`."""
    task = SiteTask(study)
    shorter = replace_keys(study, {"estimator.norm_bound": "typical"})
    near = first_windows(SiteTask(shorter)) + LATER
    # one more than it takes until scores are near
    windows = near + 1
    window = max(1, min(records // (windows * clients), 100_000))
    changes: dict[str, object] = {"window.records": window, "estimator.norm_bound": "typical"}
    changes["estimator.method"] = {**(study.estimator.method or {}), "sites": clients}
    reasons = {
        "window.records": f"{windows} windows of each client: each has the same noise, "
        "whatever its size",
        "estimator.norm_bound": f"{typical_norm_bound(task.encoding):g} instead of "
        f"{task.longest:.3g}, the longest that the ranges allow: all noise grows with it",
        "estimator.method": "how many sites share the work; the rest is as it was",
    }
    publish = study.stream.publish
    if (task.at_models or task.release == "copies") and clients < publish.releases:
        kept = {"seconds": publish.seconds, "pause": publish.pause}
        changes["stream.publish"] = {"releases": clients, **kept}
        reasons["stream.publish"] = (
            "a model after one window of each client, which the next window uses"
        )
    if task.release != "copies":
        begun = SiteTask(replace_keys(study, changes))
        certain = _spectral(begun) / begun.slots / math.sqrt(near * clients)
        ridge = max(float(f"{1.05 * certain:.2g}"), LEAST_RIDGE)
        larger = changes["estimator.ridge"] = _near_ridge(study, changes, ridge, near)
        held = ", and so that noise keeps no model far from the estimate" if larger > ridge else ""
        reasons["estimator.ridge"] = (
            f"large enough beside the noise for intervals of slopes from {near} of "
            f"{windows} windows on in nine of ten streams, whatever the records say"
            f"{', once models are near' if task.at_models else ''}{held}; these intervals are for "
            "the penalised coefficients"
        )
    return Proposal(changes, reasons)


def _near_ridge(study: Study, changes: Mapping[str, object], ridge: float, windows: int) -> float:
    """Return the ridge, or the least larger one with which models are near after so many windows.

    A model that noise moves far makes later scores of little use, and a ridge holds it.
    """
    larger = ridge
    while larger <= LARGEST_RIDGE:
        task = SiteTask(replace_keys(study, {**changes, "estimator.ridge": larger}))
        if not task.at_models or near_windows(task) <= windows:
            return larger
        larger = float(f"{1.1 * larger:.2g}")
    return ridge


def _until(task: SiteTask, least: float) -> int:
    """Return from how many record slots on the least eigenvalue stands out of the noise."""
    channels, far = task.channels(1), away(task)
    wanted = min(_spectral(task) / max(least, 1e-300), FARTHEST * task.slots)
    if channels.squares is not None:
        own = channels.squares.standard_deviation
        # what is left of them has the noise of scores and curvatures, too
        left = own**2 + 4 * far * channels.gradient.standard_deviation**2
        left += far**2 * channels.curvature.standard_deviation**2
        clear = KNOWN * own + float(ndtri(NINE_TENTHS)) * math.sqrt(left)
        wanted = max(wanted, clear / dispersion(task))
    return slots_until(task, wanted)


def _spectral(task: SiteTask) -> float:
    """Return the least eigenvalue of a sum whose streams stand out of the noise of one release.

    Nine of ten do: noise drives eigenvalues of slopes that records tell little of apart, and it is
    the noised ones that must be clear.
    """
    deviation = task.channels(1).curvature.standard_deviation
    return (limit(task.size) + driven(task.size - 1)) * deviation


def driven(count: int) -> float:
    """Return how far below equal eigenvalues their noise drives the least, in nine of ten cases.

    In deviations of an entry on the diagonal, entries beside it having half its variance: the law
    of Tracy and Widom (1996, On orthogonal and symplectic matrix ensembles), above what three or
    more have by less than a tenth.

    count: How many they are; none are driven nowhere.
    """
    return math.sqrt(2 * count) + DRIVEN / math.sqrt(2) / count ** (1 / 6) if count else 0.0


def _until_near(task: SiteTask) -> int:
    """Return from how many record slots on scores are usually near enough."""
    # clients that move together need whole rounds for the releases of a model
    windows = (near_windows(task) - 1) * of_each_model(task) + 1
    return round(task.spec.sites * float(window_sizes(task, windows).sum()))
