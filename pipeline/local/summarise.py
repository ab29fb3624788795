"""A window of records to its sums at an expansion point: gradient, curvature, class counts.

Two forms. `summarise` is plain float64, for studies without privacy. `summarise_bounded` is what
a private release starts from: it clips, truncates features and weights to dyadic fractions so
that every product and every sum is exact in float64, and so keeps the stated sensitivity without
any reliance on rounding (proof note: docs/privacy/discrete-gaussian.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper, solve_positive, upper_indices
from pipeline.local.model import Model
from pipeline.local.plan import Plan
from pipeline.losses import Loss, Regression
from pipeline.types import Integers, Matrix, Vector

#: Bits of a feature and of a record's slope in an exact gradient, of a feature and of a record's
#: curvature in an exact Hessian. With blocks of 2^10 records, 20 + 20 + 10 and 12 + 12 + 14 + 10
#: bits stay below the 53 of a float64.
GRADIENT_BITS = (20, 20)
CURVATURE_BITS = (12, 14)
BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Summary:
    """Exact sums over the records of one window; raw data, so nothing can encode it.

    Attributes
    ----------
    records
        How many records entered.
    expansion
        The point of linearisation, shape (d,).
    gradient, curvature
        Sum of weighted slopes times (1, x), shape (d,); of weighted curvatures times the outer
        products, shape (d, d). No ridge: the estimate adds it.
    scores
        Sum of the outer products of the records' gradients, shape (d, d).
    counts
        Records of the negative and the positive class; zeros if there are no classes.
    """

    records: int
    expansion: Vector
    gradient: Vector
    curvature: Matrix
    scores: Matrix
    counts: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Exact:
    """Sums as integers: entry i stands for integers[i] * 2^exponents[i]."""

    integers: Integers
    exponents: Integers


@dataclass(frozen=True, slots=True)
class BoundedSums:
    """Sums of clipped records, exact; raw data as well, so nothing can encode it.

    Attributes
    ----------
    model
        The model at which they were taken.
    gradient
        d entries; at the start d for each group, the negative class first.
    curvature
        Packed upper triangle, d (d + 1) / 2 entries; None at the start.
    counts
        Records of the negative and the positive class; or the sum of squared slopes, one entry, or
        none at the start or where the noise scale is known.
    """

    model: Model
    gradient: Exact
    curvature: Exact | None
    counts: Exact


def summarise(
    plan: Plan, features: Matrix, responses: Vector, point: Vector, weights: tuple[float, float]
) -> Summary:
    """Sum gradients, curvatures and score products at `point`.

    Parameters
    ----------
    features, responses
        Shapes (n, p) and (n,), encoded; n may be 0.
    point
        Shape (d,) with d = p + 1.
    weights
        Of the negative and the positive class.
    """
    design = _with_intercept(features, plan)
    weight = np.where(responses > 0, weights[1], weights[0])
    predictor = design @ point
    slope = weight * plan.loss.slope(predictor, responses)
    scores = design * slope[:, None]
    curved = design * (weight * plan.loss.curvature(predictor, responses))[:, None]
    return Summary(
        records=len(responses),
        expansion=point,
        gradient=scores.sum(axis=0),
        curvature=curved.T @ design,
        scores=scores.T @ scores,
        counts=_counts(responses) if plan.classes else (0, 0),
    )


def summarise_bounded(plan: Plan, features: Matrix, responses: Vector, model: Model) -> BoundedSums:
    """Sum clipped gradients and curvatures exactly, for a private release.

    Parameters
    ----------
    features, responses
        Shapes (n, p) and (n,) with n <= plan.slots; slots without a record contribute nothing.
    model
        The expansion point. Whatever it holds, one record moves the sums by no more than the
        plan's sensitivities: weights beyond the public maximum are cut here, and so are features
        beyond their public range.

    Raises
    ------
    PrivacyError
        If there are more records than slots.
    """
    if len(responses) > plan.slots:
        raise PrivacyError(f"a window holds at most {plan.slots} records (window.records)")
    inside = np.clip(_finite(features), -plan.magnitudes, plan.magnitudes)
    design = _with_intercept(inside, plan)
    columns = plan.column_exponents
    predictor = predictors(design, model.coefficients)
    slope = _finite(plan.loss.slope(predictor, responses))
    if model.version == 0:
        if isinstance(plan.loss, Regression):
            slope = _finite(plan.loss.start_slope(responses))
        bound = plan.start_slope_bound
        slope = np.clip(slope, -bound, bound)
        groups = (responses < 0, responses > 0) if plan.classes else (np.full(len(slope), True),)
        parts = [
            _exact_gradient(design, np.where(chosen, slope, 0.0), columns, _exponent(bound))
            for chosen in groups
        ]
        gradient = Exact(
            np.concatenate([part.integers for part in parts]),
            np.concatenate([part.exponents for part in parts]),
        )
        return BoundedSums(model, gradient, None, _exact_counts(plan, responses, slope, 0))
    most = plan.largest_weight
    # a weight that is no number fails the comparison and is cut as well
    negative, positive = (w if 0 <= w <= most else most for w in model.class_weights)
    weight = np.where(responses > 0, positive, negative)
    bound = plan.largest_weight * plan.loss.slope_bound
    slope = np.clip(weight * slope, -bound, bound)
    curvature_bound = plan.largest_weight * plan.loss.curvature_bound
    curvature = weight * _finite(plan.loss.curvature(predictor, responses))
    curvature = np.clip(curvature, 0.0, curvature_bound)
    return BoundedSums(
        model=model,
        gradient=_exact_gradient(design, slope, columns, _exponent(bound)),
        curvature=_exact_curvature(design, curvature, columns, _exponent(curvature_bound)),
        counts=_exact_counts(plan, responses, slope, model.version),
    )


def predictors(design: Matrix, coefficients: Vector) -> Vector:
    """Return the linear predictor of each record, shape (n,), the same whatever rows are beside it.

    A matrix product may round a row by where it stands: leaving out one record would then move
    the terms of others, and the sensitivity would not be that of the computed sums.
    """
    sums: Vector = (design * coefficients).sum(axis=1)
    return sums


def local_fit(
    loss: Loss, features: Matrix, responses: Vector, ridge: float, *, rounds: int = 8
) -> Vector:
    """Fit one window by a few damped Newton steps from the public start, shape (d,).

    A start for studies without privacy only: the first window of a client is linearised where it
    has curvature (spec of the renewable method, start-up).
    """
    design = np.column_stack([np.ones(len(responses)), features])
    size = design.shape[1]
    penalty = len(responses) * max(ridge, 1e-6) * np.diag([1e-3] + [1.0] * (size - 1))
    point = np.append(loss.start_intercept, np.zeros(size - 1))
    # keeps the step finite where no record has curvature yet
    least = 1e-2 * min(loss.curvature_bound / 8, loss.start_curvature) * (design.T @ design)

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


def _with_intercept(features: Matrix, plan: Plan) -> Matrix:
    """Return (1, x) for each record, shortened to the public bound where the ranges allow more."""
    rows = features
    if plan.norm_bound < plan.longest:
        # a hair below the bound, so that the rounding of the product cannot pass it
        room = np.sqrt(plan.norm_bound**2 - 1.0) * (1.0 - 2.0**-40)
        norms = np.linalg.norm(rows, axis=1)
        rows = rows * np.minimum(1.0, room / np.maximum(norms, room))[:, None]
    return np.column_stack([np.ones(len(rows)), rows])


def _exact_gradient(design: Matrix, slope: Vector, columns: Integers, top: int) -> Exact:
    feature_bits, slope_bits = GRADIENT_BITS
    exponents = columns - feature_bits + (top - slope_bits)
    rows = _truncate(design, columns - feature_bits)
    factors = _truncate(slope, top - slope_bits)
    total = np.zeros(design.shape[1], dtype=np.int64)
    for start in range(0, len(slope), BLOCK):
        part = slice(start, start + BLOCK)
        total += np.ldexp(rows[part].T @ factors[part], -exponents).astype(np.int64)
    return Exact(total, exponents)


def _exact_curvature(design: Matrix, curvature: Vector, columns: Integers, top: int) -> Exact:
    feature_bits, curvature_bits = CURVATURE_BITS
    rows = _truncate(design, columns - feature_bits)
    factors = _truncate(curvature, top - curvature_bits)
    left, right = upper_indices(design.shape[1])
    exponents = columns[left] + columns[right] - 2 * feature_bits + (top - curvature_bits)
    total = np.zeros(len(exponents), dtype=np.int64)
    for start in range(0, len(curvature), BLOCK):
        part = slice(start, start + BLOCK)
        block = pack_upper((rows[part] * factors[part, None]).T @ rows[part])
        total += np.ldexp(block, -exponents).astype(np.int64)
    return Exact(total, exponents)


def _exact_counts(plan: Plan, responses: Vector, slope: Vector, version: int) -> Exact:
    """Count the classes, or sum the squared slopes of a regression."""
    if plan.classes:
        return Exact(np.array(_counts(responses)), np.zeros(2, dtype=np.int64))
    counted = plan.counted(version)
    # squares of 40 bits and a window of 2^17 stay below 2^63; fewer bits would lose small residuals
    exponent = _exponent(plan.loss.slope_bound) - GRADIENT_BITS[1]
    whole = np.trunc(np.ldexp(slope, -exponent)).astype(np.int64)
    total = np.full(counted, np.sum(whole * whole), dtype=np.int64)
    return Exact(total, np.full(counted, 2 * exponent, dtype=np.int64))


def _finite(values: Vector | Matrix) -> Matrix:
    """Return features, slopes or curvatures with 0 where there is no number."""
    return np.where(np.isnan(values), 0.0, values)


def _exponent(bound: float) -> int:
    return int(np.ceil(np.log2(bound)))


def _truncate(values: Matrix | Vector, exponent: Integers | int) -> Matrix:
    """Cut towards zero to multiples of 2^exponent: magnitudes never grow."""
    whole = np.trunc(np.ldexp(values, -np.asarray(exponent)))
    cut: Matrix = np.ldexp(whole, exponent)
    return cut


def _counts(responses: Vector) -> tuple[int, int]:
    positive = int(np.count_nonzero(responses > 0))
    return len(responses) - positive, positive
