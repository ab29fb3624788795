"""Privacy curves of discrete noise against sums over all outputs at high precision."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import PrivacyError
from pipeline.privacy import gdp
from pipeline.privacy.curves import (
    LARGEST_SIGMA,
    concentrated_delta,
    discrete_gaussian_delta,
    smallest,
)
from tests.laws import discrete_laplace_delta

sigmas = st.floats(0.2, 200.0)
#: From so many units on more noise never shows more; below 2.2 a finer grid found exceptions.
COARSE = 4.0
scales = st.floats(0.1, 200.0)
steps = st.integers(1, 60)
epsilons = st.floats(0.0, 12.0)


def hockey_stick(weight: dict[int, mpmath.mpf], distance: int, epsilon: float) -> mpmath.mpf:
    """Return sum_x max(0, P(x) - e^epsilon P(x - distance)), over every output there is."""
    factor, none = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(0)
    total = mpmath.fsum(weight.values())
    parts = (one - factor * weight.get(x - distance, none) for x, one in weight.items())
    return mpmath.fsum(part for part in parts if part > 0) / total


GAUSSIANS = [(0.1, 1), (0.3, 1), (0.7, 1), (1.0, 3), (3.0, 2), (8.0, 30), (40.0, 7), (100.0, 1)]
LAPLACES = [(0.1, 1), (0.5, 1), (1.0, 3), (3.0, 2), (8.0, 30), (40.0, 7), (100.0, 1)]
AT = (0.0, 1e-6, 0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 40.0)


@pytest.mark.parametrize(("sigma", "distance"), GAUSSIANS)
def test_the_discrete_gaussian_s_curve_is_the_sum_over_all_outputs(
    sigma: float, distance: int
) -> None:
    with mpmath.workdps(60):
        s = mpmath.mpf(sigma)
        reach = math.ceil(40 * sigma) + 4
        law = {x: mpmath.exp(-(x * x) / (2 * s * s)) for x in range(-reach, reach + distance + 1)}
        for epsilon in AT:
            exact = float(hockey_stick(law, distance, epsilon))
            found = discrete_gaussian_delta(sigma, distance, epsilon)
            assert found == pytest.approx(exact, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize(("scale", "distance"), LAPLACES)
def test_the_discrete_laplace_s_curve_is_the_sum_over_all_outputs(
    scale: float, distance: int
) -> None:
    with mpmath.workdps(60):
        b = mpmath.mpf(scale)
        reach = math.ceil(60 * scale) + 4
        law = {x: mpmath.exp(-abs(x) / b) for x in range(-reach, reach + distance + 1)}
        # the sum leaves out e^-60 of the mass, and the closed form has float64's rounding
        for epsilon in AT:
            exact = float(hockey_stick(law, distance, epsilon))
            found = discrete_laplace_delta(scale, distance, epsilon)
            assert found == pytest.approx(exact, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("scale", "distance"), LAPLACES)
def test_the_discrete_laplace_keeps_a_pure_epsilon_and_nothing_below_it(
    scale: float, distance: int
) -> None:
    assert discrete_laplace_delta(scale, distance, distance / scale) == 0.0
    assert discrete_laplace_delta(scale, distance, 0.99 * distance / scale) > 0.0


@pytest.mark.parametrize("sigma", [20.0, 300.0, 5000.0, LARGEST_SIGMA])
def test_a_fine_discrete_gaussian_has_the_continuous_curve(sigma: float) -> None:
    """Of variance sigma^2 - 1/12, up to 32 / sigma^4 in epsilon and 16 / sigma^4 in delta.

    Below it by as much as rounding hides, which is of the order of 1 / sigma^2.
    """
    distance = round(sigma)
    tau = math.sqrt(sigma**2 - 1 / 12)
    for epsilon in (0.1, 1.0, 3.0):
        found = discrete_gaussian_delta(sigma, distance, epsilon)
        mu = distance / tau
        gap = 32 / sigma**4
        assert found <= gdp.delta_of(mu, epsilon - gap) * (1 + 16 / sigma**4 + 1e-12)
        assert found >= gdp.delta_of(mu, epsilon) * (1 - 4 / sigma**2)


@given(sigmas, steps, epsilons, st.floats(1.0, 3.0), st.integers(0, 30))
def test_the_gaussian_curve_falls_with_noise_and_epsilon_and_rises_with_distance(
    sigma: float, distance: int, epsilon: float, factor: float, more: int
) -> None:
    delta = discrete_gaussian_delta(sigma, distance, epsilon)
    assert 0 <= delta <= 1
    loose, tiny = 1 + 1e-9, 1e-300
    assert discrete_gaussian_delta(sigma, distance, epsilon * factor) <= delta * loose + tiny
    assert discrete_gaussian_delta(sigma, distance + more, epsilon) * loose + tiny >= delta
    # coarser than that, where the points of the lattice lie shows: the curve of one of 0.5 units
    # lies below that of one of 0.75 at some epsilons, and both are exact
    if sigma >= COARSE:
        assert discrete_gaussian_delta(sigma * factor, distance, epsilon) <= delta * loose + tiny


@given(scales, steps, epsilons, st.floats(1.0, 3.0), st.integers(0, 30))
def test_the_laplace_curve_falls_with_noise_and_epsilon_and_rises_with_distance(
    scale: float, distance: int, epsilon: float, factor: float, more: int
) -> None:
    delta = discrete_laplace_delta(scale, distance, epsilon)
    assert 0 <= delta <= 1
    # one minus a float: an absolute error of a few units in the last place of one
    rounding = 1e-15
    assert discrete_laplace_delta(scale, distance, epsilon * factor) <= delta + rounding
    assert discrete_laplace_delta(scale, distance + more, epsilon) + rounding >= delta
    assert discrete_laplace_delta(scale * factor, distance, epsilon) <= delta + rounding


# --- concentrated privacy --------------------------------------------------------------------


def conversion(rho: float, epsilon: float) -> float:
    """Return the bound of Canonne, Kamath and Steinke, Proposition 12, by a fine grid of orders."""
    order = 1 + np.geomspace(1e-5, 1e9, 200_001)
    gain = (order - 1) * (order * rho - epsilon)
    return float(np.exp(np.min(gain + order * np.log1p(-1 / order) - np.log(order - 1))))


@pytest.mark.parametrize("rho", [1e-6, 1e-3, 0.05, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 12.0, 40.0])
def test_the_bound_is_the_best_of_all_orders(rho: float, epsilon: float) -> None:
    found = concentrated_delta(rho, epsilon)
    assert 0 < found <= 1 or epsilon**2 / rho > 1000
    assert found <= min(1.0, conversion(rho, epsilon)) * (1 + 1e-9)
    # the grid misses the best order by 2e-4 of itself: up to the square of that, times log delta
    assert found >= min(1.0, conversion(rho, epsilon)) * (1 - 1e-4)


@given(st.floats(0.3, 300.0), steps, epsilons)
def test_the_bound_is_never_below_the_exact_curve_of_one_integer(
    sigma: float, distance: int, epsilon: float
) -> None:
    exact = discrete_gaussian_delta(sigma, distance, epsilon)
    assert concentrated_delta(distance**2 / (2 * sigma**2), epsilon) >= exact * (1 - 1e-9)


@given(st.floats(0.01, 5.0), st.floats(0.0, 20.0))
def test_the_bound_is_never_below_the_exact_curve_of_the_continuous_law(
    mu: float, epsilon: float
) -> None:
    assert concentrated_delta(mu**2 / 2, epsilon) >= gdp.delta_of(mu, epsilon) * (1 - 1e-9)


@pytest.mark.parametrize("dimension", [2, 3])
def test_the_bound_holds_for_vectors_whose_difference_points_anywhere(dimension: int) -> None:
    """Small vectors of discrete Gaussians, summed over all outputs there are."""
    sigma = 1.3
    k = np.arange(-14, 15)
    mass = np.exp(-(k**2) / (2 * sigma**2))
    mass /= mass.sum()
    for shift in ((1, 1, 0), (1, 1, 1), (2, 1, 0), (1, 0, 0), (3, 2, 1)):
        moved = shift[:dimension]
        one, two = np.ones(()), np.ones(())
        for step in moved:
            one = np.multiply.outer(one, mass)
            two = np.multiply.outer(two, np.roll(mass, step))
        rho = sum(step**2 for step in moved) / (2 * sigma**2)
        for epsilon in (0.0, 0.5, 1.0, 3.0):
            delta = np.maximum(0, one - math.exp(epsilon) * two).sum()
            assert delta <= concentrated_delta(rho, epsilon) * (1 + 1e-9)


@given(st.floats(1e-6, 20.0), epsilons, st.floats(1.0, 3.0))
def test_the_bound_falls_in_epsilon_and_rises_in_rho(
    rho: float, epsilon: float, factor: float
) -> None:
    delta = concentrated_delta(rho, epsilon)
    assert concentrated_delta(rho, epsilon * factor) <= delta * (1 + 1e-9)
    assert concentrated_delta(rho * factor, epsilon) >= delta * (1 - 1e-9)


# --- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 700.0, 1e4, 1e9])
@pytest.mark.parametrize("distance", [1, 1000, 2**40, 10**21])
@pytest.mark.parametrize("noise", [0.1, 1.0, 1000.0, LARGEST_SIGMA])
def test_extreme_arguments_give_probabilities_at_once(
    noise: float, distance: int, epsilon: float
) -> None:
    """No overflow, and no array that grows with the distance."""
    for curve in (discrete_gaussian_delta, discrete_laplace_delta):
        delta = curve(noise, distance, epsilon)
        assert 0 <= delta <= 1
        if distance / noise > 1e6 and epsilon <= 1e4:
            assert delta == pytest.approx(1.0, abs=1e-12)
    assert 0 <= concentrated_delta(distance**2 / (2 * noise**2), epsilon) <= 1


@pytest.mark.parametrize("sigma", [0.0, -1.0, LARGEST_SIGMA * 1.01, math.inf, math.nan])
def test_a_scale_without_an_exact_curve_is_refused(sigma: float) -> None:
    with pytest.raises(PrivacyError, match="scale"):
        discrete_gaussian_delta(sigma, 1, 1.0)


@pytest.mark.parametrize("edge", [1e-200, 1e-9, 0.3, 1.0, 7.0, 1e150])
@pytest.mark.parametrize("start", [1e-6, 1.0, 1e9])
def test_the_smallest_number_is_found_from_anywhere(edge: float, start: float) -> None:
    found = smallest(lambda value: value >= edge, start)
    assert edge <= found <= edge * (1 + 2e-12)


def test_a_condition_that_never_holds_is_an_error() -> None:
    with pytest.raises(PrivacyError, match="no noise"):
        smallest(lambda _: False, 1.0)
