"""The gradients of single records at an expansion point, for locally private releases.

A record gives w(x) s(y, x' theta) x with the weight w(x) = min(1, radius^2 / |x|^2), intercept
included, so that its norm is at most radius times the largest slope whatever the record is. Weights
bound the influence of a record without bending the estimate, as clipped gradients would.
Source: ldp-sgd, losses; Mallows weights.
"""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.local.blocks import GRADIENT_BITS, predictors, with_intercept
from pipeline.local.model import Model
from pipeline.local.plan import Plan
from pipeline.local.summarise import BoundedSums, Exact, Summary
from pipeline.types import Integers, Matrix, Vector

_NOTHING = Exact(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def record_gradients(plan: Plan, features: Matrix, responses: Vector, model: Model) -> Matrix:
    """Return the weighted gradient of each record, shape (n, d), in float64.

    Parameters
    ----------
    features, responses
        Shapes (n, p) and (n,), encoded; n may be 0.
    model
        Where the gradients are taken.
    """
    design = with_intercept(features)
    slope = plan.loss.slope(predictors(design, model.coefficients), responses)
    gradients: Matrix = _weighted(plan, design) * slope[:, None]
    return gradients


def open_gradients(plan: Plan, features: Matrix, responses: Vector, model: Model) -> Summary:
    """Return the gradients of a window as they are, for a study without privacy.

    Slots without a record hold zeros.
    """
    whole = np.zeros((plan.slots, plan.size))
    whole[: len(responses)] = record_gradients(plan, features, responses, model)
    nothing = np.zeros((0, 0))
    return Summary(len(responses), model.coefficients, whole.ravel(), nothing, nothing, (0, 0))


def bounded_gradients(
    plan: Plan,
    features: Matrix,
    responses: Vector,
    model: Model,
    levels: Integers | None = None,
) -> BoundedSums:
    """Return the gradients of a window as exact integers, one record after the other.

    Slots without a record, whose response is NaN, and those behind the last one hold zeros: what
    leaves has the same length and noise for them.

    Parameters
    ----------
    features, responses, model
        As for `record_gradients`.
    levels
        The place of each record's level of privacy, shape (n,); by default the strictest, as for
        slots without a record.

    Raises
    ------
    PrivacyError
        If there are more records than slots.
    """
    if len(responses) > plan.slots:
        raise PrivacyError(f"a window holds at most {plan.slots} records (window.records)")
    numbers = np.where(np.isnan(features), 0.0, features)
    design = with_intercept(np.minimum(np.maximum(numbers, -plan.magnitudes), plan.magnitudes))
    bound = plan.loss.slope_bound
    slope = plan.loss.slope(predictors(design, model.coefficients), responses)
    slope = np.minimum(np.maximum(np.where(np.isnan(slope), 0.0, slope), -bound), bound)
    columns, (feature_bits, slope_bits) = plan.column_exponents, GRADIENT_BITS
    top = math.ceil(math.log2(bound))
    # cut towards zero, so that no magnitude grows; a product of 20 and 20 bits is exact
    rows = np.trunc(_weighted(plan, design) * np.ldexp(1.0, feature_bits - columns))
    factors = np.trunc(np.ldexp(slope, slope_bits - top))
    whole = np.zeros((plan.slots, plan.size), dtype=np.int64)
    whole[: len(slope)] = rows * factors[:, None]
    exponents = columns - feature_bits + (top - slope_bits)
    # one exponent stands for all numbers where they agree, as they do for ranges of one unit
    same = bool((exponents == exponents[0]).all())
    exponents = exponents[:1] if same else np.tile(exponents, plan.slots)
    places = np.zeros(plan.slots, dtype=np.int64)
    if levels is not None:
        places[: len(levels)] = levels
    return BoundedSums(model, Exact(whole.ravel(), exponents), None, _NOTHING, places)


def weights_of(plan: Plan, design: Matrix) -> Vector:
    """Return the weights w(x) of rows (1, x), shape (n,), in (0, 1]."""
    if plan.radius >= plan.longest:
        return np.ones(len(design))
    # a hair below the bound, so that the rounding of the product cannot pass it
    square = plan.radius**2 * (1.0 - 2.0**-40)
    weights: Vector = np.minimum(1.0, square / (design * design).sum(axis=1))
    return weights


def _weighted(plan: Plan, design: Matrix) -> Matrix:
    """Return w(x) (1, x), of norm at most the radius."""
    if plan.radius >= plan.longest:
        return design
    weighted: Matrix = design * weights_of(plan, design)[:, None]
    return weighted
