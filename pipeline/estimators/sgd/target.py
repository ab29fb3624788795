"""What a path aims at: the minimiser of the mean weighted loss of records that can all be seen.

It is for comparison: nobody has the records of all clients in one place where it matters.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import NumericError
from pipeline.local.blocks import with_intercept
from pipeline.local.gradients import weighted
from pipeline.local.plan import Plan
from pipeline.types import Matrix, Vector

#: A step that moves no coefficient further than this, in encoded units, is the last.
CLOSE = 1e-9
_STEPS = 1000


def target(plan: Plan, features: Matrix, responses: Vector) -> Vector:
    """Return theta* of some records, in encoded units, shape (d,).

    Each step solves for the largest curvature that the loss can have, and so never overshoots.

    Parameters
    ----------
    features, responses
        Shapes (n, p) and (n,), encoded.

    Raises
    ------
    NumericError
        If the records do not determine it.
    """
    design = with_intercept(features)
    rows = weighted(plan, design)
    largest = plan.loss.curvature_bound * (rows.T @ design)
    found = plan.first_model.coefficients
    for _ in range(_STEPS):
        slope = plan.loss.slope(design @ found, responses)
        try:
            step = np.linalg.solve(largest, rows.T @ slope)
        except np.linalg.LinAlgError:
            break
        found = found - step
        if np.abs(step).max() <= CLOSE:
            return found
    raise NumericError("these records do not determine the coefficients")
