"""Older releases beside the newest ones, where these are too few for intervals."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from benchmarks.first_intervals import streamed
from tests.builders import task_of


def test_the_newest_releases_are_never_left_alone_where_others_would_give_intervals() -> None:
    """One client, whose windows grow: at 5,400 slots 7 releases of the newest epoch err least."""
    task = task_of(
        p=3, loss="logistic", ridge=None, maximum=None, mechanism="insecure-simulation",
        epsilon=1.0, delta=1e-6, records=100,
    )  # fmt: skip
    rng = np.random.default_rng([7, 0])
    x = rng.uniform(-1, 1, (6500, 3))
    y = np.where(rng.random(len(x)) < expit(x @ [2.0, -1.0, 1.5]), 1.0, -1.0)
    found = streamed(task, (x, y, np.zeros(len(x), dtype=np.int64)), 0)
    assert {one.records: one.status for one in found}[5400] == "ready"
