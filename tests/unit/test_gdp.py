from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism as dp
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PrivacyError
from pipeline.privacy import accounting as gdp
from pipeline.privacy.accounting import total_mu
from pipeline.privacy.events import Gaussian


def exact_delta(mu: float, epsilon: float) -> float:
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2))


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.5, 0.1422), (1, 0.2681), (2, 0.5016), (4, 0.9249), (8, 1.666)]
)
def test_mu_has_the_known_values_of_the_analytic_gaussian_mechanism(
    epsilon: float, mu: float
) -> None:
    assert gdp.mu_of(epsilon, 1e-5) == pytest.approx(mu, abs=5e-4 if mu > 1 else 5e-5)


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.1, 0.5, 1.0, 3.0, 8.0, 20.0, 30.0, 100.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-9, 1e-5, 0.01, 0.4])
def test_mu_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    mu = gdp.mu_of(epsilon, delta)
    sigma = dp.get_sigma_gaussian(epsilon, delta, tol=1e-12 / mu)
    # its difference of two log probabilities loses digits where delta is far below epsilon
    assert mu == pytest.approx(1 / sigma, rel=1e-6)


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-10, 1e-6, 1e-3, 0.4])
def test_epsilon_agrees_with_dp_accounting(mu: float, delta: float) -> None:
    assert gdp.epsilon_of(mu, delta) == pytest.approx(
        dp.get_epsilon_gaussian(1 / mu, delta, tol=1e-13), rel=1e-6, abs=1e-12
    )


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


def test_delta_falls_in_epsilon_and_rises_in_mu() -> None:
    epsilons, mus = np.linspace(0, 10, 60), np.geomspace(0.01, 10, 60)
    assert np.all(np.diff([gdp.delta_of(1.0, e) for e in epsilons]) < 0)
    assert np.all(np.diff([gdp.delta_of(m, 1.0) for m in mus]) >= 0)


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


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0])
@pytest.mark.parametrize("k", [2, 5])
def test_a_group_has_the_epsilon_of_a_mechanism_as_many_times_as_sensitive(
    mu: float, k: int
) -> None:
    for delta in (1e-9, 1e-3):
        wanted = dp.get_epsilon_gaussian(1 / (k * mu), delta, tol=1e-13)
        assert gdp.epsilon_of(k * mu, delta) == pytest.approx(wanted, rel=1e-6, abs=1e-12)


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


def test_composition_is_the_root_of_the_sum_of_squares() -> None:
    assert total_mu([Gaussian(3.0), Gaussian(4.0)]) == 5.0
    assert total_mu([]) == 0.0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(PrivacyError, match=r"privacy\.epsilon"):
        gdp.mu_of(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(PrivacyError, match=r"privacy\.delta"):
        gdp.mu_of(1.0, delta)
