"""The intervals of the paper's methods from one replication, and the limit law of its average."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

from benchmarks.papers.ldp_sgd_runs import (
    BEND,
    CURVATURE,
    DEVIATION,
    SIZE,
    SLOPE,
    TRUTH,
    Replication,
    Setting,
)  # fmt: skip
from pipeline.estimators.sgd import plug_in
from pipeline.estimators.sgd.limit_law import covariance, moments
from pipeline.estimators.sgd.random_scaling import random_scaling
from pipeline.losses.linear import Linear
from pipeline.types import Matrix, Vector

LEVEL, NORMAL = 0.95, float(ndtri(0.975))
#: From a replication to its estimate and half the lengths of its intervals, shapes (d,).
Method = Callable[[Replication, np.random.Generator], tuple[Vector, Vector]]


def scaling(run: Replication, _: np.random.Generator) -> tuple[Vector, Vector]:
    """Return random scaling's intervals."""
    found = random_scaling([(run.sums, run.origin)])
    return found.mean, found.half_width(LEVEL)


def batches(run: Replication, _: np.random.Generator) -> tuple[Vector, Vector]:
    """Return the intervals of batch means."""
    return mean_of(run), NORMAL * np.sqrt(run.batches / run.sums.records)


def exact(run: Replication, _: np.random.Generator) -> tuple[Vector, Vector]:
    """Return the intervals of the sandwich of exact means, which only a path without noise has."""
    found = covariance(run.curvature, run.products, 0.0, run.sums.records)
    return mean_of(run), NORMAL * np.sqrt(np.diag(found))


def without(run: Replication, _: np.random.Generator) -> tuple[Vector, Vector]:
    """Return the intervals of PPI-0."""
    return mean_of(run), NORMAL * plug_in.standard_errors(plug_in.without_release([run.sums]))


def released(mu: float, block: int = 1) -> Method:
    """Return PPI-1, with a curvature at mu in which each sum of `block` records has one noise.

    Two curvatures are at most sqrt 2 B_H apart in Frobenius' norm, which counts entries beside
    the diagonal twice: noise of sqrt 2 B_H / mu on it and B_H / mu beside it suffices (spec (b)).
    """

    def method(run: Replication, rng: np.random.Generator) -> tuple[Vector, Vector]:
        records = run.sums.records
        unit = CURVATURE / mu / math.sqrt(records * block)
        bread = run.curvature + symmetric(rng, unit, math.sqrt(2) * unit)
        found = plug_in.plug_in(bread, run.sums.gg / records, records)
        return mean_of(run), NORMAL * plug_in.standard_errors(found)

    return method


def published(gradient: float, others: float) -> Method:
    """Return the paper's PPI, with gradients released at one mu, curvature and product at another.

    The means of the noised releases of all records have the noise of one over the root of n, of
    the paper's constant 2 in all entries.
    """

    def method(run: Replication, rng: np.random.Generator) -> tuple[Vector, Vector]:
        records = run.sums.records
        unit = 2 / others / math.sqrt(records)
        bread = run.curvature + symmetric(rng, unit * CURVATURE)
        products = run.products + symmetric(rng, unit * SLOPE**2)
        found = plug_in.published(bread, products, Setting(gradient).noise ** 2, records)
        return mean_of(run), NORMAL * plug_in.standard_errors(found)

    return method


def symmetric(rng: np.random.Generator, beside: float, diagonal: float | None = None) -> Matrix:
    """Return a symmetric matrix of noise, by default of one deviation on and off the diagonal."""
    upper = np.triu(rng.normal(0, beside, (SIZE, SIZE)), 1)
    on = rng.normal(0, beside if diagonal is None else diagonal, SIZE)
    return upper + upper.T + np.diag(on)


def mean_of(run: Replication) -> Vector:
    """Return the average iterate."""
    return run.origin + run.sums.c / run.sums.records


def limit(mu: float, records: int) -> float:
    """Return the root mean square error of the average by the limit law, over coefficients."""
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(10**6), rng.normal(size=(10**6, SIZE - 1))])
    responses = design @ TRUTH + rng.normal(0, DEVIATION, 10**6)
    found = moments(Linear(BEND), design, responses, TRUTH, math.sqrt(2))
    return math.sqrt(float(np.trace(covariance(*found, Setting(mu).noise, records))) / SIZE)
