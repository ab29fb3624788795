"""A window of a site: its score and curvature at the model, exact and within public bounds.

A record (1, x) beyond the norm bound R weighs R^2 / |(1, x)|^2 in both sums. The weight depends on
x alone, so that it does not bias what the score is zero at (docs/methods/noisy-mle.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import PrivacyError
from pipeline.linalg import pack_upper
from pipeline.losses import Regression
from pipeline.records.blocks import (
    CURVATURE_BITS,
    GRADIENT_BITS,
    exact_sums,
    exponent_of,
    finite,
    one_or_all,
    predictors,
    whole_factors,
    with_intercept,
)
from pipeline.records.encode import Arrays
from pipeline.release.model import Model
from pipeline.release.query import Exact, MatrixPart, Part, Query, VectorPart
from pipeline.release.rows import inside
from pipeline.types import Vector

#: Squares and products of a record have up to 40 bits, and those of so many stay below 2^63.
MOST_RECORDS = 2**22

if TYPE_CHECKING:
    from pipeline.methods.noisy_mle.task import SiteTask


def query(task: SiteTask, window: Arrays, model: Model) -> Query:
    """As `Task.query`: whatever the model and the records hold, the bounds of the task hold.

    Units are the task's alone, so that the sums of blocks add up.
    """
    features, responses = inside(window.features, task), window.responses
    if len(responses) > task.slots:
        raise PrivacyError(f"a window holds at most {task.slots} records (window.records)")
    weight = task.record_weights(with_intercept(features))
    columns = task.column_exponents
    scale = one_or_all(np.ldexp(1.0, GRADIENT_BITS[0] - columns))
    design = with_intercept(features, scale)
    slope, curvature, bound = _derivatives(
        task,
        predictors(design, model.coefficients / scale),
        responses,
        task.at_start(model.version),
    )
    slopes, slope_unit = whole_factors(weight * slope, bound, GRADIENT_BITS[1])
    curved, curved_unit = whole_factors(
        weight * curvature, task.loss.curvature_bound, CURVATURE_BITS[1]
    )
    gradient, products = exact_sums(design, slopes, curved)
    channels = task.channels(model.version)
    parts: dict[str, Part] = {
        "gradient": VectorPart(
            Exact(gradient, columns + (slope_unit - GRADIENT_BITS[0])),
            channels.gradient,
            task.slots,
        ),
        "curvature": MatrixPart(
            Exact(
                pack_upper(products),
                task.product_exponents + (curved_unit - 2 * CURVATURE_BITS[0]),
            ),
            channels.curvature,
            channels.off_diagonal,
            task.size,
            task.slots,
        ),
    }
    if channels.squares is not None:
        squares = _squares(np.sqrt(weight) * slope, bound)
        parts["squares"] = VectorPart(squares, channels.squares, task.slots)
    return Query(model, parts)


def _derivatives(
    task: SiteTask, predictor: Vector, responses: Vector, start: bool
) -> tuple[Vector, Vector, float]:
    """Return slopes and curvatures within their bounds, (n,), and the bound of the slopes."""
    loss = task.loss
    if start and isinstance(loss, Regression):
        # nothing is cut there, so that the curvature is the same for all records
        slope, curvature = loss.start_slope(responses), np.full(len(responses), 1.0)
    else:
        slope, curvature = loss.slope(predictor, responses), loss.curvature(predictor, responses)
    bound = loss.start_slope_bound if start else loss.slope_bound
    kept = np.clip(finite(slope), -bound, bound)
    return kept, np.clip(finite(curvature), 0.0, loss.curvature_bound), bound


def _squares(slope: Vector, bound: float) -> Exact:
    """Sum the squared slopes exactly."""
    exponent = exponent_of(bound) - GRADIENT_BITS[1]
    whole = np.trunc(np.ldexp(slope, -exponent)).astype(np.int64)
    total = np.array([np.sum(whole * whole)], dtype=np.int64)
    return Exact(total, np.array([2 * exponent], dtype=np.int64))
