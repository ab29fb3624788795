"""The gradients of single records at an expansion point, and sums of matrices beside them.

A record gives w(x) s(y, x' theta) x with the weight w(x) = min(1, clipping_norm^2 / |x|^2),
intercept included, so that its norm is at most clipping_norm times the largest slope whatever the
record is. Weights bound the influence of a record without bending the estimate, as clipped
gradients would. A study may also release the window's sums of the curvatures w h x x' and of the
gradients' outer products.
Source: ldp-sgd, losses; Mallows weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper
from pipeline.records.blocks import (
    CURVATURE_BITS,
    GRADIENT_BITS,
    exact_sums,
    finite,
    predictors,
    whole_factors,
    with_intercept,
)
from pipeline.release.model import Model
from pipeline.release.query import Exact
from pipeline.release.rows import inside
from pipeline.types import Integers, Matrix, Vector

if TYPE_CHECKING:
    from pipeline.methods.ldp_sgd.task import GradientTask


@dataclass(frozen=True, slots=True)
class RecordSums:
    """The gradients of a window's clipped records, exact; raw data, so nothing can encode it.

    model: The model at which they were taken.
    gradient: d entries for each slot, one slot after the other.
    curvature, products: Sums of curvatures, and of the outer products of gradients, packed; None
        where they are not released.
    levels: The place of each slot's level of privacy, 0 for the strictest, shape (slots,).
    """

    model: Model
    gradient: Exact
    curvature: Exact | None
    products: Exact | None
    levels: Integers


@dataclass(frozen=True, slots=True)
class OpenSums:
    """The same as floats, for a study without privacy.

    records: How many records entered.
    gradients: Shape (slots, d); zeros where there is no record.
    curvature, products: Shape (d, d); None where they are not released.
    """

    records: int
    gradients: Matrix
    curvature: Matrix | None
    products: Matrix | None


def record_gradients(
    task: GradientTask, features: Matrix, responses: Vector, model: Model
) -> Matrix:
    """Return the weighted gradient of each record, shape (n, d), in float64.

    features, responses: Shapes (n, p) and (n,), encoded; n may be 0.
    model: Where the gradients are taken.
    """
    design = with_intercept(features)
    slope = task.loss.slope(predictors(design, model.coefficients), responses)
    gradients: Matrix = weighted(task, design) * slope[:, None]
    return gradients


def open_gradients(
    task: GradientTask, features: Matrix, responses: Vector, model: Model
) -> OpenSums:
    """Return the gradients of a window and its matrices as they are, for a study without privacy.

    Slots without a record hold zeros.
    """
    whole = np.zeros((task.slots, task.size))
    whole[: len(responses)] = record_gradients(task, features, responses, model)
    curvature = products = None
    if "curvature" in task.shares:
        design = with_intercept(features)
        curvature_weight = task.loss.curvature(predictors(design, model.coefficients), responses)
        rows = weighted(task, design, root=True)
        curvature = (rows * curvature_weight[:, None]).T @ rows
    if "products" in task.shares:
        products = whole.T @ whole
    return OpenSums(len(responses), whole, curvature, products)


def bounded_gradients(
    task: GradientTask,
    features: Matrix,
    responses: Vector,
    model: Model,
    levels: Integers | None = None,
) -> RecordSums:
    """Return the gradients of a window as exact integers, one record after the other.

    The sums of matrices that the study releases go with them. Slots without a record, whose
    response is NaN, and those behind the last one hold zeros: what leaves has the same length and
    noise for them.

    features, responses, model: As for `record_gradients`.
    levels: The place of each record's level of privacy, shape (n,); by default that of slots
        without a record.

    Raises PrivacyError if there are more records than slots.
    """
    if len(responses) > task.slots:
        raise PrivacyError(f"a window holds at most {task.slots} records (window.records)")
    design = with_intercept(inside(features, task))
    bound = task.loss.slope_bound
    predictor = predictors(design, model.coefficients)
    slope = finite(task.loss.slope(predictor, responses))
    columns, (feature_bits, slope_bits) = task.column_exponents, GRADIENT_BITS
    # cut towards zero, so that no magnitude grows; a product of 20 and 20 bits is exact
    bounded = weighted(task, design)
    rows = np.trunc(bounded * np.ldexp(1.0, feature_bits - columns))
    factors, unit = whole_factors(slope, bound, slope_bits)
    whole = np.zeros((task.slots, task.size), dtype=np.int64)
    whole[: len(slope)] = rows * factors[:, None]
    exponents = columns - feature_bits + unit
    # one exponent stands for all numbers where they agree, as they do for ranges of one unit
    same = bool((exponents == exponents[0]).all())
    exponents = exponents[:1] if same else np.tile(exponents, task.slots)
    curvature = products = None
    if "curvature" in task.shares:
        curvature_weight = np.maximum(finite(task.loss.curvature(predictor, responses)), 0.0)
        # some losses bend the same way whatever the response is, and so in an empty slot
        curvature_weight = np.where(np.isnan(responses), 0.0, curvature_weight)
        rows = weighted(task, design, root=True)
        curvature = _exact_matrix(task, rows, curvature_weight, task.loss.curvature_bound)
    if "products" in task.shares:
        # the square of a cut slope is within the square of its bound up to rounding, and cut again
        products = _exact_matrix(task, bounded, np.clip(slope, -bound, bound) ** 2, bound**2)
    places = np.full(task.slots, task.budget.empty_level, dtype=np.int64)
    if levels is not None:
        places[: len(levels)] = np.where(np.isnan(responses), task.budget.empty_level, levels)
    gradient = Exact(whole.ravel(), exponents)
    return RecordSums(model, gradient, curvature, products, places)


def mallows(design: Matrix, clipping_norm: float) -> Vector:
    """Return the weight of each record (1, x), shape (n,): a longer one counts as if clipped.

    A hair below the bound, so that the rounding of products cannot pass it.
    """
    square = clipping_norm**2 * (1.0 - 2.0**-40)
    weights: Vector = np.minimum(1.0, square / (design * design).sum(axis=1))
    return weights


def weighted(task: GradientTask, design: Matrix, *, root: bool = False) -> Matrix:
    """Return w(x) (1, x), or the root of w(x) times (1, x): of norm at most the clipping_norm."""
    if task.clipping_norm >= task.longest:
        return design
    weights = mallows(design, task.clipping_norm)
    found: Matrix = design * (np.sqrt(weights) if root else weights)[:, None]
    return found


def _exact_matrix(task: GradientTask, rows: Matrix, factors: Vector, bound: float) -> Exact:
    """Sum factors, of at most `bound`, times the outer products of rows, exactly; packed."""
    whole, unit = whole_factors(factors, bound, CURVATURE_BITS[1])
    design = rows * np.ldexp(1.0, GRADIENT_BITS[0] - task.column_exponents)
    _, total = exact_sums(design, np.zeros((0, len(rows))), whole)
    exponents = task.product_exponents + (unit - 2 * CURVATURE_BITS[0])
    return Exact(pack_upper(total), exponents)
