"""The estimate of a private study from its integer sums.

theta = tbar - (Abar + ridge R)^-1 (G / N + ridge R tbar): the mean expansion point of the last
three epochs less one preconditioned gradient taken there. The noisy curvature only scales and turns
that step and expansion points enter only as a mean, so no noise is ever multiplied by a
coefficient. The middle of the sandwich is the spread between releases. With forgetting, what is
linear in releases is weighed by their weight, and every variance by its square. Derived in
docs/methods/renewable.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.estimators.estimate import (
    FAR,
    Estimate,
    Status,
    class_weights,
    dispersion_of,
    is_far,
)
from pipeline.estimators.forgetting import effective
from pipeline.linalg import condition_number, sandwiches, solve_positive
from pipeline.losses import Regression
from pipeline.methods.renewable.private_state import PrivateState
from pipeline.methods.renewable.private_sums import (
    Weighed,
    between_releases,
    curvature_of,
    distance_of,
    moments_of,
    total_of,
)
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Matrix, Vector

#: How intervals are made.
INTERVAL = "sandwich, spread between releases"
#: Intervals need this many releases for each coefficient, and fewer than this share floored.
RELEASES_PER_COEFFICIENT, FLOORED_SHARE = 10, 1 / 3
#: A coefficient that lies in floored directions to this share has no interval: steps along them
#: are too short by an unknown factor.
UNKNOWN_SHARE = 0.4
#: A class is taken to occur when its count is so many standard deviations of the noise above 0.
COUNTS_NOISE = 3.0


def estimate_private(task: RenewableTask, sums: PrivateState | Weighed) -> Estimate:
    """Estimate the coefficients of a private study.

    Parameters
    ----------
    sums
        The sums of all partitions: one state, or those of the buckets with their weights.

    Returns
    -------
    Estimate
        Without intervals until the status is "ready". A deterministic function of the sums.
    """
    parts: Weighed = [(1.0, sums)] if isinstance(sums, PrivateState) else sums
    releases = sum(state.releases for _, state in parts)
    weights = _weights(task, parts)
    penalty = task.study.estimator.ridge * np.diag([0.0] + [1.0] * (task.size - 1))
    covariance = privacy = dispersion = None
    condition: float | None
    if not any(state.epochs for _, state in parts):
        bread, floored = _start_curvature(task) * np.eye(task.size) + penalty, 0
        condition = condition_number(bread) if releases else None
        coefficients = _first_coefficients(task, parts, bread, weights)
        status, reason = _start_status(task, releases)
        starts = [(w, float(state.start[-1])) for w, state in parts]
        records = task.slots * effective(
            sum(w * count for w, count in starts), sum(w**2 * count for w, count in starts)
        )
    else:
        curvature, repair = curvature_of(task, parts)
        floored, condition = repair.raised, condition_number(repair.matrix, repair.eigenvalues)
        moments = moments_of(task, parts)
        records = moments.records
        bread = curvature + penalty
        mean = moments.expansion / moments.slots
        score = moments.gradient / moments.slots + penalty @ mean
        coefficients = mean - solve_positive(bread, score)
        status, reason = _status(task, moments.releases, floored)
        if moments.slopes is not None:
            dispersion = dispersion_of(moments.slopes / moments.slots, float(curvature[0, 0]))
        if status == "ready" and not _both_classes(task, parts):
            status = "warming"
            reason = (
                "one class is so rare that its noised count may be noise alone: intervals need "
                "more records, of both classes"
            )
        if status == "ready":
            whole = moments.slots * bread
            noise = moments.squares * task.update_channels.gradient.standard_deviation**2
            between = between_releases(moments, curvature)
            covariance, privacy = sandwiches(whole, between, noise * np.eye(task.size))
            total = np.maximum(np.diag(covariance), np.diag(privacy))
            if is_far(task.loss, distance_of(moments, coefficients, bread), total):
                status, reason, covariance, privacy = "warming", FAR, None, None
            elif (unknown := repair.loadings >= UNKNOWN_SHARE).any():
                reason = _without_interval(task, unknown)
                for matrix in (covariance, privacy):
                    matrix[unknown, :] = matrix[:, unknown] = math.nan
    return Estimate(
        coefficients=coefficients,
        covariance=covariance,
        privacy_covariance=privacy,
        weights=weights,
        status=status,
        reason=reason,
        records=sum(state.slots for _, state in parts),
        releases=releases,
        condition=condition,
        floored=floored,
        effective_records=records,
        dispersion=dispersion,
        interval=INTERVAL,
    )


def _start_curvature(task: RenewableTask) -> float:
    """Return a public guess of the mean curvature in every direction, for the first step only."""
    return task.loss.start_curvature * task.norm_bound**2 / task.size


def _first_coefficients(
    task: RenewableTask, parts: Weighed, bread: Matrix, weights: tuple[float, float]
) -> Vector:
    """Return what the releases at the start say: one step, or a regression without features.

    A step with a guessed curvature may put records beyond the threshold of their slopes, where no
    curvature leads back; the best intercept alone needs no guess, and keeps them near.
    """
    total = total_of(parts, lambda state: state.start)
    slots = float(total[-1]) * task.slots
    if slots == 0:
        return task.first_model.coefficients
    mean = total[:-1] * task.initial_channels.gradient.unit / slots
    if isinstance(task.loss, Regression):
        squares = sum(w * w * float(state.start[-1]) for w, state in parts)
        spread = math.sqrt(squares) * task.initial_channels.gradient.standard_deviation / slots
        alone = task.loss.intercept_of(float(mean[0]), spread)
        return np.append(alone, np.zeros(task.size - 1))
    score = weights[0] * mean[: task.size] + weights[1] * mean[task.size :]
    return -solve_positive(bread, score)


def _weights(task: RenewableTask, parts: Weighed) -> tuple[float, float]:
    if not task.classes or task.update_channels.counts is None:
        return 1.0, 1.0
    unit = task.update_channels.counts.unit
    counts = total_of(parts, lambda state: state.counts)
    return class_weights(float(counts[0]) * unit, float(counts[1]) * unit, task.largest_weight)


def _both_classes(task: RenewableTask, parts: Weighed) -> bool:
    """Whether both noised counts stand out of their noise: one class alone has no best fit.

    A regression has no classes that could be missing.
    """
    part = task.update_channels.counts
    if part is None or not task.classes:
        return True
    counts = total_of(parts, lambda state: state.counts)[:2] * part.unit
    releases = sum(weight**2 * state.releases for weight, state in parts)
    return float(counts.min()) >= COUNTS_NOISE * math.sqrt(releases) * part.standard_deviation


def _start_status(task: RenewableTask, releases: int) -> tuple[Status, str]:
    if releases == 0:
        return "empty", "no release has come yet"
    needed = task.study.stream.publish.releases
    return "starting", (
        f"the first model goes out after {needed} releases (stream.publish.releases), and "
        f"{releases} have come; it goes out sooner if one client has used up its "
        "stream.max_in_flight_windows"
    )


def _without_interval(task: RenewableTask, unknown: NDArray[np.bool_]) -> str:
    """Say which coefficients have no interval: the data say less of them than the noise does."""
    names = np.array(task.study.coefficient_names)[unknown]
    return (
        f"no interval for {', '.join(names)}: the noise still hides what the records say of them; "
        "features that are less correlated, narrower public ranges, more records or a larger "
        "privacy.epsilon help"
    )


def _status(task: RenewableTask, releases: float, floored: int) -> tuple[Status, str]:
    if floored > FLOORED_SHARE * task.size:
        return "warming", (
            f"too few records for {task.size} coefficients at this privacy.epsilon: the noise "
            f"still hides {floored} of the {task.size} combinations of features that the records "
            "must tell apart; more records, larger windows (window.records), fewer features or a "
            "larger privacy.epsilon help"
        )
    needed = RELEASES_PER_COEFFICIENT * task.size
    if releases < needed:
        reason = f"intervals need {needed} recent releases; {int(releases)} have come"
        if task.study.estimator.forgetting is not None:
            reason += ", weighed by their age: a longer half-life keeps more"
        return "warming", reason
    return "ready", ""
