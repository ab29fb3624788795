"""The pooled fit without privacy (OffNP), converged to rounding. Source: dwd, eq. (6).

The loss has a jump in its second derivative, so this is a Newton method on the generalised
Hessian, held by a share of the majoriser: with all of it every step descends, and the share falls
tenfold with every step that does, so that the end is a plain Newton method.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.modes.objective import PenalisedLoss, Records
from pipeline.estimators.modes.result import POOLED, Fit
from pipeline.estimators.modes.ridge import Ridge
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.types import Matrix, Vector

#: Where rounding stops all descent, a score below this still counts as converged.
ROUNDING = 1e-9
#: The share of the majoriser never falls below this, so that no matrix is singular.
LEAST_SHARE = 1e-12


def pooled_fit(
    loss: Loss, records: Records, ridge: Ridge, *, tolerance: float = 1e-12, rounds: int = 500
) -> Fit:
    """Minimise the penalised loss over all records.

    Parameters
    ----------
    tolerance
        Of the score of the result. Divided by the smallest curvature per record it bounds the
        error of the coefficients: 1e-12 leaves 1e-8 up to condition numbers of about 1e4.

    Returns
    -------
    Fit
        With `converged` true.

    Raises
    ------
    NumericError
        If there is no unique minimiser (one class only, collinear columns or separable classes,
        where the ridge does not help), or the rounds do not suffice.
    DataError
        If there are no records.
    """
    objective = PenalisedLoss(loss, [records], ridge)
    objective.require_a_minimiser()
    majoriser, share = objective.majoriser(), 1.0
    point = np.zeros(objective.size)
    gradient = objective.gradient(point)
    for done in range(rounds):
        _refuse_separation(objective, point)
        score = objective.score(gradient)
        if score <= tolerance:
            _refuse_flat_end(objective, point)
            return Fit(point, done, score, converged=True, guarantee=POOLED)
        found, share = _step(objective, point, gradient, majoriser, share)
        if found is None:
            if score > ROUNDING:
                break
            return Fit(point, done, score, converged=True, guarantee=POOLED)
        point, gradient = found, objective.gradient(found)
    raise NumericError(
        f"the pooled fit did not converge in {rounds} rounds: the classes are nearly separable or "
        "the features nearly collinear; a larger ridge.weight is needed"
    )


def _step(
    objective: PenalisedLoss, point: Vector, gradient: Vector, majoriser: Matrix, share: float
) -> tuple[Vector | None, float]:
    """Return the next point, or None where rounding hides all descent, and the next share."""
    curvature = objective.sharp_curvature(point)
    while True:
        trial = point - solve_positive(curvature + share * majoriser, gradient)
        if objective.descends(point, gradient, trial):
            return trial, max(share / 10, LEAST_SHARE)
        if share >= 1:
            return None, share
        share = min(1.0, 10 * share)


def _refuse_separation(objective: PenalisedLoss, point: Vector) -> None:
    """Refuse where some direction improves for ever: the loss falls all the way to infinity."""
    if objective.falls_for_ever(point):
        raise NumericError(
            "the classes are separable, so without a ridge there is no best fit: ridge.weight > 0 "
            "is needed"
        )


def _refuse_flat_end(objective: PenalisedLoss, point: Vector) -> None:
    """Refuse an end without curvature: along some direction the loss is flat or falls for ever."""
    if objective.is_flat_at(point):
        raise NumericError(
            "the fit has no curvature in some direction (few records, or classes separable but for "
            "ties): ridge.weight > 0 or more records are needed"
        )
