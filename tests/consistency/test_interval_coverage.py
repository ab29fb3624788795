"""Whether private intervals cover, at the end of streams and at the moment they first come."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.first_intervals import (
    Setting,
    held,
    pooled,
    population_fit,
    released,
    streamed,
    task_for,
)
from benchmarks.interval_streams import RECORDS, Drawn, Stream, stream_of
from pipeline.losses import Loss
from tests.builders import task_of

DRAWS = 40
#: What coverage may be, beside three Monte Carlo errors.
BAND = (0.925, 0.985)


def within(flags: np.ndarray) -> None:
    """Assert that a coverage is in the band, by the spread between draws; NaN has no interval."""
    some = flags[~np.isnan(flags).all(axis=1)]
    error = 3 * np.nanmean(some, axis=1).std() / np.sqrt(len(some))
    found = float(np.nanmean(some))
    assert BAND[0] - error <= found <= BAND[1] + error, (found, error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting"),
    [("t4", Setting("gdwd")), ("kink", Setting("gdwd")), ("ar", Setting("logistic", epsilon=4.0))],
    ids=["t4", "kink", "ar"],
)
def test_intervals_at_the_end_cover_the_population(name: str, setting: Setting) -> None:
    stream = stream_of(name)
    task = task_for(stream, setting)
    target = population_fit(stream, task)
    draws = [stream.draw(np.random.default_rng([31, k]), task.loss) for k in range(DRAWS)]
    within(np.array([held(streamed(task, drawn, k)[-1], target) for k, drawn in enumerate(draws)]))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_one_feature_is_covered_in_mid_stream(epsilon: float) -> None:
    """The first models are far off, and little noise hides it: once covered 25 to 65 %."""

    def draw(rng: np.random.Generator, _: Loss) -> Drawn:
        x = rng.uniform(-1, 1, (RECORDS, 1))
        odds = 0.2 + 1.5 * x[:, 0]
        return x, np.where(rng.random(RECORDS) < 1 / (1 + np.exp(-odds)), 1.0, -1.0), None

    task = task_for(Stream("one feature", 1, 1.42, draw), Setting("gdwd", epsilon=epsilon))
    flags = []
    for seed in range(DRAWS):
        features, responses, _ = draw(np.random.default_rng([32, seed]), task.loss)
        for records in (12_000, 14_000, 16_000):
            drawn = released(task, (features[:records], responses[:records], None))
            flags.append(held(streamed(task, drawn, seed)[-1], pooled(task, drawn)))
    # at an epsilon of 4 chance in the records is most of an interval, and they are the fit's own
    found = np.array(flags)
    assert np.isfinite(found).mean() > 0.3
    each = np.nanmean(found, axis=0)
    assert np.all(each >= BAND[0] - 3 * np.sqrt(0.05 / DRAWS)), each


@pytest.mark.takes("streams whose models go from 0 to 14 units of log odds")
def test_large_coefficients_of_features_that_fill_little_of_their_ranges_are_reached() -> None:
    """Steps go as far as predictors do: with those that whole ranges allow, models lag for ever."""
    task = task_of(
        p=3, loss="logistic", mechanism="insecure-simulation", epsilon=4.0, delta=1e-6,
        norm_bound=1.3, records=100, releases=8, ridge=0.0,
    )  # fmt: skip
    true, off = np.array([0.0, 14.0, -9.0, 6.0]), []
    for number in range(1):
        rng = np.random.default_rng([20261129, number])
        x = rng.normal(0, 0.2, (60_000, 3)).clip(-0.6, 0.6)
        y = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-true[0] - x @ true[1:])), 1.0, -1.0)
        found = streamed(task, (x, y, None), number)[-1]
        assert found.status == "ready", found.reason
        assert found.covariance is not None
        off.append((found.coefficients - true) / np.sqrt(np.diag(found.covariance)))
    # one of four is beyond by chance in four thousand runs
    assert np.abs(off).max() < 4
