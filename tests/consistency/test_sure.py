"""A ridge that a plan calls enough alone, beside streams in which nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from benchmarks.first_intervals import streamed
from pipeline.methods.renewable.method import plan
from tests.builders import task_of

#: Streams of each design, and clients.
STREAMS, CLIENTS = 4, 8
#: How little of its range a feature fills.
FILLED = 0.05


@pytest.mark.takes("streams of 8,000 to 25,000 records, up to the promised size")
@pytest.mark.parametrize(
    ("features", "loss", "ridge", "epsilon"),
    [
        pytest.param(4, "gdwd", 0.03, 1.0, marks=pytest.mark.slow),
        pytest.param(9, "gdwd", 0.1, 1.5, marks=pytest.mark.slow),
        (9, "logistic", 0.02, 2.0),
    ],
)
def test_slopes_of_features_that_fill_nothing_have_intervals_where_the_plan_is_sure(
    features: int, loss: str, ridge: float, epsilon: float
) -> None:
    task = task_of(
        p=features, loss=loss, ridge=ridge, norm_bound=float(np.sqrt(1 + features / 3)),
        maximum=None, mechanism="insecure-simulation", epsilon=epsilon, delta=1e-6, records=250,
    )  # fmt: skip
    records = plan(task, 40_000, CLIENTS).latest
    assert records is not None
    signs = np.where(np.arange(features) % 2, -1.0, 1.0)
    given = []
    for number in range(STREAMS):
        rng = np.random.default_rng([20261128, number])
        x = rng.uniform(-FILLED, FILLED, (int(1.15 * records), features))
        y = np.where(rng.random(len(x)) < expit(0.3 + x @ (2 * signs)), 1.0, -1.0)
        for found in streamed(task, (x, y, None), number):
            if found.records >= records:
                low, _ = found.intervals(0.95) or (np.full(features + 1, np.nan), None)
                given.append(np.mean(~np.isnan(low[1:])))
    # where 1.75 s has fallen to the ridge, 81, 21 and 5 % of them have one
    assert np.mean(given) > 0.9
