"""Fits to records that are all at hand: pooled (OffNP), or in rounds over clients (OffWP).

`pooled_fit` converges; `majorised_fit` stops by the rule of the R package kerndwd, whose published
figures carry the error of that rule. `federated_fit` is the safe form of OffWP; `undamped_iterates`
is the paper's own step, which may go up or cycle for ever: the local curvature it takes for a
majoriser is none. Source: dwd, eq. (6) and (16), Algorithm 1, section on competitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from pipeline.errors import DataError
from pipeline.estimators import pooled
from pipeline.estimators.objective import Objective
from pipeline.estimators.objective import Sums as Point
from pipeline.estimators.pooled import LEAST_SHARE
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.methods.published.records import Records, Ridge, sums_at
from pipeline.types import Matrix, Vector

#: A federated fit has converged where its score is no larger.
TOLERANCE = 1e-9
#: Parts of a step that a round tries, before it takes more of the majoriser.
PARTS = (1.0, 0.5, 0.25)
#: What the best separating w must gain on average, with columns scaled to at most 1.
LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients (d,), the intercept first, after some rounds.

    score: Largest entry of the mean gradient there, each in units of its column's root mean square.
    converged: Whether the stopping rule was met within the rounds allowed.
    """

    coefficients: Vector
    rounds: int
    score: float
    converged: bool


def objective_of(loss: Loss, clients: Sequence[Records], ridge: Ridge) -> Objective:
    """Return the penalised loss of some clients; DataError if there are no records."""
    held = [client for client in clients if len(client)]
    if not held:
        raise DataError("clients must hold at least one record")
    return Objective(loss, lambda: held, ridge.of_gradient(held[0].size))


def pooled_fit(loss: Loss, records: Records, ridge: Ridge) -> Fit:
    """Return the converged fit of all records; the refusals are those of the reference solver."""
    penalty = ridge.of_gradient(records.size)
    # the pass from the usual tolerance to rounding costs little where all records are at hand
    found = pooled.pooled_fit(loss, lambda: [records], penalty, tolerance=1e-12)
    return Fit(found.coefficients, found.steps, found.score, converged=True)


def majorised_fit(
    loss: Loss, records: Records, penalty: float, *, tolerance: float = 1e-5, rounds: int = 100_000
) -> Fit:
    """Minimise the mean loss + penalty |slopes|^2 by steps against a bound of the curvature.

    penalty: kerndwd's lambda, >= 0: **half** the `Ridge.weight` that gives the same minimiser.
    tolerance: Stop when a step is shorter than this, in squared length. 1e-5 is kerndwd's default;
        the distance left to the minimiser is then visible in the third digit.
    """
    objective, bound = objective_of(loss, [records], Ridge(2 * penalty)), loss.sharp_curvature_bound
    # kerndwd's own safeguard of collinear columns: 1e-7 on the diagonal of n times the matrix
    safeguard = 1e-7 * bound / objective.rows * np.eye(records.size)
    held = objective.majoriser + np.diag(objective.penalty) + safeguard
    inverse = solve_positive(held, np.eye(records.size))
    here, done, converged = objective.at(np.zeros(records.size), curved=False), 0, False
    while not converged and done < rounds:
        step = inverse @ here.gradient
        here, done = objective.at(here.point - step, curved=False), done + 1
        converged = float(step @ step) < tolerance
    return Fit(here.point, done, here.score, converged=converged)


def federated_fit(
    loss: Loss, clients: Sequence[Records], ridge: Ridge, *, rounds: int = 200
) -> Fit:
    """Minimise the penalised loss by damped Newton steps (Armijo backtracking).

    Each round every client sends its gradient and curvature at the common point, and a further
    number for each trial: the whole step, its half and its quarter. Where none descends, or the
    curvature is singular, as at zero without a ridge on the intercept, a tenfold larger share of
    the majoriser joins the curvature; with all of it the whole step always descends. Clients send
    the majoriser, their sum of (1, x)(1, x)', once.

    Fewer `rounds` than `TOLERANCE` of the score needs give a start, with `converged` false. It is
    false as well where the classes are separable without a ridge: there is no minimiser.

    NumericError if there is no unique minimiser before any step is taken.
    """
    objective = objective_of(loss, clients, ridge)
    objective.require_a_minimiser()
    held = [client for client in clients if len(client)]
    here = objective.at(np.zeros(len(objective.penalty)), curved=False)
    share, done = 1.0, 0
    while here.score > TOLERANCE and done < rounds:
        total = sums_at(loss, held, here.point)
        curvature = total.curvature / total.records + np.diag(objective.penalty)
        found, share = _damped(objective, here, curvature, share)
        if found is None:
            break
        here, done = found, done + 1
    # without a ridge the gradient also vanishes on the way to infinity
    endless = ridge.weight == 0 and (here.separated or objective.at(here.point).flat)
    return Fit(here.point, done, here.score, converged=here.score <= TOLERANCE and not endless)


def undamped_iterates(
    loss: Loss, clients: Sequence[Records], ridge: Ridge, *, rounds: int
) -> Matrix:
    """Return zero and the literal iterates of eq. (16) from there, shape (rounds + 1, d).

    Reproduction only. With an identity ridge the first iterate is the mean of y (1, x) over lambda,
    the mean-difference classifier: the paper's ramp has no curvature at zero.

    NumericError if a curvature is singular, as it is at zero where the ridge leaves the
    intercept free.
    """
    size = clients[0].size
    points = [np.zeros(size)]
    for _ in range(rounds):
        point = points[-1]
        total = sums_at(loss, clients, point)
        gradient = total.gradient + total.records * ridge.of_gradient(size) * point
        curvature = total.curvature + total.records * np.diag(ridge.of_curvature(size))
        points.append(point - solve_positive(curvature, gradient))
    return np.array(points)


def separable(records: Records) -> bool:
    """Whether a hyperplane has each class on its own side, records on it allowed.

    Then, without a ridge, no best fit exists: some w other than zero has y (1, x)' w >= 0 for every
    record, with > 0 for one, exactly if the loss falls for ever along it. The largest sum over the
    box |w| <= 1 is a linear program. Source: Albert and Anderson (1984).
    """
    scale = np.maximum(np.max(np.abs(records.design), axis=0), np.finfo(float).tiny)
    rows = records.design / scale * records.responses[:, None]
    found = linprog(-rows.mean(axis=0), A_ub=-rows, b_ub=np.zeros(len(rows)), bounds=(-1, 1))
    return found.fun is not None and bool(found.fun < -LEAST_GAIN)


def _damped(
    objective: Objective, here: Point, curvature: Matrix, share: float
) -> tuple[Point | None, float]:
    """Return the point after a damped step, or None where rounding hides all descent."""
    while True:
        direction = solve_positive(curvature + share * objective.majoriser, here.gradient)
        for part in PARTS:
            trial = objective.at(here.point - part * direction, curved=False)
            if here.descends(trial):
                return trial, max(share / 10, LEAST_SHARE)
        if share >= 1:
            return None, share
        share = min(1.0, 10 * share)
