"""The estimate of a private study from its integer sums: intervals, a status, and the reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pipeline.estimators.estimate import (
    FAR,
    Estimate,
    Status,
    class_weights,
    dispersion_of,
    kept_of,
)
from pipeline.estimators.forgetting import effective
from pipeline.linalg import condition_number, solve_positive
from pipeline.losses import Regression
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.readiness import (
    Condition,
    both_classes,
    enough_releases,
    known_curvature,
    progress_of,
)
from pipeline.methods.renewable.solution import Solution, shortened, solve
from pipeline.methods.renewable.state import PrivateState, Weighed, total_of
from pipeline.types import Matrix, Vector

#: How intervals are made.
INTERVAL = "sandwich, released middle"
#: The same where the middle is not released.
BETWEEN = "sandwich, spread between releases"
STILL_MOVING = (
    "the estimate still moves away from the models at which clients computed these releases, so "
    "intervals would not cover the value that it moves to: wait for more releases at newer models"
)


def estimate_private(
    task: RenewableTask, sums: PrivateState | Weighed, missing: int = 0
) -> Estimate:
    """Estimate the coefficients of a private study.

    sums: The sums of all partitions: one state, or those of the buckets with their weights.
    missing: Releases of all clients that never came, below numbers that did.

    Returns: Without intervals until the status is "ready". A deterministic function of the sums.
    """
    parts: Weighed = [(1.0, sums)] if isinstance(sums, PrivateState) else sums
    weights = _weights(task, parts)
    if any(state.epochs for _, state in parts):
        return _later(task, parts, weights, missing)
    return _at_start(task, parts, weights)


def _at_start(task: RenewableTask, parts: Weighed, weights: tuple[float, float]) -> Estimate:
    """Return the estimate while there are releases of the public start alone."""
    releases = sum(state.releases for _, state in parts)
    slots = sum(state.slots for _, state in parts)
    first = _start_curvature(task) * np.eye(task.size) + np.diag(task.penalty)
    status, reason = _start_status(task, releases)
    starts = [(w, float(state.start[-1])) for w, state in parts]
    once, twice = (sum(w**power * count for w, count in starts) for power in (1, 2))
    return Estimate(
        coefficients=_first_coefficients(task, parts, first, weights),
        weights=weights,
        status=status,
        reason=reason,
        records=slots,
        releases=releases,
        condition=condition_number(first) if releases else None,
        effective_records=task.slots * effective(once, twice),
        interval=INTERVAL,
        progress=progress_of([enough_releases(task, releases)], slots),
    )


def _later(
    task: RenewableTask, parts: Weighed, weights: tuple[float, float], missing: int
) -> Estimate:
    """Return the estimate from releases that hold a curvature."""
    slots = sum(state.slots for _, state in parts)
    found = solve(task, parts, missing)
    sums, bread = found.sums, found.bread
    unknown = known_curvature(task, found, slots)
    conditions = [*_conditions(task, parts, found), unknown]
    lacking = [one.reason for one in conditions if not one.holds and one is not unknown]
    if found.unknown.all() and conditions[0].holds and conditions[1].holds:
        # then that is why models are far, and the estimate moves
        lacking = [unknown.reason]
    status: Status = "ready"
    reason, covariance, privacy, kept = unknown.reason, None, None, None
    if lacking or found.unknown.all() or found.covariance is None:
        status, reason = "warming", [*lacking, unknown.reason][0]
    else:
        hides = np.diag(found.hidden)
        covariance, privacy = found.covariance + hides, found.privacy + hides
        for matrix in (covariance, privacy):
            matrix[found.unknown, :] = matrix[:, found.unknown] = math.nan
        if task.penalty.any():
            kept = np.where(found.unknown, math.nan, kept_of(bread.matrix, task.penalty))
    details: dict[str, Any] = {}
    if found.design_effect is not None:
        details["design_effect"] = found.design_effect
    dispersion = None
    if sums.slopes is not None:
        carried = float(sums.curvature[0, 0]) / sums.slots
        dispersion = dispersion_of(sums.slopes / sums.slots, carried)
    return Estimate(
        coefficients=found.coefficients,
        covariance=covariance,
        privacy_covariance=privacy,
        weights=weights,
        status=status,
        reason=reason,
        records=slots,
        releases=sum(state.releases for _, state in parts),
        condition=condition_number(bread.matrix),
        floored=bread.hidden,
        effective_records=sums.records,
        dispersion=dispersion,
        interval=INTERVAL if sums.middle is not None else BETWEEN,
        kept=kept,
        progress=progress_of(conditions, slots),
        details=details,
    )


def _conditions(task: RenewableTask, parts: Weighed, found: Solution) -> list[Condition]:
    """Return what intervals need beside known coefficients."""
    least = found.least_error
    near = min(1.0, least / found.bent) if found.bent > 0 else 1.0
    return [
        enough_releases(task, found.sums.releases),
        both_classes(task, parts),
        # old models leave the newest epochs when as many records again have come
        Condition(1 - 0.5 * found.moving, STILL_MOVING),
        Condition(min(near, 1.0 if found.bent < least else 0.999), FAR),
    ]


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
    if releases >= needed:
        return "starting", (
            f"{releases} releases have come, all from before the first model; intervals need some "
            "that are taken at a model"
        )
    return "starting", (
        f"the first model goes out after {needed} releases (stream.publish.releases); {releases} "
        "have come. It goes out sooner if one client has used up its stream.max_in_flight_windows"
    )
