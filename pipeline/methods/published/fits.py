"""What published methods run on, and fits to records that are all at hand: OffNP, OffWP.

Batch b of an online method is window b of every client, in the order in which clients first
appear; a client whose records have ended sends nothing more, but still adds its share of noise.
Sums hold no ridge: the number of records is public, so whoever adds messages adds the ridge once.

`pooled_fit` converges; `majorised_fit` stops by the rule of the R package kerndwd, whose published
figures carry the error of that rule. `federated_fit` is the safe form of OffWP; `undamped_iterates`
is the paper's own step, which may go up or cycle for ever: the local curvature it takes for a
majoriser is none. Source: dwd, eq. (6) and (16), Algorithm 1, section on competitors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from scipy.optimize import linprog

from pipeline.errors import DataError
from pipeline.estimators import reference_fit as pooled
from pipeline.estimators.estimate import class_weights
from pipeline.estimators.reference_fit import LEAST_SHARE, Objective, Rows
from pipeline.estimators.reference_fit import Sums as Point
from pipeline.linalg import solve_positive
from pipeline.losses import Loss
from pipeline.methods.base import Clients
from pipeline.methods.published.spec import Printed, Shape, Spec
from pipeline.records.encoder import Arrays
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector

Keys = TypeVar("Keys", bound=Spec)


@dataclass(frozen=True, slots=True)
class Problem(Generic[Keys]):
    """What a method runs on.

    keys: The study's table [estimator.method].
    clients: Records of each client, empty slots left out.
    batches, slots: Window b of every client, and how many slots those windows have.
    """

    task: Task
    keys: Keys
    loss: Loss
    ridge: Ridge
    clients: list[Records]
    batches: list[list[Records]]
    slots: list[int]

    def together(self) -> Records:
        """Return the records of all clients, one client after the other."""
        design = np.concatenate([client.design for client in self.clients])
        return Records(design, np.concatenate([client.responses for client in self.clients]))

    def weights(self) -> tuple[float, float]:
        """Return the class weights of all records: negative, positive."""
        return class_weights(*self.together().class_counts(), self.task.largest_weight)

    def objective(self, weights: tuple[float, float] = (1.0, 1.0)) -> Objective:
        """Return the penalised loss of all clients."""
        return objective_of(self.loss, [c.weighted(weights) for c in self.clients], self.ridge)


def problem_of(task: Task, keys: Keys, loss: Loss, clients: Clients) -> Problem[Keys]:
    """Sort encoded records into clients and batches; DataError if no slot holds a record."""
    weight, slots = task.study.estimator.ridge, task.slots
    matrix: Printed = getattr(keys, "ridge_matrix", "intercept-free")
    ridge = Ridge.as_printed(weight) if matrix == "as-printed" else Ridge(weight, matrix)
    if all(np.isnan(held.responses).all() for held in clients.values()):
        raise DataError("no record could be used: the data owner must correct the source")
    longest = max(len(held.responses) for held in clients.values())
    windows = [slice(start, start + slots) for start in range(0, longest, slots)]
    return Problem(
        task, keys, loss, ridge,
        [_records(task, held, slice(None)) for held in clients.values()],
        [[_records(task, held, cut) for held in clients.values()] for cut in windows],
        [sum(len(held.responses[cut]) for held in clients.values()) for cut in windows],
    )  # fmt: skip


def _records(task: Task, held: Arrays, cut: slice) -> Records:
    sound = Arrays(held.features[cut], held.responses[cut]).sound
    records = Records.of(sound.features, sound.responses)
    return records.clipped(l2=task.norm_bound) if task.norm_bound < task.longest else records


@dataclass(frozen=True, slots=True)
class Ridge:
    """A penalty of weight lambda >= 0 for each record, with one matrix R wherever it appears.

    R is the identity, or diag(0, 1, ..., 1), which leaves the intercept free. `printed` is for
    reproduction: the shape of R in the curvature where it differs from the gradient's. The paper
    prints it so; online, the intercept then lags for thousands of batches.
    """

    weight: float
    shape: Shape = "intercept-free"
    printed: Shape | None = None

    @classmethod
    def as_printed(cls, weight: float) -> Ridge:
        """Return the paper's text: intercept free in the gradient, identity in the curvature."""
        return cls(weight, "intercept-free", printed="identity")

    def of_gradient(self, size: int) -> Vector:
        """Return the diagonal of weight * R in the gradient, shape (size,)."""
        return self.weight * _diagonal(self.shape, size)

    def of_curvature(self, size: int) -> Vector:
        """Return the diagonal of weight * R in the curvature, shape (size,)."""
        return self.weight * _diagonal(self.printed or self.shape, size)


