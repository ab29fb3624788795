"""When intervals of a renewable study come, how long they are, and what to set before it runs.

From public numbers alone: the noise of its releases, its ridge, and bounds of its records. The
bounds hold for any records, but for slopes that go with the intercept, which has no ridge; beside
them stands a reference, independent features that are as their ranges and typical values say.
Derived in docs/methods/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from pipeline.estimators.estimate import median_kept
from pipeline.estimators.forgetting import counted_slots
from pipeline.methods.facts import Design, Outlook
from pipeline.methods.renewable.bread import bread_of
from pipeline.methods.renewable.classes import (
    MOST_COUNTS,
    share_for,
    slots_until,
)
from pipeline.methods.renewable.open_estimate import RECORDS_PER_COEFFICIENT
from pipeline.methods.renewable.precision import RECENT, Noise, noise_of, releases_needed
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study import Study, with_keys
from pipeline.study.reference import evenness, kept_moments, rarer_share, typical_norm_bound
from pipeline.types import Matrix

#: At the reference, losses bend at least this share of what is guessed for the start: simulations
#: had .55 to .9 for gdwd and logistic, .5 for counts. One of constant curvature bends as guessed.
BEND = 0.55
#: Residuals' standard deviation where a study says nothing of it, in encoded units, and the usual
#: ratio of a residual bound to it.
RESIDUAL, HUBER = 0.1, 1.345
#: A design has certain intervals from this share of the expected records on, if it can.
BEGIN = (0.5, 0.75, 1.0)
#: Releases for each coefficient that a design has when it expects intervals: more than these need,
#: so that several models have been heard of by then.
RELEASES = 10
#: The same where a class is so rare that its count is hidden otherwise.
FEWER_RELEASES = 6
#: Windows that a client should have, so that it hears of several models.
WINDOWS = 10
#: Shares of the squared budget: 70 to 30 for gradient and curvature; counts have more where a class
#: is rare.
SPLIT = {"gradient": 0.665, "curvature": 0.285, "counts": 0.05}
#: A larger ridge leaves little of the coefficients.
LARGEST_RIDGE, LEAST_RIDGE = 0.3, 1e-3
#: No plan looks further ahead.
MOST_SLOTS = 1e12


def outlook(task: RenewableTask, records: int) -> Outlook:
    """As `Method.outlook`."""
    half, kept = usual_half(task, records), median_kept(reference_bread(task), task.penalty)
    if not task.study.noised:
        needed = RECORDS_PER_COEFFICIENT * task.size
        return Outlook(needed, needed, None, half, kept=kept)
    ridge, counted = task.study.estimator.ridge, counted_slots(task.study, records)
    noise, releases = noise_of(task), max(counted / task.slots, 1.0)
    latest = longest = None
    if ridge:
        latest = math.ceil(noise.releases_until(ridge)) * task.slots
        most = _deviation_bound(task) / ridge / math.sqrt(counted)
        longest = _reach(task) * math.hypot(
            noise.slope_error(releases, ridge, task.norm_bound), most
        )
    curvature = _bend(task) * kept_moments(task.encoding, task.norm_bound)
    usual = _known_after(task, curvature, noise, slice(1, None)) or int(MOST_SLOTS)
    intercept = _known_after(task, curvature, noise, slice(0, 1))
    # without both classes there are no intervals at all
    classes = slots_until(task, rarer_share(task.study))
    least = classes or 0
    return Outlook(
        latest=None if latest is None else max(latest, least),
        usual=max(usual if latest is None else min(usual, latest), least),
        longest=longest,
        usual_half=half,
        why=""
        if ridge
        else (
            "estimator.ridge is 0, so intervals wait until the records' own curvature is clear "
            "of the noise; nothing bounds how long that takes"
        ),
        intercept=None if intercept is None else max(intercept, least),
        classes=classes,
        kept=kept,
    )


def usual_half(task: RenewableTask, records: float) -> float:
    """Return half the length of a slope's interval at the reference, in the unit of estimates."""
    counted = counted_slots(task.study, records)
    inverse = np.linalg.pinv(reference_bread(task), hermitian=True)
    products = kept_moments(task.encoding, task.norm_bound)
    meat = _slope_deviation(task) ** 2 / counted * products
    variances = np.diag(inverse @ meat @ inverse)[1:]
    if task.study.noised:
        releases = max(counted / task.slots, 1.0)
        own = noise_of(task).of_gradient(RECENT * releases)
        variances = variances + own**2 * (inverse @ inverse).diagonal()[1:]
    return _reach(task) * math.sqrt(float(np.median(variances)))


def _reach(task: RenewableTask) -> float:
    """Return the normal quantile of the study's level, in the unit of estimates."""
    return float(ndtri((1 + task.study.estimator.level) / 2)) * task.response_scale[1]


def reference_bread(task: RenewableTask) -> Matrix:
    """Return what the mean curvature of a record and the ridge are at the reference, (d, d)."""
    return _bend(task) * kept_moments(task.encoding, task.norm_bound) + np.diag(task.penalty)


