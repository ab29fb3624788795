"""What many simulated streams say together: coverage, length, readiness, bias, with errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.estimators.estimate import Estimate, Status
from pipeline.release.task import Task
from pipeline.types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class StreamResult:
    """The end of one stream.

    coefficients: Shape (d,), in encoded units.
    ends: Lower and upper ends of the intervals by method, each of shape (d,) with NaN where a
        coefficient has none; empty unless "ready".
    """

    status: Status
    reason: str
    coefficients: Vector
    ends: Mapping[str, tuple[Vector, Vector]]


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
    """How often one kind of interval held the target, in streams that gave it.

    coverage, error: Share of covered coefficients, and its Monte Carlo error.
    worst, worst_coverage, worst_error: The coefficient that is covered least, how often, and the
        error of that.
    length: Mean length over the coefficients, in the unit in which estimates print them.
    """

    method: str
    coverage: float
    error: float
    worst: str
    worst_coverage: float
    worst_error: float
    length: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """What all streams said.

    replications: How many streams there were.
    ready, ready_error: Share whose last estimate was "ready", with an interval for one coefficient
        at least, and its Monte Carlo error.
    given, given_error: Share of the coefficients of all streams that had an interval, and its
        Monte Carlo error.
    rarest, rarest_given: The coefficient that has one least often, and in which share of streams.
    level: What the intervals promise.
    intervals: One entry for each kind that came, the study's own first; empty below two ready
        streams.
    biased, bias, bias_error: The coefficient whose mean over all streams is furthest from the
        target, by how many of its own standard deviations, and the error of that.
    reason: What the last stream that gave a reason said of being ready or not.
    """

    replications: int
    ready: float
    ready_error: float
    given: float
    given_error: float
    rarest: str
    rarest_given: float
    level: float
    intervals: tuple[IntervalCoverage, ...]
    biased: str
    bias: float
    bias_error: float
    reason: str


def result_of(task: Task, estimate: Estimate) -> StreamResult:
    """Return what coverage needs of one estimate."""
    level = task.study.estimator.level
    ends: dict[str, tuple[Vector, Vector]] = {}
    if estimate.status == "ready":
        for method in dict.fromkeys([estimate.interval, *(estimate.widths or {})]):
            found = estimate.intervals(level, method)
            if found is not None:
                ends[method] = found
    return StreamResult(estimate.status, estimate.reason, estimate.coefficients, ends)


def sum_up(task: Task, results: Sequence[StreamResult], target: Vector) -> Coverage:
    """Sum up at least two streams against their target, shape (d,), in encoded units."""
    count = len(results)
    ready = [one for one in results if any(np.isfinite(low).any() for low, _ in one.ends.values())]
    share = len(ready) / count
    has = np.array([_has(one) for one in results])
    each = has.mean(axis=0)
    points = np.array([one.coefficients for one in results])
    spread = points.std(axis=0, ddof=1)
    bias = np.abs(points.mean(axis=0) - target) / np.where(spread > 0, spread, math.inf)
    names, level = task.study.coefficient_names, task.study.estimator.level
    methods = ready[0].ends if len(ready) > 1 else ()
    return Coverage(
        replications=count,
        ready=share,
        ready_error=_binomial(share, count),
        given=float(has.mean()),
        given_error=max(float(has.mean(axis=1).std(ddof=1)) / math.sqrt(count), 0.5 / has.size),
        rarest=names[int(each.argmin())],
        rarest_given=float(each.min()),
        level=level,
        intervals=tuple(_interval(task, method, ready, target) for method in methods),
        biased=names[int(bias.argmax())],
        bias=float(bias.max()),
        bias_error=1 / math.sqrt(count),
        reason=next((one.reason for one in reversed(results) if one.reason), ""),
    )


def _has(one: StreamResult) -> NDArray[np.bool_]:
    """Return which coefficients have an interval of the study's own kind, shape (d,)."""
    low, _ = next(iter(one.ends.values()), (np.full(len(one.coefficients), math.nan),) * 2)
    return np.isfinite(low)


def _interval(
    task: Task, method: str, ready: Sequence[StreamResult], target: Vector
) -> IntervalCoverage:
    low = np.array([one.ends[method][0] for one in ready])
    high = np.array([one.ends[method][1] for one in ready])
    given = ~np.isnan(high - low)
    covered = np.where(given, (low <= target) & (target <= high), math.nan)
    coverage, error = share_of(covered, task.study.estimator.level)
    counts = given.sum(axis=0)
    # a coefficient that never had an interval is not the one that is covered least
    each = np.where(counts, np.nansum(covered, axis=0) / np.maximum(counts, 1), math.inf)
    worst = int(each.argmin())
    return IntervalCoverage(
        method=method,
        coverage=coverage,
        error=error,
        worst=task.study.coefficient_names[worst],
        worst_coverage=float(each[worst]),
        worst_error=_binomial(float(each[worst]), int(counts[worst])),
        length=task.response_scale[1] * float(np.nanmean(high - low)),
    )


def share_of(covered: Matrix, level: float) -> tuple[float, float]:
    """Return the share of covered coefficients, shape (streams, d), and its Monte Carlo error.

    NaN stands for no interval. Coefficients of one stream depend on each other; streams do not. The
    error is at least that of independent coefficients at the level, so that a few streams that
    agree do not seem to prove a share.
    """
    streams = covered[~np.isnan(covered).all(axis=1)]
    shares = np.nanmean(streams, axis=1)
    error = float(shares.std(ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0
    least = math.sqrt(level * (1 - level) / np.count_nonzero(~np.isnan(streams)))
    return float(shares.mean()), max(error, least)


def _binomial(share: float, count: int) -> float:
    """Return the Monte Carlo error of a share; half a stream either way where all agree."""
    inside = min(max(share, 0.5 / count), 1 - 0.5 / count)
    return math.sqrt(inside * (1 - inside) / count)
