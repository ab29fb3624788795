"""The estimate of a private study from its integer sums.

theta = tbar - (Abar + ridge R)^-1 (G / N + ridge R tbar): the mean expansion point of the
newest epochs less one preconditioned gradient taken there. The noisy curvature only scales and
turns that step and expansion points enter only as a mean, so no noise is ever multiplied by a
coefficient. The middle of the sandwich is the spread between releases. With forgetting, what is
linear in releases is weighed by their weight, and every variance by its square. Derived in
docs/methods/renewable.md.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.estimators.estimate import (
    FAR,
    Estimate,
    Status,
    class_weights,
    dispersion_of,
    is_far,
    kept_of,
)
from pipeline.estimators.forgetting import effective
from pipeline.linalg import condition_number, sandwiches, solve_positive
from pipeline.losses import Regression
from pipeline.methods.renewable.classes import both_classes
from pipeline.methods.renewable.precision import RECENT
from pipeline.methods.renewable.private_state import PrivateState
from pipeline.methods.renewable.private_sums import (
    Weighed,
    between_releases,
    total_of,
)
from pipeline.methods.renewable.readiness import (
    Condition,
    enough_releases,
    known_curvature,
    progress_of,
)
from pipeline.methods.renewable.solution import Solution, shortened, solve
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Matrix, Vector

#: How intervals are made.
INTERVAL = "sandwich, spread between releases"
STILL_MOVING = (
    "the estimate still moves away from the models at which clients computed these releases, so "
    "intervals would not cover the value that it moves to: wait for more releases at newer models"
)


def estimate_private(task: RenewableTask, sums: PrivateState | Weighed) -> Estimate:
    """Estimate the coefficients of a private study.

    sums: The sums of all partitions: one state, or those of the buckets with their weights.

    Returns: Without intervals until the status is "ready". A deterministic function of the sums.
    """
    parts: Weighed = [(1.0, sums)] if isinstance(sums, PrivateState) else sums
    releases = sum(state.releases for _, state in parts)
    weights, slots = _weights(task, parts), sum(state.slots for _, state in parts)
    covariance = privacy = dispersion = kept = None
    condition: float | None
    if not any(state.epochs for _, state in parts):
        first, hidden = _start_curvature(task) * np.eye(task.size) + np.diag(task.penalty), 0
        condition = condition_number(first) if releases else None
        coefficients = _first_coefficients(task, parts, first, weights)
        status, reason = _start_status(task, releases)
        progress = progress_of([enough_releases(task, RECENT * releases)], slots)
        starts = [(w, float(state.start[-1])) for w, state in parts]
        records = task.slots * effective(
            sum(w * count for w, count in starts), sum(w**2 * count for w, count in starts)
        )
    else:
        solution = solve(task, parts)
        bread, moments = solution.bread, solution.moments
        hidden, condition = bread.hidden, condition_number(bread.matrix)
        records, coefficients = moments.records, solution.coefficients
        if moments.slopes is not None:
            carried = float(bread.curvature[0, 0])
            dispersion = dispersion_of(moments.slopes / moments.slots, carried)
        apart = known_curvature(task, bread, slots)
        conditions = [
            enough_releases(task, moments.releases),
            both_classes(task, parts),
            apart,
        ]
        if conditions[0].holds:
            covariance, privacy = _variances(solution)
            total = np.maximum(np.diag(covariance), np.diag(privacy))
            # old models leave the last epochs when as many releases again have come
            conditions.append(Condition(1 - 0.5 * is_far(solution.bent, total), FAR))
            conditions.append(Condition(1 - 0.5 * solution.is_moving(total), STILL_MOVING))
        progress = progress_of(conditions, slots)
        lacking = [c.reason for c in conditions if not c.holds and c is not apart]
        status, reason = "ready", apart.reason
        if lacking or bread.unknown.all():
            status, reason = "warming", [*lacking, apart.reason][0]
            covariance = privacy = None
        elif covariance is not None and privacy is not None:
            for matrix in (covariance, privacy):
                matrix[bread.unknown, :] = matrix[:, bread.unknown] = math.nan
            kept = np.where(bread.unknown, math.nan, kept_of(bread.matrix, task.penalty))
    return Estimate(
        coefficients=coefficients,
        covariance=covariance,
        privacy_covariance=privacy,
        weights=weights,
        status=status,
        reason=reason,
        records=slots,
        releases=releases,
        condition=condition,
        floored=hidden,
        effective_records=records,
        dispersion=dispersion,
        interval=INTERVAL,
        kept=kept,
        progress=progress,
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
    return -shortened(task, solve_positive(bread, score))


def _weights(task: RenewableTask, parts: Weighed) -> tuple[float, float]:
    if not task.classes or task.update_channels.counts is None:
        return 1.0, 1.0
    unit = task.update_channels.counts.unit
    counts = total_of(parts, lambda state: state.counts)
    return class_weights(float(counts[0]) * unit, float(counts[1]) * unit, task.largest_weight)


def _start_status(task: RenewableTask, releases: int) -> tuple[Status, str]:
    if releases == 0:
        return "empty", "no release has come yet"
    needed = task.study.stream.publish.releases
    return "starting", (
        f"the first model goes out after {needed} releases (stream.publish.releases); {releases} "
        "have come. It goes out sooner if one client has used up its stream.max_in_flight_windows"
    )


def _variances(solution: Solution) -> tuple[Matrix, Matrix]:
    """Return the variance of the coefficients, and the part of it that is known to be noise.

    What the noise of the curvature does to the step is the same for all releases, so the spread
    between them does not hold it.
    """
    moments, bread = solution.moments, solution.bread
    spread = between_releases(moments, bread.curvature)
    total, privacy = sandwiches(
        moments.slots * bread.matrix, spread + solution.turned, solution.noise
    )
    return total, privacy
