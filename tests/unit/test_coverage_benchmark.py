"""The benchmark's coverage check: its target, and that it sees variances that are broken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.autoregressive import POWER, Autoregressive
from benchmarks.covered import LEAST, LEVEL, MOST, summary_of, told
from benchmarks.streams import RIDGE, Cell, one_stream, target_of, task_of
from pipeline.estimators.estimate import Estimate
from pipeline.methods.renewable.client import summarise
from pipeline.simulate.coverage import share_of

STREAMS = 48
#: Bounds hold with this probability of a false alarm, for the seeds as a fresh draw.
ALARM = 1e-4
OPEN = Cell(5, 200, 20, None)
PRIVATE = Cell(5, 200, 50, 1.0)


def estimates(cell: Cell, streams: int) -> list[Estimate]:
    found = [one_stream(cell, seed)[1] for seed in range(9000, 9000 + streams)]
    assert all(estimate.status == "ready" for estimate in found)
    return found


def check(cell: Cell, found: list[Estimate]) -> None:
    """Fail where the coverage is outside the bounds by more than the simulation explains.

    Coefficients of a stream are not independent; the binomial error is that of a third as many.
    """
    row = summary_of([told(e, target_of(cell)) for e in found], target_of(cell))
    size = task_of(cell).size * len(found) / 3
    reach = float(stats.norm.isf(ALARM)) / math.sqrt(size)
    coverage = row["coverage"]
    assert isinstance(coverage, float)
    assert coverage >= LEAST - reach * math.sqrt(LEAST * (1 - LEAST)), f"covers {coverage:.3f}"
    assert coverage <= MOST + reach * math.sqrt(MOST * (1 - MOST)), f"covers {coverage:.3f}"


def scaled(found: list[Estimate], factor: float) -> list[Estimate]:
    """Break the variance: multiply it."""
    return [
        replace(
            e,
            covariance=None if e.covariance is None else factor * e.covariance,
            privacy_covariance=(
                None if e.privacy_covariance is None else factor * e.privacy_covariance
            ),
        )
        for e in found
    ]


@pytest.mark.parametrize("kind", ["fine", "coarse"])
@pytest.mark.parametrize(
    # the same at every size: the largest takes seconds
    "features",
    [2, 5, pytest.param(20, marks=pytest.mark.slow)],
)
def test_the_target_is_where_the_gradient_of_a_large_sample_vanishes(
    features: int, kind: str
) -> None:
    cell = Cell(features, 200, 20, None, kind=kind)
    task, target = task_of(cell), target_of(cell)
    x, y = cell.population.draw(np.random.default_rng(features), 200_000)
    design = np.column_stack([np.ones(len(y)), x])
    scores = design * task.loss.slope(design @ target, y)[:, None]
    pull = scores.mean(axis=0) + 0.01 * np.append(0.0, target[1:])
    errors = scores.std(axis=0) / math.sqrt(len(y))
    # 1e-6 for all coefficients together
    assert np.all(np.abs(pull) <= errors * stats.norm.isf(1e-6 / (2 * len(target))))


def test_the_error_of_a_share_is_not_zero_where_all_streams_agree() -> None:
    share, error = share_of(np.ones((10, 6)), LEVEL)
    assert share == 1.0
    assert error == pytest.approx(math.sqrt(LEVEL * (1 - LEVEL) / 60))


def test_a_coefficient_without_an_interval_is_neither_covered_nor_missed() -> None:
    covered = np.array([[1.0, np.nan, 1.0], [1.0, 0.0, np.nan]])
    share, error = share_of(covered, LEVEL)
    assert share == 0.75
    assert error == pytest.approx(0.25)


def test_the_target_of_correlated_features_is_where_a_large_sample_s_gradient_vanishes() -> None:
    """On records as they are summed: in their ranges, and no longer than the norm bound."""
    cell = Cell(4, 200, 20, None, kind="ar")
    task = task_of(cell)
    target = Autoregressive(4, scramblings=2).target(task.loss, RIDGE)
    x, y = cell.population.draw(np.random.default_rng(4), 200_000)
    sums = summarise(task, x, y, target, (1.0, 1.0))
    pull = sums.gradient / len(y) + RIDGE * np.append(0.0, target[1:])
    # the target's own error is at most that of as many draws as it has points
    errors = np.sqrt(np.diag(sums.scores) / len(y) * (1 / len(y) + 1 / 2 ** (POWER + 1)))
    assert np.all(np.abs(pull) <= errors * stats.norm.isf(1e-6 / (2 * len(target))))


@pytest.mark.slow
@pytest.mark.parametrize("cell", [OPEN, PRIVATE], ids=["open", "private"])
def test_coverage_is_within_its_bounds_and_broken_variances_are_found(cell: Cell) -> None:
    found = estimates(cell, STREAMS)
    check(cell, found)
    with pytest.raises(AssertionError, match="covers"):
        check(cell, scaled(found, 0.25))


@pytest.mark.slow
def test_intervals_that_cover_always_are_found() -> None:
    # the bound is close to 1, so that it takes more streams of more coefficients to pass it
    cell = Cell(20, 500, 8, None)
    with pytest.raises(AssertionError, match="covers"):
        check(cell, scaled(estimates(cell, 300), 25.0))