def _diagonal(shape: Shape, size: int) -> Vector:
    diagonal = np.ones(size)
    if shape == "intercept-free":
        diagonal[0] = 0.0
    return diagonal


@dataclass(frozen=True, slots=True)
class Records(Rows):
    """Rows of one client: responses are -1 or +1, and without weights every record counts once."""

    @classmethod
    def of(cls, features: Matrix, responses: Vector) -> Records:
        """Check features (n, p) and responses (n,), -1 or +1, and put the intercept in front."""
        if features.ndim != 2 or responses.shape != (len(features),):
            raise DataError("features must have shape (n, p) and responses shape (n,)")
        if not np.all(np.isfinite(features)):
            raise DataError("features must be finite numbers")
        if not np.all(np.abs(responses) == 1):
            raise DataError("responses must be -1 or +1")
        return cls(np.column_stack([np.ones(len(features)), features]), responses)

    def __len__(self) -> int:
        return self.responses.size

    @property
    def size(self) -> int:
        """Number d of coefficients."""
        return int(self.design.shape[1])

    def class_counts(self) -> tuple[int, int]:
        """Return how many records are negative, and how many positive."""
        positive = int(np.count_nonzero(self.responses > 0))
        return len(self) - positive, positive

    def weighted(self, weights: tuple[float, float]) -> Records:
        """Return the records with one weight for the negative and one for the positive class."""
        if weights == (1.0, 1.0):
            return replace(self, weights=None)
        return replace(self, weights=np.where(self.responses > 0, weights[1], weights[0]))

    def clipped(self, *, l1: float = math.inf, l2: float = math.inf) -> Records:
        """Shorten features so that (1, x) keeps public bounds > 1 of its 1-norm and 2-norm."""
        if math.isinf(l1) and math.isinf(l2):
            return self
        shares = np.ones(len(self))
        if math.isfinite(l1):
            lengths = np.abs(self.design).sum(axis=1) - 1
            shares = (l1 - 1) / np.maximum(lengths, l1 - 1)
        if math.isfinite(l2):
            room = l2 * l2 - 1
            squares = np.einsum("ij,ij->i", self.design, self.design) - 1
            shares = np.minimum(shares, np.sqrt(room / np.maximum(squares, room)))
        design = self.design * shares[:, None]
        design[:, 0] = self.design[:, 0]
        return replace(self, design=design)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over records at one point: their number, gradient (d,), curvature (d, d)."""

    records: int
    gradient: Vector
    curvature: Matrix


def sums_at(loss: Loss, clients: Iterable[Records], point: Vector) -> Sums:
    """Return the clients' summed messages at `point`, shape (d,), with the smoothed curvature."""
    size = len(point)
    records, gradient, curvature = 0, np.zeros(size), np.zeros((size, size))
    for client in clients:
        predictor = client.design @ point
        slope = loss.slope(predictor, client.responses)
        curvature_weight = loss.curvature(predictor, client.responses)
        if client.weights is not None:
            slope, curvature_weight = slope * client.weights, curvature_weight * client.weights
        records += len(client)
        gradient += client.design.T @ slope
        # the product of one matrix with itself is exactly symmetric
        rows = client.design * np.sqrt(curvature_weight)[:, None]
        curvature += rows.T @ rows
    return Sums(records, gradient, curvature)


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