def design(study: Study, records: int, clients: int) -> Design:
    """As `Method.design`."""
    task = RenewableTask(study)
    if not study.noised:
        return Design({}, {})
    changes: dict[str, object] = {"privacy.split": dict(SPLIT), "estimator.norm_bound": "typical"}
    reasons = {
        "privacy.split": (
            "shares of the budget: that of the curvature decides when intervals appear, that of "
            "the gradient how long they are"
        ),
        "estimator.norm_bound": (
            f"{typical_norm_bound(task.encoding):g} instead of {task.longest:.3g}, the longest "
            "that the ranges allow: 99 % of records that are distributed as declared are "
            "shorter, and all noise grows with it"
        ),
    }
    for begin, releases in (*((share, RELEASES) for share in BEGIN), (1.0, FEWER_RELEASES)):
        needed = math.ceil(releases * task.size / RECENT)
        most = min(begin * records / needed, records / (WINDOWS * clients), 100_000)
        changes["window.records"] = window = int(_down(max(1.0, most)))
        changes["privacy.split"] = dict(SPLIT)
        found = RenewableTask(with_keys(study, changes, name="the design"))
        counts = share_for(found, begin * records)
        if counts > SPLIT["counts"]:
            changes["privacy.split"] = _split(min(_up(counts), MOST_COUNTS))
            found = RenewableTask(with_keys(study, changes, name="the design"))
        certain = noise_of(found).certain_ridge(begin * records / window)
        # fewer releases are for classes that are too rare otherwise
        if counts <= MOST_COUNTS and (certain <= LARGEST_RIDGE or begin == BEGIN[-1]):
            break
    if counts > SPLIT["counts"]:
        after = slots_until(found, rarer_share(study)) or 0
        reasons["privacy.split"] += (
            f". The counts have more than usual, so that a class with {rarer_share(study):.3g} of "
            "the records stands out of their noise "
            + ("in time" if after <= records else f"after about {after:,} records, not in time")
        )
    reasons["window.records"] = (
        f"the largest window that still gives {needed:,} releases ({releases} recent ones for "
        f"each coefficient) within {begin:.0%} of the records, and {WINDOWS} releases of each "
        "client: the noise of a release does not depend on its size"
    )
    changes["estimator.ridge"] = min(max(_up(certain), LEAST_RIDGE), LARGEST_RIDGE)
    reasons["estimator.ridge"] = (
        f"the smallest ridge that is enough for intervals of slopes from {begin:.0%} of the "
        "records on; these intervals are for the penalised coefficients"
        if certain <= LARGEST_RIDGE
        else (
            f"{_up(certain):g} would be enough at all records, but leaves little of each "
            "coefficient; with a smaller ridge, intervals need features that vary"
        )
    )
    return Design(changes, reasons)


def _known_after(task: RenewableTask, curvature: Matrix, noise: Noise, which: slice) -> int | None:
    """Return after how many record slots some coefficients have intervals, to 5 %.

    By the rule of `bread_of` itself, for this mean curvature without its noise. None: after no
    number that a plan looks at.
    """

    def is_hidden(releases: float) -> bool:
        bread = bread_of(curvature, RECENT * releases, task.penalty, noise, noisy=False)
        return bool(bread.unknown[which].any())

    enough = releases_needed(task.size) / RECENT
    if not is_hidden(enough):
        return math.ceil(enough) * task.slots
    while is_hidden(enough := 2 * enough):
        if enough * task.slots > MOST_SLOTS:
            return None
    too_few = enough / 2
    while enough > 1.05 * too_few:
        middle = math.sqrt(too_few * enough)
        too_few, enough = (middle, enough) if is_hidden(middle) else (too_few, middle)
    return math.ceil(enough) * task.slots


def _bend(task: RenewableTask) -> float:
    """Return the guess of a record's mean curvature at the reference."""
    bend = BEND if task.loss.remainder else 1.0
    if task.classes and task.largest_weight == 1:
        # of logistic regression: the mean of p (1 - p) is at most that of the mean; others flatten
        # about as much
        bend = min(bend, evenness(task.study))
    return bend * task.loss.start_curvature


def _slope_deviation(task: RenewableTask) -> float:
    """Return the guess of the root mean square of a record's slope."""
    estimator, unit = task.study.estimator, task.response_scale[1]
    if task.classes:
        return task.loss.start_slope_bound
    if task.loss.responses == "count":
        return math.sqrt(BEND * task.loss.start_curvature)
    if estimator.noise_scale is not None:
        return estimator.noise_scale / unit
    return RESIDUAL if estimator.residual_bound is None else estimator.residual_bound / unit / HUBER


def _deviation_bound(task: RenewableTask) -> float:
    """Return a bound of the standard deviation of a record's score in any direction.

    Class weights n / (2 n_class), the largest of them L, have a mean square of at most (L + 1) / 2.
    Features are within the norm bound, and so is the mean that the intercept takes off them.
    """
    weighted = task.loss.slope_bound * math.sqrt((task.largest_weight + 1) / 2)
    return weighted * 2 * math.sqrt(task.norm_bound**2 - 1)


def _split(counts: float) -> dict[str, float]:
    """Return shares of the budget of which counts have so much, 70 to 30 for the others."""
    gradient = round(0.7 * (1 - counts), 4)
    return {"gradient": gradient, "curvature": round(1 - counts - gradient, 4), "counts": counts}


def _down(number: float) -> float:
    return _digits(number, math.floor)


def _up(number: float) -> float:
    return _digits(number, math.ceil)


def _digits(number: float, towards: Callable[[float], int]) -> float:
    """Return a number with two digits, rounded up or down."""
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{towards(number / step) * step:.3g}")
