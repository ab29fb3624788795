"""The estimate of a study without privacy: the additive form and its sandwich.

theta = (A + n ridge R)^-1 sum (H t - g). The middle of the sandwich is the sum of score products,
each score with its ridge. Source: spec of the renewable method, additive form and cheap
extensions.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.estimate import Estimate, Status, class_weights, dispersion_of
from pipeline.estimators.open_state import OpenState
from pipeline.linalg import condition_number, sandwich, solve_positive, unpack_upper
from pipeline.local.plan import Plan
from pipeline.types import Matrix, Vector

#: Intervals need this many records for each coefficient.
RECORDS_PER_COEFFICIENT = 10


def estimate_open(plan: Plan, state: OpenState) -> Estimate:
    """Estimate the coefficients of a study without privacy.

    Parameters
    ----------
    state
        The sums of all partitions.
    """
    size = plan.size
    records, releases = int(state.part("records")[0]), int(state.part("releases")[0])
    negative, positive = (float(count) for count in state.part("counts"))
    weights = class_weights(negative, positive, plan.largest_weight)
    ridge = plan.study.estimator.ridge * np.diag([0.0] + [1.0] * (size - 1))
    bread = unpack_upper(state.part("curvature"), size) + records * ridge
    coefficients: Vector = np.zeros(size)
    covariance: Matrix | None = None
    status: Status = "empty"
    reason, condition = "no release has come yet", None
    if releases:
        condition = condition_number(bread)
        right = state.part("right")
        try:
            coefficients = solve_positive(bread, right)
            covariance = sandwich(bread, _meat(state, ridge, size))
            status, reason = "ready", ""
        except NumericError as error:
            # the shortest solution: clients need a point to go on from
            coefficients = np.asarray(np.linalg.lstsq(bread, right)[0], dtype=np.float64)
            status, reason = "warming", str(error)
        needed = RECORDS_PER_COEFFICIENT * size
        if records < needed:
            status, covariance = "warming", None
            reason = f"intervals need {needed} records; {records} have come"
    return Estimate(
        coefficients=coefficients,
        covariance=covariance,
        privacy_covariance=None if covariance is None else np.zeros((size, size)),
        weights=weights,
        status=status,
        reason=reason,
        records=records,
        releases=releases,
        condition=condition,
        floored=0,
        dispersion=_dispersion(plan, state, bread[0, 0]),
    )


def _dispersion(plan: Plan, state: OpenState, curvature: float) -> float | None:
    """Return the dispersion of a regression; its intercept stands first and has no ridge."""
    if plan.classes:
        return None
    return dispersion_of(float(state.part("scores")[0]), curvature)


def _meat(state: OpenState, ridge: Matrix, size: int) -> Matrix:
    """Sum the products of the scores s + R t over records, from sums over releases."""
    scores = unpack_upper(state.part("scores"), size)
    points = unpack_upper(state.part("expansions"), size)
    cross = state.part("cross").reshape(size, size) @ ridge
    return scores + cross + cross.T + ridge @ points @ ridge
