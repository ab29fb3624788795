"""Rounds on real data: noise is as expected, and records that are tied together are not."""

import numpy as np
import pytest

from benchmarks.flight_rounds import BEFORE, EACH, STATES, WAYS, WEEK, card, delays, measured


@pytest.fixture(scope="module")
def series():
    return delays()


def test_a_card_counts_steps_between_days_that_both_have_a_flight():
    told = np.array([[0.0, 90.0], [14.0, np.nan], [15.0, 0.0]])
    # from 0 to 15 and from 15 to 15, beside one of each that nobody has seen
    shares = np.full((4, 4), 0.25)
    shares[0], shares[1] = np.array([1, 2, 1, 1]) / 5, np.array([1, 2, 1, 1]) / 5
    np.testing.assert_allclose(card(told), 0.8 * shares + 0.2 * np.eye(4))


@pytest.mark.slow
@pytest.mark.takes("reads a year of flights")
def test_fresh_data_help_and_planned_ages_miss_what_makes_all_flights_late(series):
    assert {found.shape for found in series.values()} == {(364, EACH)}
    first = np.hstack([found[: BEFORE * WEEK] for found in series.values()])
    assert np.isnan(first).mean() < 0.15
    assert np.nanmax(first) == STATES[-1]
    ways = dict(WAYS)
    fresh = measured(series, ways["last day alone, debiased"], 0.5, repeats=5)
    planned = measured(series, ways["planned, debiased"], 0.5, repeats=5)
    # 200 rounds of nearly Laplace noise: the error is known to 8 %, and this leaves five times that
    assert 0.6 < fresh["error"] / fresh["expected"] < 1.6
    assert fresh["error"] < 0.7 * fresh["no_data"]
    # what the card expects of it holds for flights that know nothing of each other's storm
    assert planned["expected"] < fresh["expected"]
    assert planned["error"] > 2 * planned["expected"]
    assert planned["error"] > fresh["error"]
