"""What the benchmark of coverage compares intervals with, and how shares of them are counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.autoregressive import POWER, Autoregressive
from benchmarks.covered import LEVEL
from benchmarks.streams import RIDGE, Cell, target_of, task_of
from pipeline.methods.renewable.client import summarise
from pipeline.simulate.coverage import share_of


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


def test_shares_leave_out_what_has_no_interval_and_their_error_is_never_zero() -> None:
    share, error = share_of(np.ones((10, 6)), LEVEL)
    assert (share, error) == (1.0, pytest.approx(math.sqrt(LEVEL * (1 - LEVEL) / 60)))
    share, error = share_of(np.array([[1.0, np.nan, 1.0], [1.0, 0.0, np.nan]]), LEVEL)
    assert (share, error) == (0.75, pytest.approx(0.25))
