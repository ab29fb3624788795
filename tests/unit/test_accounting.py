"""Costs of releases: the Gaussian trade-off, how costs add up, and how events are written."""

from __future__ import annotations

import itertools
import json
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
from pipeline.privacy.events import (
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    Pure,
    Renyi,
    Repeated,
    TotalVariation,
    compose,
    decode,
    encode,
    group,
    worse,
)
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


def exact_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


@pytest.mark.parametrize("mu", [1e-3, 0.02, 0.3, 1.0, 5.0, 20.0])
def test_delta_agrees_with_sixty_digits(mu: float) -> None:
    for epsilon in (0.0, 1e-6, 0.01, 0.1, 1.0, 5.0, 50.0):
        wanted = exact_delta(mu, epsilon)
        assert gdp.delta_of(mu, epsilon) == pytest.approx(wanted, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 10.0, 20.0, 100.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-6, 0.3, 0.4])
def test_round_trips_return_and_err_on_the_side_of_privacy(epsilon: float, delta: float) -> None:
    mu = gdp.mu_of(epsilon, delta)
    assert gdp.delta_of(mu, epsilon) <= delta
    assert gdp.delta_of(mu * (1 + 1e-9), epsilon) > delta * (1 - 1e-9)
    assert gdp.epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)


@given(st.floats(1e-6, 50.0), st.floats(0.0, 50.0), st.floats(1.0, 3.0))
def test_delta_is_monotonic_at_any_mu_and_epsilon(mu: float, epsilon: float, factor: float) -> None:
    delta = gdp.delta_of(mu, epsilon)
    # the logarithms of the tails have about 1e-13 of rounding where they are large
    assert gdp.delta_of(mu * factor, epsilon) >= delta * (1 - 1e-9)
    assert gdp.delta_of(mu, epsilon * factor) <= delta * (1 + 1e-9)


@given(st.floats(1e-4, 20.0), st.floats(1e-15, 0.4), st.floats(1.0, 2.0))
def test_more_budget_never_means_more_noise(epsilon: float, delta: float, factor: float) -> None:
    mu = gdp.mu_of(epsilon, delta)
    assert gdp.mu_of(epsilon * factor, delta) >= mu * (1 - 1e-9)
    assert gdp.mu_of(epsilon, min(0.99, delta * factor)) >= mu * (1 - 1e-9)
    assert gdp.epsilon_of(mu / factor, delta) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mu", "epsilon"), [(1e-8, 1.0), (1e-300, 1e-3), (1e3, 1.0), (1e-3, 1e6), (50.0, 0.0)]
)
def test_extreme_inputs_give_probabilities(mu: float, epsilon: float) -> None:
    assert 0 <= gdp.delta_of(mu, epsilon) <= 1


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-4, 1e-12), (100, 1e-300), (1e-3, 0.999)])
def test_extreme_budgets_have_a_finite_mu(epsilon: float, delta: float) -> None:
    mu = gdp.mu_of(epsilon, delta)
    assert 0 < mu < 100
    assert exact_delta(mu, epsilon) <= delta * (1 + 1e-6)


