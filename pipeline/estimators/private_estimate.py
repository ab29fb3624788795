"""The estimate of a private study from its integer sums.

theta = tbar - (Abar + ridge R)^-1 (G / N + ridge R tbar): the mean expansion point of the last
three epochs less one preconditioned gradient taken there. The noisy curvature only preconditions
and expansion points enter only as a mean, so no noise is ever multiplied by a coefficient. The
middle of the sandwich is the spread between releases. Source: spec of the renewable method,
section on private streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.estimators import exact
from pipeline.estimators.estimate import Estimate, Status, class_weights, dispersion_of
from pipeline.estimators.private_state import PrivateState
from pipeline.linalg import (
    condition_number,
    floor_eigenvalues,
    sandwich,
    solve_positive,
    unpack_upper,
)
from pipeline.local.model import COEFFICIENT_EXPONENT
from pipeline.local.plan import Plan
from pipeline.losses import Regression
from pipeline.types import Matrix, Vector

#: Epochs that enter the estimate: older expansion points are too far from the truth.
LAST_EPOCHS = 3
#: Eigenvalue floor: a share of the mean eigenvalue, and a multiple of the noise's spectral norm.
FLOOR_SHARE, FLOOR_NOISE = 0.02, 0.5
#: Intervals need this many releases for each coefficient, and fewer than this share floored.
RELEASES_PER_COEFFICIENT, FLOORED_SHARE = 10, 1 / 3


@dataclass(frozen=True, slots=True)
class Moments:
    """First and second moments of (g, n t, n) over some releases, in real units.

    Attributes
    ----------
    squares
        Sum of squared slopes; None where they are not released.
    """

    gradient: Vector
    expansion: Vector
    squares: float | None
    slots: float
    releases: int
    second: Matrix


def estimate_private(plan: Plan, state: PrivateState) -> Estimate:
    """Estimate the coefficients of a private study.

    Parameters
    ----------
    state
        The sums of all partitions.

    Returns
    -------
    Estimate
        Without intervals until the status is "ready". A deterministic function of the sums.
    """
    releases, slots = int(state.counts[-2]), int(state.counts[-1])
    weights = _weights(plan, state)
    penalty = plan.study.estimator.ridge * np.diag([0.0] + [1.0] * (plan.size - 1))
    covariance = privacy = dispersion = None
    if not state.epochs:
        bread, floored = _start_curvature(plan) * np.eye(plan.size) + penalty, 0
        coefficients = _first_coefficients(plan, state, bread, weights)
        status, reason = _start_status(releases)
    else:
        curvature, floored = _curvature(plan, state)
        moments = _moments(plan, state)
        bread = curvature + penalty
        mean = moments.expansion / moments.slots
        score = moments.gradient / moments.slots + penalty @ mean
        coefficients = mean - solve_positive(bread, score)
        status, reason = _status(plan, moments.releases, floored)
        if moments.squares is not None:
            dispersion = dispersion_of(moments.squares / moments.slots, float(curvature[0, 0]))
        if status == "ready":
            whole = moments.slots * bread
            noise = moments.releases * plan.step.gradient.standard_deviation**2
            covariance = sandwich(whole, _between_releases(moments, curvature))
            privacy = sandwich(whole, noise * np.eye(plan.size))
    return Estimate(
        coefficients=coefficients,
        covariance=covariance,
        privacy_covariance=privacy,
        weights=weights,
        status=status,
        reason=reason,
        records=slots,
        releases=releases,
        condition=condition_number(bread) if releases else None,
        floored=floored,
        dispersion=dispersion,
    )


def _start_curvature(plan: Plan) -> float:
    """Return a public guess of the mean curvature in every direction, for the first step only."""
    return plan.loss.start_curvature * plan.norm_bound**2 / plan.size


def _first_coefficients(
    plan: Plan, state: PrivateState, bread: Matrix, weights: tuple[float, float]
) -> Vector:
    """Return what the releases at the start say: one step, or a regression without features.

    A step with a guessed curvature may put records beyond the threshold of their slopes, where no
    curvature leads back; the best intercept alone needs no guess, and keeps them near.
    """
    releases = int(state.start[-1])
    if releases == 0:
        return plan.first_model.coefficients
    slots = releases * plan.slots
    mean = exact.as_floats(state.start[:-1]) * plan.start.gradient.unit / slots
    if isinstance(plan.loss, Regression):
        spread = math.sqrt(releases) * plan.start.gradient.standard_deviation / slots
        alone = plan.loss.intercept_of(float(mean[0]), spread)
        return np.append(alone, np.zeros(plan.size - 1))
    score = weights[0] * mean[: plan.size] + weights[1] * mean[plan.size :]
    return -solve_positive(bread, score)


def _moments(plan: Plan, state: PrivateState) -> Moments:
    rows, size, squares = state.shape.rows, plan.size, state.shape.squares
    packed = exact.zeros(state.gram_length)
    for epoch in sorted(state.epochs)[-LAST_EPOCHS:]:
        packed = packed + state.epochs[epoch]
    units = np.ones(rows)
    units[:size] = plan.step.gradient.unit
    units[size : 2 * size] = math.ldexp(1.0, COEFFICIENT_EXPONENT)
    if squares and plan.step.counts is not None:
        units[2 * size] = plan.step.counts.unit
    gram = unpack_upper(exact.as_floats(packed), rows) * np.outer(units, units)
    last = gram[:, -1]
    linear = np.r_[0 : 2 * size, rows - 2]
    return Moments(
        gradient=last[:size],
        expansion=last[size : 2 * size],
        squares=float(last[2 * size]) if squares else None,
        slots=float(last[-2]),
        releases=int(packed[-1]),
        second=gram[np.ix_(linear, linear)],
    )


def _curvature(plan: Plan, state: PrivateState) -> tuple[Matrix, int]:
    """Return the mean curvature of one record with its eigenvalues floored, and how many were."""
    size, releases, slots = plan.size, int(state.curvature[-2]), int(state.curvature[-1])
    part = plan.step.curvature
    if part is None:
        raise PrivacyError("the plan of this study has no curvature, but its state has one")
    total = unpack_upper(exact.as_floats(state.curvature[:-2]) * part.unit, size)
    noise = math.sqrt(releases) * part.standard_deviation
    least = max(
        FLOOR_SHARE * float(np.trace(total)) / size, FLOOR_NOISE * noise * math.sqrt(2 * size)
    )
    repaired, floored = floor_eigenvalues(total, least)
    return repaired / slots, floored


def _between_releases(moments: Moments, curvature: Matrix) -> Matrix:
    """Estimate the variance of the summed gradient, sampling and noise together.

    r_j = g_j - n_j (c + Abar t_j) is what release j deviates from the common linear score.
    """
    size = len(moments.gradient)
    centre = (moments.gradient - curvature @ moments.expansion) / moments.slots
    project = np.hstack([np.eye(size), -curvature, -centre[:, None]])
    spread = project @ moments.second @ project.T
    return spread * moments.releases / (moments.releases - size)


def _weights(plan: Plan, state: PrivateState) -> tuple[float, float]:
    if not plan.classes or plan.step.counts is None:
        return 1.0, 1.0
    unit = plan.step.counts.unit
    return class_weights(
        int(state.counts[0]) * unit, int(state.counts[1]) * unit, plan.largest_weight
    )


def _start_status(releases: int) -> tuple[Status, str]:
    if releases == 0:
        return "empty", "no release has come yet"
    return "starting", "only releases from the public start at zero have come so far"


def _status(plan: Plan, releases: int, floored: int) -> tuple[Status, str]:
    if floored > FLOORED_SHARE * plan.size:
        return "warming", (
            f"too few records for this epsilon and {plan.size} coefficients: {floored} directions "
            "of the curvature are still below its noise; more records, larger windows, fewer "
            "features or a larger epsilon help"
        )
    needed = RELEASES_PER_COEFFICIENT * plan.size
    if releases < needed:
        return "warming", f"intervals need {needed} recent releases; {releases} have come"
    return "ready", ""
