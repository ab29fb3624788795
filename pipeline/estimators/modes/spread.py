"""Standard errors of a converged fit: the sandwich of its records, and when it can be trusted.

K^-1 (sum s s') K^-1 with s the gradient of one record, ridge included, and K the summed curvature.
It needs a minimiser that was reached, and enough records that carry curvature: a steep loss has
almost all of it in the few records near its knee. Source: spec of the renewable method, sandwich.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.modes.objective import PenalisedLoss
from pipeline.linalg import sandwich
from pipeline.types import Matrix, Vector

#: Intervals need this many records for each coefficient, and as many that carry curvature.
RECORDS_PER_COEFFICIENT = 10


def covariance_of(objective: PenalisedLoss, point: Vector) -> tuple[Matrix | None, str]:
    """Return the covariance (d, d) of a minimiser, or None with the reason.

    Parameters
    ----------
    point
        The minimiser, shape (d,).
    """
    needed = RECORDS_PER_COEFFICIENT * objective.size
    if objective.records < needed:
        return None, f"intervals need {needed} records; there are {objective.records}"
    carried = curved_records(objective, point)
    if carried < needed:
        return None, (
            f"intervals need the curvature of {needed} records; only about {carried:.0f} carry "
            "any, as the loss is nearly flat at the others: more records or a smaller q help"
        )
    try:
        bread = objective.records * objective.sharp_curvature(point)
        return sandwich(bread, _meat(objective, point)), ""
    except NumericError as error:
        return None, f"no intervals: {error}"


def curved_records(objective: PenalisedLoss, point: Vector) -> float:
    """Return how many equally curved records would say as much: (sum c)^2 / sum c^2."""
    total = squares = 0.0
    for client in objective.clients:
        weights = np.ones(len(client)) if client.weights is None else client.weights
        bend = objective.loss.sharp_curvature(client.design @ point, client.responses)
        total += float(np.sum(weights * bend))
        squares += float(np.sum(np.square(weights * bend)))
    return total * total / squares if squares > 0 else 0.0


def _meat(objective: PenalisedLoss, point: Vector) -> Matrix:
    pull = objective.ridge.of_gradient(objective.size) * point
    total = np.zeros((objective.size, objective.size))
    for client in objective.clients:
        slopes = objective.loss.slope(client.design @ point, client.responses)
        if client.weights is not None:
            slopes = slopes * client.weights
        scores = client.design * slopes[:, None] + pull
        total += scores.T @ scores
    return total