def test_epsilon_is_zero_where_delta_alone_covers_it() -> None:
    assert gdp.epsilon_of(0.0, 1e-6) == 0
    assert gdp.epsilon_of(1e-9, 1e-6) == 0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(PrivacyError, match=r"privacy\.epsilon"):
        gdp.mu_of(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_a_delta_that_no_mechanism_has_is_refused(delta: float) -> None:
    with pytest.raises(PrivacyError, match=r"privacy\.delta"):
        gdp.mu_of(1.0, delta)


CURVE = Renyi((2.0, 4.0, 8.0), (0.1, 0.2, 0.4))
SINGLE = st.one_of(
    st.sampled_from([0.1, 0.3, 1.0]).map(Gaussian),
    st.sampled_from([0.1, 0.3, 1.0]).map(Pure),
    st.sampled_from([1e-9, 3e-8]).map(TotalVariation),
    st.sampled_from([CURVE, Renyi((2.0, 4.0, 8.0), (0.2, 0.3, 0.3))]),
)
EVENTS = st.lists(SINGLE, min_size=1, max_size=6).map(compose)


@given(EVENTS)
def test_what_is_written_is_read(event: Event) -> None:
    assert decode(encode(event)) == event


@given(st.lists(SINGLE, min_size=1, max_size=5))
def test_several_events_have_one_form_in_any_order_and_any_nesting(events: list[Event]) -> None:
    whole = compose(events)
    for order in itertools.islice(itertools.permutations(events), 6):
        assert compose(order) == whole
        assert compose([compose(order[:1]), *([compose(order[1:])] if order[1:] else [])]) == whole
    assert compose([*events, *events]) == compose({whole: 2})


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", '{"kind": "gaussian/1"}', '{"kind": "gaussian/2", "mu": 1.0}',
        '{"kind": "sampled/1", "mu": 1.0}', '{"kind": "gaussian/1", "mu": 0.0}',
        '{"kind": "gaussian/1", "mu": -1.0}', '{"kind": "pure/1", "epsilon": "1"}',
        '{"kind": "gaussian/1", "mu": 1.0, "rate": 0.1}', '{"kind": "composed/1"}',
        '{"kind": "renyi/1", "orders": [2.0], "epsilons": []}',
        '{"kind": "renyi/1", "orders": [], "epsilons": []}',
        '{"kind": "renyi/1", "orders": [4.0, 2.0], "epsilons": [0.1, 0.2]}',
        '{"kind": "renyi/1", "orders": [2.0, 4.0], "epsilons": [0.2, 0.1]}',
        '{"kind": "renyi/1", "orders": [1.0], "epsilons": [0.1]}',
        '{"kind": "composed/1", "parts": [{"event": {"kind": "non-private/1"}, "times": 0}]}',
        '{"kind": "composed/1", "parts": [{"event": {"kind": "sampled/1"}, "times": 1}]}',
        '{"kind": "composed/1", "parts": []}',
        '{"kind": "total-variation/1", "distance": 0.0}',
        '{"kind": "total-variation/1", "distance": 1.1}',
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(PrivacyError, match="use the version"):
        decode(text)


def test_the_form_of_each_kind_is_what_ledgers_hold() -> None:
    """A change of these lines is a new version of a kind: old ledgers hold them for ever."""
    assert json.loads(encode(Gaussian(0.5))) == {"kind": "gaussian/1", "mu": 0.5}
    assert json.loads(encode(Pure(0.5))) == {"kind": "pure/1", "epsilon": 0.5}
    assert json.loads(encode(TotalVariation(1e-9))) == {
        "kind": "total-variation/1", "distance": 1e-9,
    }  # fmt: skip
    assert json.loads(encode(NonPrivate())) == {"kind": "non-private/1"}
    assert json.loads(encode(CURVE)) == {
        "kind": "renyi/1", "orders": [2.0, 4.0, 8.0], "epsilons": [0.1, 0.2, 0.4],
    }  # fmt: skip
    assert json.loads(encode(compose([Pure(0.5), Pure(0.5)]))) == {
        "kind": "composed/1",
        "parts": [{"event": {"kind": "pure/1", "epsilon": 0.5}, "times": 2}],
    }


@given(EVENTS, EVENTS, EVENTS)
def test_the_worse_of_two_is_no_lower_than_either_however_often_it_is_taken(
    one: Event, two: Event, three: Event
) -> None:
    both = worse(one, two)
    for delta in (0.0, 1e-6):
        for each in (one, two):
            assert total_epsilon([both], delta) >= total_epsilon([each], delta) * (1 - 1e-12)
    assert both == worse(two, one)
    assert worse(both, one) == worse(both, two) == both == worse(both, both)
    assert worse(worse(one, two), three) == worse(one, worse(two, three))
    # no more than both together, so that the same spend told twice is paid once
    assert total_mu([both]) <= total_mu([one, two])


def test_the_larger_of_two_costs_of_a_kind_is_the_worse() -> None:
    assert worse(Gaussian(0.3), Gaussian(0.5)) == Gaussian(0.5)
    assert worse(Pure(0.3), Pure(0.5)) == Pure(0.5)
    few, many = compose({Pure(0.3): 2, Pure(0.1): 1}), compose({Pure(0.2): 4})
    assert worse(few, many) == compose({Pure(0.3): 2, Pure(0.2): 2})
    assert worse(NonPrivate(), Gaussian(0.3)) == NonPrivate() == worse(Pure(9.0), NonPrivate())


def test_a_curve_that_another_machine_finds_a_hair_apart_is_not_paid_twice() -> None:
    hair = Renyi(CURVE.orders, tuple(math.nextafter(one, 0) for one in CURVE.epsilons))
    assert worse(CURVE, hair) == worse(hair, CURVE) == CURVE
    crossing = Renyi(CURVE.orders, (0.05, 0.2, 0.6))
    assert worse(CURVE, crossing) == Renyi(CURVE.orders, (0.1, 0.2, 0.6))
    drawn, others = (compose([one, TotalVariation(t)]) for one, t in ((CURVE, 1e-9), (hair, 2e-9)))
    assert worse(drawn, others) == compose([CURVE, TotalVariation(2e-9)])
    # of several, each order has its own largest
    twice, lower = compose({CURVE: 2, hair: 1}), Renyi(CURVE.orders, (0.09, 0.2, 0.6))
    assert worse(twice, lower) == compose(
        [Renyi(CURVE.orders, (0.1, 0.2, 0.6)), CURVE, hair]
    )  # fmt: skip
    apart = Renyi((3.0,), (0.1,))
    assert worse(CURVE, apart) == compose([CURVE, apart])


def test_releases_of_which_one_protects_nobody_protect_nobody() -> None:
    for events in ([NonPrivate()] * 2, [Gaussian(1.0), NonPrivate()], {NonPrivate(): 2**60}):
        assert compose(events) == NonPrivate()
    twice = Composed((Repeated(NonPrivate(), 2),))
    assert worse(twice, Gaussian(1.0)) == worse(Gaussian(1.0), twice) == NonPrivate()
    assert decode(encode(twice)) == NonPrivate()


@pytest.mark.parametrize("single", [Gaussian(1.0), Pure(1.0), CURVE])
def test_a_cost_that_is_written_in_two_parts_counts_as_one(single: Gaussian | Pure | Renyi) -> None:
    parts = Composed((Repeated(single, 3), Repeated(single, 1)))
    assert worse(parts, parts) == worse(parts, single) == worse(single, parts)
    assert worse(parts, parts) == decode(encode(parts)) == compose({single: 4})
    assert decode(encode(Composed((Repeated(single, 1),)))) == single


def test_what_could_not_be_read_again_is_not_made() -> None:
    for count in (0, 2**53 + 1):
        with pytest.raises(PrivacyError, match="2\\^53"):
            compose({Pure(0.1): count})
    with pytest.raises(PrivacyError, match="at least one"):
        compose([])
    largest = compose({Gaussian(0.5): 2**53, Pure(0.5): 1})
    assert decode(encode(group(largest, 2 * 10**9))) == group(largest, 2 * 10**9)
    for event in (Gaussian(0.5), Pure(0.5), compose({Gaussian(0.5): 2**53})):
        with pytest.raises(PrivacyError, match="unit of fewer records"):
            group(event, 2 * 10**9 + 1)
    with pytest.raises(PrivacyError, match="unit of fewer records"):
        group(Renyi((8.0,), (0.5e9,)), 2)


def test_a_group_pays_for_each_single_event() -> None:
    whole = compose({Gaussian(0.3): 2, Pure(0.1): 3})
    assert group(whole, 4) == compose({Gaussian(1.2): 2, Pure(0.4): 3})
    assert group(whole, 1) == whole
    assert group(compose([whole, NonPrivate()]), 4) == NonPrivate()
    # Mironov 2017, proposition 2: of two records, order 8 says something of order 4
    assert group(CURVE, 2) == Renyi((2.0, 4.0), (3 * 0.2, 3 * 0.4))
    assert group(compose({CURVE: 5}), 2) == compose({group(CURVE, 2): 5})
    with pytest.raises(PrivacyError, match="larger orders"):
        group(CURVE, 5)


def test_two_curves_that_a_group_makes_one_are_both_counted() -> None:
    other = Renyi((3.0, 4.0, 8.0), (0.1, 0.2, 0.4))
    assert group(compose([CURVE, other]), 2) == compose({group(CURVE, 2): 2})


def test_a_unit_of_records_with_noise_of_their_own_pays_as_a_composition() -> None:
    unit = Unit(5, "zero-out")
    own = unit.convert(CURVE, "zero-out", noise_per_record=True)
    assert own == compose({CURVE: 5})
    assert isinstance(own, Composed)
    assert math.isinf(total_mu([own]))
    assert total_epsilon([own], 1e-6) < math.inf == total_epsilon([own], 0.0)


def test_a_curve_costs_what_its_best_order_says() -> None:
    """Canonne, Kamath and Steinke 2020, proposition 12, at each order by hand."""
    delta = 1e-6
    expected = min(
        e + math.log((a - 1) / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a, e in zip(CURVE.orders, CURVE.epsilons, strict=True)
    )
    assert total_epsilon([CURVE], delta) == pytest.approx(expected, rel=1e-14)
    # an order that one of them does not give is bounded by its next larger one
    sparse = Renyi((8.0,), (0.4,))
    assert total_epsilon([sparse, CURVE], delta) <= total_epsilon([sparse, sparse], delta)
    assert total_epsilon([CURVE, Pure(3.0)], delta) <= 3.0 + expected
