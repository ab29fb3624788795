"""What releases cost together: implied mu, sums, units and groups."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_ndtr

from pipeline.errors import PrivacyError
from pipeline.privacy import accounting as gdp
from pipeline.privacy import sensitivity
from pipeline.privacy.accounting import Unit, mu_of_pure, total_epsilon, total_mu
from pipeline.privacy.events import Event, Gaussian, NonPrivate, Pure, group
from pipeline.privacy.sensitivity import Bounds

EPSILONS = (1e-10, 1e-4, 0.01, 0.3, 0.999, 1.0, 1.001, 3.0, 8.0, 20.0)
#: False alarms of a test, over all sets of alphas: errors of the two kinds on a fine grid.
GRID = np.unique(
    np.concatenate([np.geomspace(1e-12, 0.5, 3000), 1 - np.geomspace(1e-12, 0.5, 3000)])
)

mus = st.floats(1e-3, 8.0)
pures = st.floats(1e-4, 15.0)
deltas = st.floats(1e-15, 0.4)
costs = st.lists(mus.map(Gaussian) | pures.map(Pure), max_size=5)


def pure_trade_off(epsilon: float, alpha: np.ndarray) -> np.ndarray:
    """Return the least missed detections of any test of an epsilon-DP release."""
    steep = 1 - math.exp(epsilon) * alpha
    return np.maximum.reduce([np.zeros_like(alpha), steep, math.exp(-epsilon) * (1 - alpha)])


def gaussian_trade_off(mu: float, alpha: np.ndarray) -> np.ndarray:
    return stats.norm.cdf(stats.norm.isf(alpha) - mu)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_no_test_of_a_pure_release_is_better_than_the_implied_mu_allows(epsilon: float) -> None:
    mu = mu_of_pure(epsilon)
    # 1e-15 of rounding beside values down to e^-20
    gap = pure_trade_off(epsilon, GRID) - gaussian_trade_off(mu, GRID)
    assert gap.min() >= -1e-15


@pytest.mark.parametrize("epsilon", [e for e in EPSILONS if e > 1e-9])
def test_the_implied_mu_is_the_smallest_that_holds(epsilon: float) -> None:
    """At a* = 1 / (1 + e^epsilon) the two trade-off functions touch."""
    mu = mu_of_pure(epsilon)
    corner = np.array([1 / (1 + math.exp(epsilon))])
    assert gaussian_trade_off(mu, corner) == pytest.approx(corner, rel=1e-9)
    less = gaussian_trade_off(mu * (1 - 1e-6), corner)
    assert pure_trade_off(epsilon, corner) < less


@pytest.mark.parametrize("epsilon", [1e-12, 1e-7, *EPSILONS, 40.0, 100.0])
def test_the_implied_mu_has_all_digits(epsilon: float) -> None:
    with mpmath.workdps(80):
        e = mpmath.mpf(epsilon)
        exact = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.tanh(e / 2))
        assert abs(mu_of_pure(epsilon) / exact - 1) < 1e-14


@pytest.mark.parametrize("epsilon", [500.0, 700.0, 1e4, 1e8, 1e15])
def test_a_huge_epsilon_implies_a_mu_that_grows_with_its_root(epsilon: float) -> None:
    mu = mu_of_pure(epsilon)
    # log Phi(-mu / 2) = -log(1 + e^epsilon), in logarithms
    assert float(log_ndtr(-mu / 2)) == pytest.approx(-epsilon, rel=1e-12)


@given(pures, deltas)
def test_the_implied_mu_never_promises_less_than_the_epsilon_itself(
    epsilon: float, delta: float
) -> None:
    """A single pure release keeps epsilon, so its own figure is used and never a larger one."""
    assert total_epsilon([Pure(epsilon)], delta) <= epsilon
    assert total_epsilon([Pure(epsilon)], 0.0) == epsilon


def test_gaussian_costs_add_up_as_squares_and_their_epsilon_is_exact() -> None:
    parts = [Gaussian(0.3), Gaussian(0.4), Gaussian(1.2)]
    assert total_mu(parts) == pytest.approx(1.3, rel=1e-15)
    for delta in (1e-15, 1e-6, 0.4):
        assert total_epsilon(parts, delta) == gdp.epsilon_of(total_mu(parts), delta)
    assert total_mu([]) == 0
    assert total_epsilon([], 0.0) == 0
    assert total_epsilon([], 1e-6) == 0


def test_many_small_pure_costs_are_cheaper_as_gaussian_ones_than_as_a_sum() -> None:
    parts = [Pure(0.1)] * 100
    total = total_epsilon(parts, 1e-6)
    assert total == gdp.epsilon_of(total_mu(parts), 1e-6)
    assert total < 0.7 * 10
    assert total_epsilon(parts, 0.0) == pytest.approx(10.0, rel=1e-12)


def test_a_large_pure_cost_beside_a_small_gaussian_one_is_cheaper_as_a_sum() -> None:
    parts = [Gaussian(0.1), Pure(1.0)]
    together = gdp.epsilon_of(total_mu(parts), 1e-6)
    assert total_epsilon(parts, 1e-6) == 1.0 + gdp.epsilon_of(0.1, 1e-6) < together


def test_with_delta_zero_only_pure_costs_have_an_epsilon() -> None:
    assert total_epsilon([Pure(0.5), Pure(0.25)], 0.0) == 0.75
    assert total_epsilon([Pure(0.5), Gaussian(0.01)], 0.0) == math.inf


def test_a_simulation_costs_everything() -> None:
    for delta in (0.0, 1e-6, 0.4):
        assert total_epsilon([NonPrivate()], delta) == math.inf
        assert total_epsilon([NonPrivate(), Pure(1.0), Gaussian(0.1)], delta) == math.inf


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2.0, math.nan, math.inf])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(PrivacyError, match="delta"):
        total_epsilon([Gaussian(1.0)], delta)


@given(costs, mus.map(Gaussian) | pures.map(Pure), deltas)
def test_one_release_more_never_costs_less(parts: list[Event], more: Event, delta: float) -> None:
    assert total_mu([*parts, more]) >= total_mu(parts)
    # bisection in float64
    assert total_epsilon([*parts, more], delta) >= total_epsilon(parts, delta) * (1 - 1e-12)


@given(costs, deltas, st.floats(1.0, 2.0))
def test_the_total_falls_in_delta_and_rises_with_each_cost(
    parts: list[Event], delta: float, factor: float
) -> None:
    total = total_epsilon(parts, delta)
    assert total_epsilon(parts, min(0.99, delta * factor)) <= total * (1 + 1e-12)
    for i, part in enumerate(parts):
        [name] = part.__struct_fields__
        larger = type(part)(factor * getattr(part, name))
        dearer = [*parts[:i], larger, *parts[i + 1 :]]
        assert total_epsilon(dearer, delta) >= total * (1 - 1e-12)


@given(costs, deltas)
def test_the_order_of_releases_does_not_matter(parts: list[Event], delta: float) -> None:
    total = total_epsilon(parts, delta)
    for order in itertools.islice(itertools.permutations(parts), 6):
        assert total_epsilon(order, delta) == pytest.approx(total, rel=1e-12, abs=1e-300)


# --- groups and units ------------------------------------------------------------------------


@given(mus, st.integers(1, 50))
def test_a_group_of_gaussian_costs_is_as_far_apart_as_all_its_records(mu: float, k: int) -> None:
    """k records move a sum k times as far: the mechanism of k-fold sensitivity."""
    assert group(Gaussian(mu), k) == Gaussian(k * mu)


@given(pures, st.integers(1, 50))
def test_a_group_of_pure_costs_keeps_its_epsilons_sum_and_no_larger_mu(
    epsilon: float, k: int
) -> None:
    assert group(Pure(epsilon), k) == Pure(k * epsilon)
    assert mu_of_pure(k * epsilon) <= k * mu_of_pure(epsilon) * (1 + 1e-12)


def test_records_that_are_noised_apart_cost_the_root_and_changes_of_one_record_add_up() -> None:
    unit = Unit(9, "replace-one")

    def converted(event: Event, neighbours: str) -> list[Event]:
        return [unit.convert(event, neighbours, noise_per_record=True)]

    assert total_mu(converted(Gaussian(0.25), "replace-one")) == pytest.approx(0.75)
    # an absence and another: twice for every record, whoever's noise it is
    assert total_mu(converted(Gaussian(0.25), "zero-out")) == pytest.approx(1.5)
    pure = converted(Pure(0.1), "replace-one")
    assert total_epsilon(pure, 0.0) == pytest.approx(0.9)
    assert total_mu(pure) == pytest.approx(3 * mu_of_pure(0.1))
    assert total_mu(pure) < mu_of_pure(0.9)


@pytest.mark.parametrize(
    ("unit", "neighbours", "factor"),
    [
        (Unit(1, "zero-out"), "zero-out", 1),
        (Unit(1, "zero-out"), "replace-one", 1),
        (Unit(1, "replace-one"), "zero-out", 2),
        (Unit(1, "replace-one"), "replace-one", 1),
        (Unit(7, "zero-out"), "zero-out", 7),
        (Unit(7, "zero-out"), "replace-one", 7),
        (Unit(7, "replace-one"), "zero-out", 14),
        (Unit(7, "replace-one"), "replace-one", 7),
    ],
)
def test_a_cost_is_converted_to_the_unit_and_neighbours_of_a_budget(
    unit: Unit, neighbours: str, factor: int
) -> None:
    assert unit.convert(Gaussian(0.25), neighbours) == Gaussian(0.25 * factor)
    assert unit.convert(Pure(0.25), neighbours) == Pure(0.25 * factor)


@given(
    st.floats(1.0, 20.0),
    st.floats(1.0, 5.0),
    st.sampled_from([sensitivity.of_gradient, sensitivity.of_curvature]),
    st.sampled_from([1, 2]),
)
def test_a_replacement_is_at_least_as_far_as_an_absence_and_at_most_two_of_them(
    l2: float, ratio: float, distance: object, order: int
) -> None:
    """What `Unit.convert` rests on, in both directions."""
    bounds = Bounds(min(ratio, 2.0) * l2, l2)
    absent, replaced = (
        distance(bounds, 0.7, neighbours, order)  # type: ignore[operator]
        for neighbours in ("zero-out", "replace-one")
    )
    assert absent <= replaced <= 2 * absent * (1 + 1e-15)
    counts = [sensitivity.of_class_counts(n, order) for n in ("zero-out", "replace-one")]  # type: ignore[arg-type]
    assert counts[0] <= counts[1] <= 2 * counts[0]
