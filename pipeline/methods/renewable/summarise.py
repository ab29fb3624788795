"""A window of records to its sums at an expansion point: gradient, curvature, middle, counts.

Two forms. `summarise` is plain float64, for studies without privacy. `summarise_bounded` is what
a private release starts from: it clips, truncates features and weights to dyadic fractions so
that every product and every sum is exact in float64, and so keeps the stated sensitivity without
any reliance on rounding (proof note: docs/privacy/discrete-gaussian.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper, solve_positive
from pipeline.losses import Loss, Regression
from pipeline.records.blocks import (
    CURVATURE_BITS,
    GRADIENT_BITS,
    blocks,
    exact_sums,
    exponent_of,
    finite,
    one_or_all,
    predictors,
    whole_factors,
    with_intercept,
)
from pipeline.release.model import Model
from pipeline.release.query import NOTHING, Exact
from pipeline.release.rows import clipped_to_norm, inside, weight_of
from pipeline.types import Matrix, Vector

if TYPE_CHECKING:
    from pipeline.methods.renewable.task import RenewableTask


@dataclass(frozen=True, slots=True)
class Summary:
    """Exact sums over the records of one window; raw data, so nothing can encode it.

    records: How many records entered.
    expansion: The point of linearisation, shape (d,).
    gradient, curvature: Sum of weighted slopes times (1, x), shape (d,); of weighted curvatures
        times the outer products, shape (d, d). No ridge: the estimate adds it.
    scores: Sum of the outer products of the records' gradients, shape (d, d).
    counts: Records of the negative and the positive class; zeros if there are no classes.
    """

    records: int
    expansion: Vector
    gradient: Vector
    curvature: Matrix
    scores: Matrix
    counts: tuple[int, int]


@dataclass(frozen=True, slots=True)
class BoundedSums:
    """Sums of clipped records, exact; raw data as well, so nothing can encode it.

    model: The model at which they were taken.
    gradient: d entries; at the start d for each group, the negative class first.
    curvature, middle: Packed upper triangles, d (d + 1) / 2 entries each, of the curvature and of
        the sum of outer products of the records' gradients; None where one is not released.
    counts: Records of the negative and the positive class; or the sum of squared slopes, one entry,
        or none at the start or where the noise scale is known.
    """

    model: Model
    gradient: Exact
    curvature: Exact | None
    middle: Exact | None
    counts: Exact


def summarise(
    task: RenewableTask,
    features: Matrix,
    responses: Vector,
    point: Vector,
    weights: tuple[float, float],
) -> Summary:
    """Sum gradients, curvatures and score products at `point`.

    features, responses: Shapes (n, p) and (n,), encoded; n may be 0.
    point: Shape (d,) with d = p + 1.
    weights: Of the negative and the positive class.
    """
    d = task.size
    gradient, curvature, scores = np.zeros(d), np.zeros((d, d)), np.zeros((d, d))
    design = with_intercept(clipped_to_norm(features, task))
    weight = weight_of(weights, responses)
    predictor = design @ point
    slope = weight * task.loss.slope(predictor, responses)
    curvature_weight = weight * task.loss.curvature(predictor, responses)
    for part, work in blocks(design):
        np.multiply(design[part], slope[part, None], out=work)
        gradient += work.sum(axis=0)
        scores += work.T @ work
        np.multiply(design[part], curvature_weight[part, None], out=work)
        curvature += work.T @ design[part]
    counts = _counts(responses) if task.classes else (0, 0)
    return Summary(len(responses), point, gradient, curvature, scores, counts)


def summarise_bounded(
    task: RenewableTask, features: Matrix, responses: Vector, model: Model
) -> BoundedSums:
    """Sum clipped gradients and curvatures exactly, for a private release.

    features, responses: Shapes (n, p) and (n,) with n <= task.slots; slots without a record
        contribute nothing.
    model: The expansion point. Whatever it holds, one record moves the sums by no more than the
        task's sensitivities: weights beyond the public maximum are cut here, and so are features
        beyond their public range.

    Raises PrivacyError if there are more records than slots.
    """
    if len(responses) > task.slots:
        raise PrivacyError(f"a window holds at most {task.slots} records (window.records)")
    # rows in units of their last bit: powers of two, which change no digit of the predictors
    columns = task.column_exponents
    scale = one_or_all(np.ldexp(1.0, GRADIENT_BITS[0] - columns))
    design = with_intercept(clipped_to_norm(inside(features, task), task), scale)
    predictor = predictors(design, model.coefficients / scale)
    slope = finite(task.loss.slope(predictor, responses))
    if model.version == 0:
        # looked up by name: to ask whether it is a `Regression` takes longer than the slopes
        if hasattr(task.loss, "start_slope"):
            slope = finite(task.loss.start_slope(responses))
        bound = task.loss.start_slope_bound
        slope = np.clip(slope, -bound, bound)
        groups = (responses < 0, responses > 0) if task.classes else (np.full(len(slope), True),)
        chosen = np.stack([np.where(group, slope, 0.0) for group in groups])
        factors, unit = whole_factors(chosen, bound, GRADIENT_BITS[1])
        (sums,) = exact_sums(design, factors)
        exponents = np.tile(columns + (unit - GRADIENT_BITS[0]), len(groups))
        gradient = Exact(sums.ravel(), exponents)
        return BoundedSums(model, gradient, None, None, _exact_counts(task, responses, slope, 0))
    most = task.largest_weight
    # a weight that is no number fails the comparison and is cut as well
    negative, positive = (w if 0 <= w <= most else most for w in model.class_weights)
    weight = weight_of((negative, positive), responses)
    slope_bound, curvature_bound = most * task.loss.slope_bound, most * task.loss.curvature_bound
    slope = np.clip(weight * slope, -slope_bound, slope_bound)
    curvature_weight = np.maximum(weight * finite(task.loss.curvature(predictor, responses)), 0.0)
    slopes, slope_unit = whole_factors(slope, slope_bound, GRADIENT_BITS[1])
    weights = [whole_factors(curvature_weight, curvature_bound, CURVATURE_BITS[1])]
    if task.update_channels.middle is not None:
        weights.append(whole_factors(slope * slope, slope_bound * slope_bound, CURVATURE_BITS[1]))
    totals, *matrices = exact_sums(design, slopes, *(factors for factors, _ in weights))
    curvature, *middle = (
        Exact(pack_upper(matrix), task.product_exponents + (unit - 2 * CURVATURE_BITS[0]))
        for matrix, (_, unit) in zip(matrices, weights, strict=True)
    )
    return BoundedSums(
        model=model,
        gradient=Exact(totals, columns + (slope_unit - GRADIENT_BITS[0])),
        curvature=curvature,
        middle=middle[0] if middle else None,
        counts=_exact_counts(task, responses, slope, model.version),
    )


def local_fit(
    loss: Loss, features: Matrix, responses: Vector, ridge: float, *, rounds: int = 8
) -> Vector:
    """Fit one window by a few damped Newton steps from the public start, shape (d,).

    A start for studies without privacy only: the first window of a client is linearised where it
    has curvature, which generalised DWD has not at zero.
    """
    if loss.responses == "count" and not responses.any():
        # counts of zero alone have no best fit: half a count in all of them stands for one
        return np.append(math.log(0.5 / len(responses)), np.zeros(features.shape[1]))
    design = np.column_stack([np.ones(len(responses)), features])
    size = design.shape[1]
    # one class alone would drive the intercept to where the loss has no curvature left, and with it
    # the whole stream: the point is then held near zero
    one_class = loss.responses == "class" and abs(float(np.sum(responses))) == len(responses)
    held = max(ridge, 1e-6)
    lightly = max(1e-3 * held, 1.0 if one_class else 0.0)
    penalty = len(responses) * np.diag([lightly] + [held] * (size - 1))
    point, scale = np.append(loss.start_intercept, np.zeros(size - 1)), loss.start_curvature
    if isinstance(loss, Regression):
        # a start far above all counts would take more rounds than there are
        slopes = loss.start_slope(responses)
        point[0] = loss.intercept_of(float(np.mean(slopes)), 1 / len(responses))
        scale = float(np.mean(loss.curvature(design @ point, responses)))
    # keeps the step finite where no record has curvature yet
    least = 1e-2 * min(loss.curvature_bound / 8, scale) * (design.T @ design)

    def objective(at: Vector) -> float:
        return float(np.sum(loss.value(design @ at, responses)) + at @ penalty @ at / 2)

    current = objective(point)
    for _ in range(rounds):
        predictor = design @ point
        gradient = design.T @ loss.slope(predictor, responses) + penalty @ point
        curved = design * loss.curvature(predictor, responses)[:, None]
        matrix = curved.T @ design + penalty
        direction = solve_positive(matrix + least + 1e-9 * np.eye(size), gradient)
        step = 1.0
        while step > 1e-4 and objective(point - step * direction) >= current:
            step /= 2
        point = point - step * direction
        current = objective(point)
    return point


def _exact_counts(task: RenewableTask, responses: Vector, slope: Vector, version: int) -> Exact:
    """Count the classes, or sum the squared slopes of a regression."""
    if task.classes:
        return Exact(np.array(_counts(responses)), np.zeros(2, dtype=np.int64))
    counted = task.counted(version)
    if not counted:
        # slopes at the start have a bound of their own, and their squares may not fit
        return NOTHING
    # squares of 40 bits; fewer would lose small residuals
    exponent = exponent_of(task.loss.slope_bound) - GRADIENT_BITS[1]
    whole = np.trunc(np.ldexp(slope, -exponent)).astype(np.int64)
    total = np.full(counted, np.sum(whole * whole), dtype=np.int64)
    return Exact(total, np.full(counted, 2 * exponent, dtype=np.int64))


def _counts(responses: Vector) -> tuple[int, int]:
    positive = int(np.count_nonzero(responses > 0))
    return len(responses) - positive, positive
