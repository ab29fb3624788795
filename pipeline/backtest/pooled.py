"""The pooled fit without privacy that the intervals of a study aim at, over a history read anew.

It minimises the study's own loss over all usable records: the same clipping, shortening, weights
and ridge, and no noise. It is the method of `estimators.modes.pooled`, a Newton method held by a
share of the majoriser that falls with every step, on sums alone: memory does not grow with the
history. It starts at the fit of every k-th record, so that few passes over the history suffice.
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
#: Passes over the history, and over the sample that the start is fitted to, at most.
PASSES, ROUNDS = 40, 500
#: Records of that sample, at most twice as many.
SAMPLE = 20_000
#: The share of the majoriser never falls below this, so that no matrix is singular.
LEAST_SHARE = 1e-12
#: Rows that are worked on at once.
BLOCK = 8192


@dataclass(frozen=True, slots=True)
class _Sums:
    """The mean penalised loss at a point: value, gradient (d,), curvature and majoriser (d, d)."""

    value: float
    gradient: Vector
    curvature: Matrix
    majoriser: Matrix

    def direction(self, share: float) -> Vector:
        """Return the step of a Newton method that is held by a share of the majoriser."""
        return solve_positive(self.curvature + share * self.majoriser, self.gradient)


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
    step, point, share = max(1, count // SAMPLE), plan.first_model.coefficients, 1.0
    if step > 1:
        sample = [_every(part, start, step) for start, part in _numbered(read())]
        point = _newton(plan, lambda: sample, point, weights, 1.0, ROUNDS)
        share = 1e-3
    return _newton(plan, read, point, weights, share, PASSES if step > 1 else ROUNDS)


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


def _newton(
    plan: Plan,
    read: Read,
    point: Vector,
    weights: tuple[float, float],
    share: float,
    passes: int,
) -> Vector:
    found = _sums(plan, read, point, weights)
    for _ in range(passes):
        if np.abs(found.direction(LEAST_SHARE)).max() <= TOLERANCE:
            return point
        trial = point - found.direction(share)
        beside = _sums(plan, read, trial, weights)
        # near the end the value no longer tells two points apart, and the score does
        falls = np.abs(beside.gradient).max() < np.abs(found.gradient).max()
        same = abs(beside.value - found.value) <= 1e-12 * abs(found.value)
        if beside.value < found.value or (same and falls):
            point, found, share = trial, beside, max(share / 10, LEAST_SHARE)
        else:
            share *= 10
    raise NumericError(
        f"the pooled fit did not converge in {passes} passes: one class alone, classes that are "
        "nearly separable, or features that are nearly collinear; a larger estimator.ridge is "
        "needed"
    )


@np.errstate(over="ignore", invalid="ignore")  # a step out of the range of numbers is not taken
def _sums(plan: Plan, read: Read, point: Vector, weights: tuple[float, float]) -> _Sums:
    size, loss = plan.size, plan.loss
    value, gradient = 0.0, np.zeros(size)
    curvature, gram = np.zeros((size, size)), np.zeros((size, size))
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
            gram += (design * weight[:, None]).T @ design
            count += len(responses)
    # counts without noise have no bound; any scale does, since a step that fails raises the share
    bound = min(loss.sharp_curvature_bound, max(plan.study.data.response.ends[1], 1.0))
    if plan.classes:
        bound = loss.sharp_curvature_bound
    # a study by record has no penalty
    ridge = 0.0 if plan.by_record else plan.study.estimator.ridge
    penalty = ridge * np.append(0.0, np.ones(size - 1))
    return _Sums(
        value / count + float(penalty @ point**2) / 2,
        gradient / count + penalty * point,
        curvature / count + np.diag(penalty),
        bound * gram / count + np.diag(penalty),
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
