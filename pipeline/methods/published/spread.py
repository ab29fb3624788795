"""Standard errors of a converged fit: the sandwich of its records, and when it can be trusted.

K^-1 (sum s s') K^-1 with s the gradient of one record, ridge included, and K the summed curvature.
It needs a minimiser that was reached, and enough records that carry curvature: a steep loss has
almost all of it in the few records near its knee.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import NumericError
from pipeline.linalg import sandwich
from pipeline.losses import Loss
from pipeline.methods.published.records import Records
from pipeline.types import Matrix, Vector

#: Intervals need this many records for each coefficient, and as many that carry curvature.
RECORDS_PER_COEFFICIENT = 10


def covariance_of(
    loss: Loss, records: Records, penalty: Vector, point: Vector
) -> tuple[Matrix | None, str]:
    """Return covariance (d, d) of a minimiser, or None and why; `penalty` (d,) is per record."""
    needed = RECORDS_PER_COEFFICIENT * records.size
    if len(records) < needed:
        return None, f"intervals need {needed} records; there are {len(records)}"
    weights = np.ones(len(records)) if records.weights is None else records.weights
    predictor = records.design @ point
    curvature_weight = weights * loss.sharp_curvature(predictor, records.responses)
    squares = float(np.sum(np.square(curvature_weight)))
    # so many equally curved records would say as much
    carried = float(np.sum(curvature_weight)) ** 2 / squares if squares > 0 else 0.0
    if carried < needed:
        return None, (
            f"intervals need the curvature of {needed} records; only about {carried:.0f} carry "
            "any, as the loss is nearly flat at the others: more records or a smaller q help"
        )
    slopes = weights * loss.slope(predictor, records.responses)
    scores = records.design * slopes[:, None] + penalty * point
    rows = records.design * np.sqrt(curvature_weight)[:, None]
    try:
        return sandwich(rows.T @ rows + len(records) * np.diag(penalty), scores.T @ scores), ""
    except NumericError as error:
        return None, f"no intervals: {error}"
