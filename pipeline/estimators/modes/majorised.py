"""The pooled fit by majorisation with the stopping rule of the R package kerndwd (OffNP).

Reproduction: its published figures carry the error of a loose stopping rule, and so must ours
where they are compared. Source: dwd, section on competitors; the update is kerndwd's linear one.
"""

from __future__ import annotations

import numpy as np

from pipeline.errors import ConfigError
from pipeline.estimators.modes.objective import PenalisedLoss, Records
from pipeline.estimators.modes.result import POOLED, Fit
from pipeline.estimators.modes.ridge import Ridge
from pipeline.linalg import solve_positive
from pipeline.losses import Loss


def majorised_fit(
    loss: Loss,
    records: Records,
    penalty: float,
    *,
    tolerance: float = 1e-5,
    rounds: int = 100_000,
) -> Fit:
    """Minimise the mean loss + penalty |slopes|^2 by steps against a bound of the curvature.

    Parameters
    ----------
    penalty
        kerndwd's lambda, >= 0: **half** the `Ridge.weight` that gives the same minimiser.
    tolerance
        Stop when a step is shorter than this, in squared length. 1e-5 is kerndwd's default; the
        distance left to the minimiser is then visible in the third digit.

    Returns
    -------
    Fit
        `converged` says whether the rule was met within `rounds`.

    Raises
    ------
    ConfigError
        If the tolerance is not > 0 or the penalty is negative or not finite.
    DataError
        If there are no records.
    """
    if not tolerance > 0:
        raise ConfigError("tolerance must be > 0, for example 1e-5")
    objective = PenalisedLoss(loss, [records], Ridge(2 * penalty))
    size, bound = objective.size, loss.sharp_curvature_bound
    # kerndwd's own safeguard of collinear columns: 1e-7 on the diagonal of n times the matrix
    held = 2 * penalty * np.diag([0.0] + [1.0] * (size - 1))
    safeguard = 1e-7 * bound / objective.records * np.eye(size)
    inverse = solve_positive(objective.majoriser() + held + safeguard, np.eye(size))
    point, done, converged = np.zeros(size), 0, False
    while not converged and done < rounds:
        step = inverse @ objective.gradient(point)
        point, done = point - step, done + 1
        converged = float(step @ step) < tolerance
    score = objective.score(objective.gradient(point))
    return Fit(point, done, score, converged=converged, guarantee=POOLED)
