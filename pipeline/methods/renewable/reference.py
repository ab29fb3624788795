"""The public population of a study at what its estimate aims at: what plans know of its records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from pipeline.errors import NumericError
from pipeline.estimators.population import Population, even_points, minimiser_of, rows_of
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study.model import Study
from pipeline.study.release_tables import Privacy, Stream, Window
from pipeline.types import Matrix, Vector

#: Pairs of records that stand for the population, and numbers that they hold at most.
PAIRS, NUMBERS = 2**10, 2**20


@dataclass(frozen=True, slots=True)
class Reference:
    """What a record is like on average.

    target: Coefficients in encoded units, shape (d,).
    design, responses, weights, mass: Records (1, x) of shape (n, d), with what each weighs, and
        which share of the population it stands for, (n,) each.
    curvature, middle: Of one record, shape (d, d): without the ridge, and about the mean score.
    values, vectors: Eigenvalues of curvature and ridge, shape (d,), and their vectors, (d, d).
    """

    target: Vector
    design: Matrix
    responses: Vector
    weights: Vector
    mass: Vector
    curvature: Matrix
    middle: Matrix
    values: Vector
    vectors: Matrix


def reference_of(task: RenewableTask) -> Reference:
    """Return the public population of a study: the same for all budgets and windows."""
    budget = {"epsilon": 1.0, "delta": 1e-6, "seed": 0}
    privacy = (
        Privacy(mechanism="insecure-simulation", **budget)  # type: ignore[arg-type]
        if task.study.noised
        else Privacy(mechanism="none")
    )
    plain = msgspec.structs.replace(
        task.study, privacy=privacy, window=Window(records=1), stream=Stream(), trust=None
    )
    return _reference(msgspec.json.encode(plain))


@lru_cache(maxsize=8)
def _reference(written: bytes) -> Reference:
    task = RenewableTask(msgspec.json.decode(written, type=Study))
    population, size = Population.of(task), task.size
    count = max(2**8, 2 * size, min(PAIRS, NUMBERS // size))
    rows, mass = rows_of(population, even_points(len(task.encoding.names) + 1, count))
    try:
        target = minimiser_of(population, rows, mass)
    except NumericError:
        target = population.truth
    design, at = rows.design, rows.design @ target
    weights = np.ones(len(mass)) if rows.weights is None else np.array(rows.weights)
    slopes = weights * task.loss.slope(at, rows.responses)
    curved = weights * task.loss.curvature(at, rows.responses)
    curvature = (design * (mass * curved)[:, None]).T @ design
    pulled = design.T @ (mass * slopes)
    middle = (design * (mass * slopes**2)[:, None]).T @ design - np.outer(pulled, pulled)
    values, vectors = np.linalg.eigh(curvature + np.diag(task.penalty))
    return Reference(
        target, design, rows.responses, weights, mass, curvature, middle, values, vectors
    )
