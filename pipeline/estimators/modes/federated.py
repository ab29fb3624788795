"""Federated Newton steps over clients whose records stay where they are (OffWP).

Each round every client sends its gradient and curvature at the common point. `federated_fit` is
the safe form; `undamped_iterates` is the paper's own step, which may go up or cycle for ever: the
local curvature it takes for a majoriser is none. Source: dwd, eq. (16), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.errors import ConfigError
from pipeline.estimators.modes.objective import PenalisedLoss, Records, add_up, sums_at
from pipeline.estimators.modes.pooled import LEAST_SHARE
from pipeline.estimators.modes.result import FEDERATED, Fit
from pipeline.estimators.modes.ridge import Ridge
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.types import Matrix, Vector

#: Parts of a step that a round tries, before it takes more of the majoriser.
PARTS = (1.0, 0.5, 0.25)


def federated_fit(
    loss: Loss,
    clients: Sequence[Records],
    ridge: Ridge,
    *,
    tolerance: float = 1e-9,
    rounds: int = 200,
) -> Fit:
    """Minimise the penalised loss by damped Newton steps (Armijo backtracking).

    Each round tries the whole step, its half and its quarter; a trial costs a further number from
    each client. Where none descends, or the curvature is singular, as at zero without a ridge on
    the intercept, a tenfold larger share of the majoriser joins the curvature; with all of it the
    whole step always descends. Clients send the majoriser, their sum of (1, x)(1, x)', once.

    Parameters
    ----------
    tolerance
        Of the score of the result.
    rounds
        At most; fewer than needed give a start, with `converged` false. It is false as well where
        the classes are separable without a ridge, so that there is no minimiser.

    Raises
    ------
    NumericError
        If there is no unique minimiser before any step is taken.
    DataError
        If there are no records.
    """
    objective = PenalisedLoss(loss, clients, ridge)
    objective.require_a_minimiser()
    majoriser, share = objective.majoriser(), 1.0
    point, done = np.zeros(objective.size), 0
    gradient = objective.gradient(point)
    while objective.score(gradient) > tolerance and done < rounds:
        found, share = _damped(objective, point, gradient, majoriser, share)
        if found is None:
            break
        point, gradient, done = found, objective.gradient(found), done + 1
    score = objective.score(gradient)
    # without a ridge the gradient also vanishes on the way to infinity
    endless = objective.falls_for_ever(point) or objective.is_flat_at(point)
    return Fit(
        point, done, score, converged=score <= tolerance and not endless, guarantee=FEDERATED
    )


def undamped_iterates(
    loss: Loss,
    clients: Sequence[Records],
    ridge: Ridge,
    *,
    rounds: int,
    start: Vector | None = None,
) -> Matrix:
    """Return the start and the literal iterates of eq. (16), shape (rounds + 1, d).

    Reproduction only. From zero with an identity ridge the first iterate is the mean of y (1, x)
    over lambda, the mean-difference classifier: the paper's ramp has no curvature at zero.

    Raises
    ------
    ConfigError
        If rounds < 1.
    NumericError
        If a curvature is singular, as it is at zero where the ridge leaves the intercept free.
    DataError
        If there are no records.
    """
    if rounds < 1:
        raise ConfigError("rounds must be >= 1")
    size = PenalisedLoss(loss, clients, ridge).size
    points = [np.zeros(size) if start is None else start]
    for _ in range(rounds):
        point = points[-1]
        total = add_up((sums_at(loss, client, point) for client in clients), size)
        gradient = total.gradient + total.records * ridge.of_gradient(size) * point
        curvature = total.curvature + total.records * np.diag(ridge.of_curvature(size))
        points.append(point - solve_positive(curvature, gradient))
    return np.array(points)


def _damped(
    objective: PenalisedLoss, point: Vector, gradient: Vector, majoriser: Matrix, share: float
) -> tuple[Vector | None, float]:
    """Return the point after a damped step, or None where rounding hides all descent."""
    total = add_up((sums_at(objective.loss, c, point) for c in objective.clients), objective.size)
    curvature = total.curvature / total.records
    curvature += np.diag(objective.ridge.of_gradient(objective.size))
    while True:
        direction = solve_positive(curvature + share * majoriser, gradient)
        for part in PARTS:
            trial = point - part * direction
            if objective.descends(point, gradient, trial):
                return trial, max(share / 10, LEAST_SHARE)
        if share >= 1:
            return None, share
        share = min(1.0, 10 * share)
