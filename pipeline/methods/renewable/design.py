"""When intervals of a renewable study come, how long they are, and what to set before it runs.

From public numbers alone: the noise of its releases, its ridge, and bounds of its records. The
bounds hold whatever the records say; beside them stands a reference, features that are independent
and uniform on their public ranges. Derived in docs/methods/planning.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from pipeline.estimators.forgetting import EFFECTIVE_HALF_LIVES
from pipeline.methods.facts import Design, Outlook
from pipeline.methods.renewable.open_estimate import RECORDS_PER_COEFFICIENT
from pipeline.methods.renewable.precision import RECENT, RELEASES_PER_COEFFICIENT, noise_of
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study import Study, with_keys
from pipeline.types import Vector

#: At the reference, losses bend at least this share of what is guessed for the start: simulations
#: had .55 to .9 for gdwd and logistic, .5 for counts. One of constant curvature bends as guessed.
BEND = 0.55
#: Residuals' standard deviation where a study says nothing of it, in encoded units, and the usual
#: ratio of a residual bound to it.
RESIDUAL, HUBER = 0.1, 1.345
#: A design has certain intervals from this share of the expected records on, if it can.
BEGIN = (0.5, 1.0)
#: Windows that a client should have, so that it hears of several models.
WINDOWS = 10
#: Shares of the squared budget: 70 to 30 for gradient and curvature.
SPLIT = {"gradient": 0.665, "curvature": 0.285, "counts": 0.05}
#: A larger ridge leaves little of the coefficients.
LARGEST_RIDGE, LEAST_RIDGE = 0.3, 1e-3
#: Normal quantile of the share of reference records that keep their length.
KEPT = 2.33


def outlook(task: RenewableTask, records: int) -> Outlook:
    """As `Method.outlook`."""
    counted = _counted(task, records)
    reach = float(ndtri((1 + task.study.estimator.level) / 2)) * task.response_scale[1]
    ridge, bend = task.study.estimator.ridge, _least_curvature(task)
    usual_sampling = _slope_deviation(task) * _spread(task) / (bend + ridge) / math.sqrt(counted)
    if not task.study.noised:
        needed = RECORDS_PER_COEFFICIENT * task.size
        return Outlook(needed, needed, None, reach * usual_sampling)
    noise, releases = noise_of(task), max(counted / task.slots, 1.0)
    most = _deviation_bound(task) / ridge / math.sqrt(counted) if ridge else None
    usual = noise.of_gradient(RECENT * releases) / (bend + ridge)
    until = noise.releases_until(ridge + bend)
    return Outlook(
        latest=math.ceil(noise.releases_until(ridge)) * task.slots if ridge else None,
        usual=math.ceil(until) * task.slots,
        longest=None
        if most is None
        else reach * math.hypot(noise.slope_error(releases, ridge, task.norm_bound), most),
        usual_half=reach * math.hypot(usual, usual_sampling),
        why=""
        if ridge
        else "estimator.ridge is 0, so intervals wait until the records' own curvature shows "
        "through the noise, and nothing bounds how long that takes",
    )


def design(study: Study, records: int, clients: int) -> Design:
    """As `Method.design`."""
    task = RenewableTask(study)
    if not study.noised:
        return Design({}, {})
    norm = round(min(task.longest, reference_norm(task)), 2)
    changes: dict[str, object] = {"privacy.split": dict(SPLIT)}
    reasons = {
        "privacy.split": "the curvature decides when intervals come, the gradient how long they are"
    }
    if norm < task.longest:
        changes["estimator.norm_bound"] = norm
        reasons["estimator.norm_bound"] = (
            f"instead of {task.longest:.3g}, the longest that the ranges allow: 99 % of records "
            "with independent, uniform features are shorter, and all noise grows with it"
        )
    needed = math.ceil(RELEASES_PER_COEFFICIENT * task.size / RECENT)
    for begin in BEGIN:
        most = min(begin * records / needed, records / (WINDOWS * clients), 100_000)
        changes["window.records"] = window = int(_down(max(1.0, most)))
        noise = noise_of(RenewableTask(with_keys(study, changes, name="the design")))
        certain = noise.certain_ridge(begin * records / window)
        if certain <= LARGEST_RIDGE:
            break
    reasons["window.records"] = (
        f"the largest with {needed:,} releases, which intervals need, in {begin:.0%} of the "
        f"records, and {WINDOWS} of each client: a release has the same noise whatever its size"
    )
    changes["estimator.ridge"] = min(max(_up(certain), LEAST_RIDGE), LARGEST_RIDGE)
    reasons["estimator.ridge"] = (
        f"the least with which intervals are certain from {begin:.0%} of the records on; they are "
        "those of the penalised coefficients"
        if certain <= LARGEST_RIDGE
        else f"intervals would be certain with {_up(certain):g} at all records, which leaves "
        "little of any coefficient; with less they need features that vary"
    )
    return Design(changes, reasons)


def reference_norm(task: RenewableTask) -> float:
    """Return the norm of (1, x) that 99 % of records with uniform features stay below."""
    low, high = task.ends
    # mean and variance of the square of a uniform number
    mean = (high**3 - low**3) / (3 * (high - low))
    variance = (high**5 - low**5) / (5 * (high - low)) - mean**2
    return math.sqrt(1 + float(mean.sum()) + KEPT * math.sqrt(float(variance.sum())))


def _counted(task: RenewableTask, records: int) -> float:
    """Return on how many record slots an estimate rests after so many."""
    forgetting = task.study.estimator.forgetting
    if forgetting is None or forgetting.of == "seconds":
        return max(float(records), 1.0)
    return min(float(records), EFFECTIVE_HALF_LIVES * forgetting.half_life)


def _reference(task: RenewableTask) -> tuple[Vector, float]:
    """Return variances of the features of the reference, and how norms shorten squares."""
    low, high = task.ends
    variances: Vector = (high - low) ** 2 / 12
    squared = 1 + float(np.sum(variances + ((high + low) / 2) ** 2))
    return variances, min(1.0, task.norm_bound**2 / squared)


def _least_curvature(task: RenewableTask) -> float:
    """Return the curvature along the feature that varies least, less its mean, as guessed."""
    variances, shorter = _reference(task)
    bend = BEND if task.loss.remainder else 1.0
    return bend * task.loss.start_curvature * float(variances.min()) * shorter


def _spread(task: RenewableTask) -> float:
    variances, shorter = _reference(task)
    return math.sqrt(float(variances.min()) * shorter)


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


def _down(number: float) -> float:
    return _digits(number, math.floor)


def _up(number: float) -> float:
    return _digits(number, math.ceil)


def _digits(number: float, towards: Callable[[float], int]) -> float:
    """Return a number with two digits, rounded up or down."""
    step = 10.0 ** (math.floor(math.log10(number)) - 1)
    return float(f"{towards(number / step) * step:.3g}")
