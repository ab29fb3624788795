"""The pooled fit without privacy that the intervals of a study aim at, over a history read anew.

It minimises the study's own loss over all usable records: the same clipping, shortening, weights
and ridge, and no noise. A damped Newton method starts at the fit of every k-th record, so that few
passes over the history suffice, and keeps sums alone: memory does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.errors import NumericError
from pipeline.linalg import solve_positive
from pipeline.local.blocks import with_intercept
from pipeline.local.encode import Arrays
from pipeline.local.gradients import weighted
from pipeline.local.plan import Plan
from pipeline.local.summarise import shortened, weight_of
from pipeline.types import Matrix, Vector

#: Reads the usable records of the history from its start.
Read = Callable[[], Iterable[Arrays]]
#: Largest entry of the Newton step that would follow, on encoded features: far below the width of
#: any interval. Where there is no minimiser, steps do not become small.
TOLERANCE = 1e-7
#: Passes over the history, at most, and records that the start is fitted to.
PASSES, SAMPLE = 40, 20_000
#: Rows that are worked on at once.
BLOCK = 8192


@dataclass(frozen=True, slots=True)
class _Sums:
    """The mean penalised loss at a point, with its gradient (d,) and curvature (d, d)."""

    value: float
    gradient: Vector
    curvature: Matrix


def pooled_point(plan: Plan, read: Read, count: int, weights: tuple[float, float]) -> Vector:
    """Return the coefficients of the pooled fit on encoded features, shape (d,).

    Parameters
    ----------
    read
        Called once for each pass.
    count
        How many usable records there are, >= 1.
    weights
        Of the negative and the positive class.

    Raises
    ------
    NumericError
        If there is no unique fit, or the passes do not suffice.
    """
    step = max(1, count // SAMPLE)
    sample = [_every(part, start, step) for start, part in _numbered(read())] if step > 1 else []
    point = plan.first_model.coefficients
    if step > 1:
        point = _newton(plan, lambda: sample, point, weights)
    return _newton(plan, read, point, weights)


def class_weights_of(plan: Plan, negative: int, positive: int) -> tuple[float, float]:
    """Return n / (2 n_class) of the whole history, at most the public maximum."""
    most, total = plan.largest_weight, negative + positive
    if most <= 1.0 or not total:
        return 1.0, 1.0
    return min(most, total / max(2 * negative, 1)), min(most, total / max(2 * positive, 1))


def _numbered(parts: Iterable[Arrays]) -> Iterable[tuple[int, Arrays]]:
    start = 0
    for part in parts:
        yield start, part
        start += len(part.responses)


def _every(part: Arrays, start: int, step: int) -> Arrays:
    chosen = slice(-start % step, None, step)
    return Arrays(part.features[chosen].copy(), part.responses[chosen].copy())


def _newton(plan: Plan, read: Read, point: Vector, weights: tuple[float, float]) -> Vector:
    found = _sums(plan, read, point, weights)
    passes = 1
    while np.abs(direction := _direction(found)).max() > TOLERANCE:
        share = 1.0
        while True:
            if passes == PASSES or share < 1e-4:
                raise NumericError(
                    "the pooled fit did not converge: the classes are nearly separable, or the "
                    "features nearly collinear; a larger estimator.ridge is needed"
                )
            trial = point - share * direction
            beside = _sums(plan, read, trial, weights)
            passes += 1
            # near the end the value no longer tells two points apart, and the score does
            falls = np.abs(beside.gradient).max() < np.abs(found.gradient).max()
            if beside.value <= found.value + 1e-12 * abs(found.value) and (
                falls or beside.value < found.value
            ):
                break
            share /= 4
        point, found = trial, beside
    return point


def _direction(sums: _Sums) -> Vector:
    try:
        direction = solve_positive(sums.curvature, sums.gradient)
    except (NumericError, np.linalg.LinAlgError):
        direction = np.full(len(sums.gradient), np.nan)
    if not np.isfinite(direction).all():
        raise NumericError(
            "the pooled fit is not unique: one class alone, or collinear features; a larger "
            "estimator.ridge or more records are needed"
        )
    return direction


def _sums(plan: Plan, read: Read, point: Vector, weights: tuple[float, float]) -> _Sums:
    size, loss = plan.size, plan.loss
    value, gradient, curvature = 0.0, np.zeros(size), np.zeros((size, size))
    count = 0
    for part in read():
        for start in range(0, len(part.responses), BLOCK):
            rows = slice(start, start + BLOCK)
            design, weight = _rows(plan, part.features[rows], part.responses[rows], weights)
            responses = part.responses[rows]
            predictor = design @ point
            value += float(np.sum(weight * loss.value(predictor, responses)))
            gradient += design.T @ (weight * loss.slope(predictor, responses))
            bend = weight * loss.sharp_curvature(predictor, responses)
            curvature += (design * bend[:, None]).T @ design
            count += len(responses)
    # a study by record has no penalty
    ridge = 0.0 if plan.by_record else plan.study.estimator.ridge
    penalty = ridge * np.append(0.0, np.ones(size - 1))
    return _Sums(
        value / count + float(penalty @ point**2) / 2,
        gradient / count + penalty * point,
        curvature / count + np.diag(penalty),
    )


def _rows(
    plan: Plan, features: Matrix, responses: Vector, weights: tuple[float, float]
) -> tuple[Matrix, Vector]:
    """Return (1, x) as clients see it, and the weight of each record."""
    if not plan.by_record:
        design = with_intercept(shortened(features, plan))
        return design, np.broadcast_to(weight_of(weights, responses), len(responses))
    design = with_intercept(features)
    # the intercept is 1, so the first column of the weighted rows is the weight
    return design, weighted(plan, design)[:, 0]
