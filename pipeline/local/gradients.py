"""The gradients of single records at an expansion point, for studies with locally private records.

A record gives w(x) s(y, x' theta) x with the weight w(x) = min(1, radius^2 / |x|^2) of the intercept
and the features together, so that its norm is at most radius times the largest slope whatever the
record is. Weights bound the influence of a record without bending the estimate, as clipped gradients
would. Source: ldp-sgd, losses; Mallows weights.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.local.model import Model
from pipeline.local.plan import Plan
from pipeline.local.summarise import (
    GRADIENT_BITS,
    BoundedSums,
    Exact,
    design_of,
    finite,
    predictors,
    truncate,
)
from pipeline.types import Matrix, Vector


def record_gradients(plan: Plan, features: Matrix, responses: Vector, model: Model) -> Matrix:
    """Return the weighted gradient of each record, shape (n, d), in float64.

    Parameters
    ----------
    features, responses
        Shapes (n, p) and (n,), encoded; n may be 0.
    model
        Where the gradients are taken.
    """
    design = weighted(plan, features)
    slope = plan.loss.slope(predictors(design_of(features, plan), model.coefficients), responses)
    gradients: Matrix = design * slope[:, None]
    return gradients


def bounded_gradients(plan: Plan, features: Matrix, responses: Vector, model: Model) -> BoundedSums:
    """Return the gradients of a window as exact integers, one record after the other.

    Slots without a record hold zeros: what leaves has the same length and noise for them.

    Raises
    ------
    PrivacyError
        If there are more records than slots.
    """
    if len(responses) > plan.slots:
        raise PrivacyError(f"a window holds at most {plan.slots} records (window.records)")
    inside = np.clip(finite(features), -plan.magnitudes, plan.magnitudes)
    bound = plan.loss.slope_bound
    predictor = predictors(design_of(inside, plan), model.coefficients)
    slope = np.clip(finite(plan.loss.slope(predictor, responses)), -bound, bound)
    columns = plan.column_exponents
    feature_bits, slope_bits = GRADIENT_BITS
    top = int(np.ceil(np.log2(bound)))
    exponents = columns - feature_bits + (top - slope_bits)
    rows = truncate(weighted(plan, inside), columns - feature_bits)
    factors = truncate(slope, top - slope_bits)
    whole = np.zeros((plan.slots, plan.size), dtype=np.int64)
    # a product of 20 and 20 bits is exact in float64
    whole[: len(slope)] = np.ldexp(rows * factors[:, None], -exponents).astype(np.int64)
    return BoundedSums(
        model=model,
        gradient=Exact(whole.ravel(), np.tile(exponents, plan.slots)),
        curvature=None,
        counts=Exact(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)),
    )


def weighted(plan: Plan, features: Matrix) -> Matrix:
    """Return w(x) (1, x), shape (n, d), of norm at most the radius."""
    design = design_of(features, plan)
    if plan.radius >= plan.longest:
        return design
    # a hair below the bound, so that the rounding of the product cannot pass it
    square = plan.radius**2 * (1.0 - 2.0**-40)
    return design * np.minimum(1.0, square / (design * design).sum(axis=1))[:, None]
