"""Costs against dp-accounting, whose privacy loss distributions are another method.

A distribution of privacy losses on a grid gives an upper estimate of delta, or with the other
rounding a lower one; both come close as the grid gets finer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import pytest
from dp_accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    NeighboringRelation,
    RandomizedResponseDpEvent,
    pld,
    rdp,
)
from dp_accounting.pld import privacy_loss_distribution as losses
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from pipeline.privacy import accounting as gdp
from pipeline.privacy.accounting import total_epsilon, total_mu
from pipeline.privacy.events import Gaussian, Pure, Renyi, group

#: The estimate lies above the truth by less than 1e-6 on this grid.
FINE = 1e-4


def composed(parts: Sequence[PrivacyLossDistribution]) -> PrivacyLossDistribution:
    return functools.reduce(lambda one, two: one.compose(two), parts)


@pytest.mark.parametrize(
    "mus",
    [
        [1.0],
        *(
            pytest.param(mus, marks=pytest.mark.slow)
            for mus in ([0.3, 0.4, 1.2], [0.2] * 10, [0.5, 0.05, 0.05, 0.7, 0.33], [2.0, 1.0])
        ),
    ],
    ids=str,
)
def test_composed_gaussian_costs_have_the_epsilon_of_the_accountant(mus: list[float]) -> None:
    accountant = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, FINE)
    for mu in mus:
        accountant.compose(GaussianDpEvent(1 / mu))
    for delta in (1e-9, 1e-6, 1e-3, 0.4):
        ours = total_epsilon(map(Gaussian, mus), delta)
        assert accountant.get_epsilon(delta) == pytest.approx(ours, abs=1e-6)


MIXTURES = [
    ([0.3], [0.1] * 5),
    ([0.2, 0.5], [0.5, 0.2]),
    ([0.1], [1.0]),
    ([1.0], [0.01]),
    ([], [0.3, 0.3, 0.3]),
    ([], [0.05] * 30),
    ([0.7], [2.0, 0.3]),
]


@pytest.mark.parametrize(("gaussian", "laplace"), MIXTURES)
def test_a_mixture_s_epsilon_is_an_upper_bound_and_no_loose_one(
    gaussian: list[float], laplace: list[float]
) -> None:
    lower = composed(
        [
            *(
                losses.from_gaussian_mechanism(
                    1 / mu,
                    pessimistic_estimate=False,
                    value_discretization_interval=1e-3,
                    use_connect_dots=False,
                )
                for mu in gaussian
            ),
            *(
                losses.from_laplace_mechanism(
                    1 / epsilon,
                    pessimistic_estimate=False,
                    value_discretization_interval=1e-3,
                    use_connect_dots=False,
                )
                for epsilon in laplace
            ),
        ]
    )
    costs = [*map(Gaussian, gaussian), *map(Pure, laplace)]
    for delta in (1e-9, 1e-6, 1e-3, 0.1):
        least = lower.get_epsilon_for_delta(delta)
        assert total_epsilon(costs, delta) >= least
        # any epsilon-DP release may hide behind a pure cost, and Laplace noise is not the worst
        assert total_epsilon(costs, delta) <= 1.5 * least + 0.25


def test_randomised_response_is_the_release_that_a_pure_cost_is_for() -> None:
    """Its trade-off function is the worst of all epsilon-DP ones; composed, ours lies above it."""
    epsilon, count = 0.2, 40
    p = 1 / (1 + math.exp(epsilon))
    one = losses.from_randomized_response(
        2 * p, 2, pessimistic_estimate=False, value_discretization_interval=1e-3
    )
    lower = one.self_compose(count)
    costs = [Pure(epsilon)] * count
    for delta in (1e-6, 1e-3, 0.1):
        least = lower.get_epsilon_for_delta(delta)
        # the implied mu is sqrt(pi / 2) of what many small ones amount to, or their sum counts
        assert least <= total_epsilon(costs, delta) <= 1.5 * least


def test_a_group_s_cost_is_that_of_a_mechanism_with_as_many_times_the_sensitivity() -> None:
    for k in (2, 5):
        moved = losses.from_gaussian_mechanism(4.0, float(k), value_discretization_interval=FINE)
        ours = total_epsilon([group(Gaussian(0.25), k)], 1e-6)
        assert moved.get_epsilon_for_delta(1e-6) == pytest.approx(ours, abs=1e-6)
        # Laplace noise of k-fold sensitivity
        moved = losses.from_laplace_mechanism(10.0, float(k))
        ours = total_epsilon([group(Pure(0.1), k)], 0.0)
        assert moved.get_epsilon_for_delta(1e-12) == pytest.approx(ours, abs=1e-6)


def test_the_accountant_counts_laplace_events_no_higher_than_their_sum() -> None:
    accountant = pld.PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, FINE)
    for scale in (2.0, 4.0):
        accountant.compose(LaplaceDpEvent(scale))
    costs = [Pure(0.5), Pure(0.25)]
    assert accountant.get_epsilon(1e-12) == pytest.approx(total_epsilon(costs, 0.0), abs=1e-3)


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
def test_the_whole_gaussian_curve_is_that_of_its_loss_distribution(mu: float) -> None:
    upper = losses.from_gaussian_mechanism(1 / mu, value_discretization_interval=FINE)
    assert total_mu([Gaussian(mu)]) == mu
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        ours = gdp.delta_of(mu, epsilon)
        # the grid errs upwards by less than its step squared
        assert upper.get_delta_for_epsilon(epsilon) == pytest.approx(ours, rel=1e-6, abs=1e-8)


ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0)


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("mus", [(0.5,), (0.1, 0.3, 1.0), (0.05,) * 40])
def test_renyi_curves_compose_to_what_the_accountant_of_the_same_orders_says(
    mus: tuple[float, ...], delta: float
) -> None:
    accountant = rdp.RdpAccountant(ORDERS)
    for mu in mus:
        accountant.compose(GaussianDpEvent(1 / mu))
    curves = [Renyi(ORDERS, tuple(order * mu**2 / 2 for order in ORDERS)) for mu in mus]
    ours = total_epsilon(curves, delta)
    assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-12)
    # a Gaussian event beside a curve counts by the same divergences
    assert total_epsilon([Gaussian(mus[0]), *curves[1:]], delta) <= ours * (1 + 1e-12)


def test_a_pure_event_beside_a_curve_is_counted_as_randomised_response() -> None:
    epsilon, mu, count, delta = 0.3, 0.4, 30, 1e-6
    accountant = rdp.RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
    accountant.compose(RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2), count)
    accountant.compose(GaussianDpEvent(1 / mu))
    curve = Renyi(ORDERS, tuple(order * mu**2 / 2 for order in ORDERS))
    ours = total_epsilon([*[Pure(epsilon)] * count, curve], delta)
    assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-9)
    assert ours < count * epsilon


def test_a_group_s_curve_is_no_lower_than_that_of_so_many_times_the_sensitivity() -> None:
    mu = 0.2
    curve = Renyi(ORDERS, tuple(order * mu**2 / 2 for order in ORDERS))
    for k in (2, 3, 8):
        grouped = group(curve, k)
        assert isinstance(grouped, Renyi)
        for order, epsilon in zip(grouped.orders, grouped.epsilons, strict=True):
            assert order >= 2
            assert epsilon >= order * (k * mu) ** 2 / 2
