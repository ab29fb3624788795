"""The simulation of paper ldp-sgd: its sums are those of the package, and its tables are honest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks.papers import ldp_sgd
from benchmarks.papers.ldp_sgd import Cell, cell_of, judged
from benchmarks.papers.ldp_sgd_runs import Array, Setting, check, edges_of, replications
from pipeline.estimators.sgd.batch_means import batch_means


@pytest.mark.parametrize("mu", [1.0, math.inf])
def test_sums_of_many_replications_are_those_of_a_path(mu: float) -> None:
    # both add up to 10^4 numbers in orders of their own
    assert check(Setting(mu), 5000, seed=1) < 1e-11


def test_batch_means_from_edges_are_those_of_the_whole_path() -> None:
    kept: list[Array] = []
    found = replications(Setting(1.0), (8000,), 2, 1, kept)[8000][0]
    path = np.concatenate(kept[2::3])[1000:]
    assert edges_of(len(path), 0.501)[-1] == len(path)
    assert_allclose(found.batches, np.diag(batch_means(path, 0.501)), rtol=1e-9)


def test_late_points_are_the_iterates_of_that_long_ago() -> None:
    kept: list[Array] = []
    replications(Setting(1.0, behind=30, block=20, burn_in=500), (1000,), 1, 1, kept)
    points, path = np.concatenate(kept[1::3]), np.concatenate(kept[2::3])
    for i in (0, 19, 49, 50, 77, 999):
        j = max(20 * (i // 20) - 30, 0)
        assert np.array_equal(points[i], path[j - 1] if j else np.zeros(4))


def test_only_gated_cells_share_the_false_alarm_and_a_wrong_one_is_seen() -> None:
    values = np.random.default_rng(1).normal(5.0, 0.1, 100)
    place = ("1", "PRS, mu = 1", "AL n=40000")
    right = cell_of(place, values, paper=5.0, gated=True)
    assert right.mc_error == pytest.approx(0.1 * math.sqrt(1 / 100 + 1 / 200), rel=0.2)
    wrong = cell_of(place, values, paper=5.1, gated=True)
    alone = Cell("stale", "row", "column", None, 1.0, 0.1)
    assert [cell.within for cell in judged([right, wrong, alone])] == [True, False, None]
    assert set(ldp_sgd.PAPER) >= {"RS", "PRS, mu = 1", "PRS, mu = 2"}
