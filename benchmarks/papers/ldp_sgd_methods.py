"""The intervals of the paper's methods, and of ours, from one replication."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.special import ndtri

from benchmarks.limit_law import covariance
from benchmarks.papers.ldp_sgd_models import SIZE
from benchmarks.papers.ldp_sgd_runs import Replication
from pipeline.methods.ldp_sgd import plug_in
from pipeline.methods.ldp_sgd.intervals import random_scaling
from pipeline.types import Matrix, Vector

LEVEL = 0.95
#: Estimates (d,), and half the length of their intervals at a level, (d,).
Interval = tuple[Vector, Callable[[float], Vector]]
Method = Callable[[Replication, np.random.Generator], Interval]


def intervals(
    method: Method, runs: Sequence[Replication], level: float = LEVEL
) -> tuple[Vector, Vector]:
    """Return for each replication the covered share in percent, and the mean length in 0.01."""
    rng = np.random.default_rng(5)
    cover, length = [], []
    for run in runs:
        mean, half = method(run, rng)
        reach = half(level)
        cover.append(100 * float(np.mean(np.abs(mean - run.setting.model.truth) <= reach)))
        length.append(100 * float(np.mean(2 * reach)))
    return np.array(cover), np.array(length)


def normal(errors: Vector, level: float) -> Vector:
    """Return half the length of normal intervals."""
    return float(ndtri((1 + level) / 2)) * errors


def scaling(run: Replication, _: np.random.Generator) -> Interval:
    """Return random scaling's intervals."""
    found = random_scaling([(run.sums, run.origin)])
    return found.mean, found.half_width


def batches(run: Replication, _: np.random.Generator) -> Interval:
    """Return the intervals of batch means of the whole path."""
    return mean_of(run), partial(normal, np.sqrt(run.batches / run.sums.records))


def online(run: Replication, _: np.random.Generator) -> Interval:
    """Return the intervals of online batch means."""
    return mean_of(run), partial(normal, np.sqrt(run.online / run.sums.records))


def exact(run: Replication, _: np.random.Generator) -> Interval:
    """Return the intervals of the sandwich of exact means over the path, its noise added.

    With noise nobody has them: they show what is lost by the estimate of a curvature.
    """
    found = covariance(run.curvature, run.products, run.setting.noise, run.sums.records)
    return mean_of(run), partial(normal, np.sqrt(np.diag(found)))


def without(run: Replication, _: np.random.Generator) -> Interval:
    """Return the intervals of PPI-0."""
    return _plugged(run, plug_in.without_release([run.sums]))


def limit(run: Replication, _: np.random.Generator) -> Interval:
    """Return the intervals of the limit law at the truth, which nobody has."""
    errors = run.setting.model.limit(run.setting.mu)
    return mean_of(run), partial(normal, errors / math.sqrt(run.sums.records))


def released(mu: float, block: int = 1) -> Method:
    """Return PPI-1, with a curvature at mu in which each sum of `block` records has one noise.

    Two curvatures are at most sqrt 2 B_H apart in Frobenius' norm, which counts entries beside
    the diagonal twice: noise of sqrt 2 B_H / mu on it and B_H / mu beside it suffices.
    """

    def method(run: Replication, rng: np.random.Generator) -> Interval:
        records = run.sums.records
        unit = run.setting.model.curvature / mu / math.sqrt(records * block)
        bread = run.curvature + symmetric(rng, unit, math.sqrt(2) * unit)
        return _plugged(run, plug_in.plug_in(bread, run.sums.gg / records, records))

    return method


def published(others: float) -> Method:
    """Return the paper's PPI, with curvature and product released at mu = `others`.

    The means of the noised releases of all records have the noise of one over the root of n, of
    the paper's constant 2 in all entries.
    """

    def method(run: Replication, rng: np.random.Generator) -> Interval:
        records, model = run.sums.records, run.setting.model
        unit = 2 / others / math.sqrt(records)
        bread = run.curvature + symmetric(rng, unit * model.curvature)
        products = run.products + symmetric(rng, unit * model.slope**2)
        middle = plug_in.published_middle(products, run.setting.noise**2)
        return _plugged(run, plug_in.plug_in(bread, middle, records))

    return method


def symmetric(rng: np.random.Generator, beside: float, diagonal: float | None = None) -> Matrix:
    """Return a symmetric matrix of noise, by default of one deviation on and off the diagonal."""
    upper = np.triu(rng.normal(0, beside, (SIZE, SIZE)), 1)
    on = rng.normal(0, beside if diagonal is None else diagonal, SIZE)
    return upper + upper.T + np.diag(on)


def mean_of(run: Replication) -> Vector:
    """Return the average iterate."""
    return run.origin + run.sums.c / run.sums.records


def _plugged(run: Replication, found: plug_in.PlugIn) -> Interval:
    return mean_of(run), partial(normal, plug_in.standard_errors(found))
