"""What every family must keep, whatever its loss: a new one is in these tests by its name alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.losses import Likelihood, Linear, Loss, Poisson, Regression, Terms

LARGEST = 12.0
FAMILIES = [
    pytest.param(losses.build(name, terms), id=f"{name}-{label}")
    for name in losses.NAMES
    for label, terms in {
        "noised": Terms(largest=LARGEST),
        "bare": Terms(largest=LARGEST, noised=False),
        "other": Terms(q=0.3, smoothing=0.1, residual_bound=0.4, tau=0.2, largest=1.0),
    }.items()
]
families = pytest.mark.parametrize("loss", FAMILIES)


def responses(loss: Loss, rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw encoded responses of the family's kind, the ends of their range among them."""
    if loss.responses == "class":
        return rng.choice([-1.0, 1.0], n)
    if loss.responses == "number":
        return np.clip(rng.normal(0, 0.8, n), -1, 1)
    most = min(loss.slope_bound, LARGEST)
    return rng.integers(0, int(most) + 1, n).astype(float)


def drawn(loss: Loss, n: int = 20_000, width: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(0.5, width, n), responses(loss, rng, n)


def test_the_registry_names_each_family_by_its_own_name() -> None:
    assert set(losses.NAMES) == {"gdwd", "logistic", "linear", "expectile", "poisson"}
    for name in losses.NAMES:
        loss = losses.build(name)
        assert loss.name == name
        assert loss.responses in ("class", "number", "count")
        assert isinstance(loss, Regression) == (loss.responses != "class")
        assert not (isinstance(loss, Likelihood) and isinstance(loss, Regression))


@families
def test_the_slope_is_the_derivative_of_the_value(loss: Loss) -> None:
    u, y = drawn(loss)
    h = 1e-6
    numeric = (loss.value(u + h, y) - loss.value(u - h, y)) / (2 * h)
    # a kink of the slope within h, and the rounding of the difference
    scale = 1 + np.abs(loss.value(u, y))
    kink = h * loss.sharp_curvature(u + h, y) + h * loss.sharp_curvature(u - h, y)
    assert np.all(np.abs(loss.slope(u, y) - numeric) <= 1e-8 * scale + kink + 5e-5)


@families
def test_the_sharp_curvature_is_the_derivative_of_the_slope_but_for_jumps(loss: Loss) -> None:
    u, y = drawn(loss)
    h = 1e-6
    numeric = (loss.slope(u + h, y) - loss.slope(u - h, y)) / (2 * h)
    sharp = loss.sharp_curvature(u, y)
    # the slope may bend at a point or two: a handful of draws fall within h of one
    off = np.abs(sharp - numeric) > 1e-5 * (1 + sharp)
    assert np.count_nonzero(off) <= 3


@families
def test_the_value_is_convex_in_the_predictor(loss: Loss) -> None:
    u = np.linspace(-6, 6, 4001)
    for y in np.unique(responses(loss, np.random.default_rng(0), 40)):
        value = loss.value(u, np.full_like(u, y))
        rounding = 1e-13 * np.max(np.abs(value))
        assert np.all(np.diff(value, 2) >= -4 * rounding)


@families
def test_no_slope_or_curvature_passes_its_public_bound(loss: Loss) -> None:
    for width in (0.5, 3.0, 1e3, 1e150):
        u, y = drawn(loss, width=width)
        assert np.all(np.abs(loss.slope(u, y)) <= loss.slope_bound)
        for curvature in (loss.curvature(u, y), loss.sharp_curvature(u, y)):
            assert np.all(curvature >= 0)
        assert np.max(loss.curvature(u, y)) <= loss.curvature_bound * (1 + 1e-12)
        assert np.max(loss.sharp_curvature(u, y)) <= loss.sharp_curvature_bound * (1 + 1e-12)


@pytest.mark.parametrize("name", losses.NAMES)
def test_the_bounds_that_noise_is_scaled_to_are_finite_and_reached(name: str) -> None:
    loss = losses.build(name, Terms(largest=LARGEST))
    u, y = drawn(loss, 400_000)
    if name == "poisson":
        u = np.append(u, math.log(LARGEST))
        y = np.append(y, 0.0)
    assert math.isfinite(loss.slope_bound)
    assert np.max(np.abs(loss.slope(u, y))) > 0.99 * loss.slope_bound
    assert np.max(loss.curvature(u, y)) > 0.99 * loss.curvature_bound


@families
def test_a_loss_leaves_nothing_out_of_a_linearised_score_only_if_its_curvature_is_constant(
    loss: Loss,
) -> None:
    u, y = drawn(loss)
    constant = bool(np.ptp(loss.sharp_curvature(u, y)) == 0)
    assert (loss.remainder == 0) == constant


@families
def test_the_bound_of_slopes_at_the_start_holds_and_is_reached(loss: Loss) -> None:
    y = responses(loss, np.random.default_rng(3), 40_000)
    if isinstance(loss, Regression):
        slopes = loss.start_slope(np.append(y, [0.0 if loss.responses == "count" else -1.0]))
    else:
        slopes = loss.slope(np.full_like(y, loss.start_intercept), y)
    largest = np.max(np.abs(slopes))
    assert 0.99 * loss.start_slope_bound < largest <= loss.start_slope_bound


@families
def test_the_public_start_is_finite_and_its_curvature_positive(loss: Loss) -> None:
    assert math.isfinite(loss.start_intercept)
    assert 0 < loss.start_curvature < math.inf


@pytest.mark.parametrize("loss", [Linear(0.5), Poisson(9, 9)], ids=["linear", "poisson"])
def test_the_expected_slope_at_the_truth_is_zero(loss: Regression) -> None:
    """The score identity: what makes the minimiser the regression of the mean."""
    rng = np.random.default_rng(5)
    predictor = rng.uniform(-0.2, 0.2, 200_000) + (1.0 if loss.name == "poisson" else 0.0)
    mean = loss.mean(predictor)
    y = rng.poisson(mean) if loss.name == "poisson" else mean + rng.normal(0, 0.2, len(mean))
    slope = loss.slope(predictor, y.astype(float))
    error = np.std(slope) / math.sqrt(len(slope))
    assert abs(np.mean(slope)) < 5 * error


# --- golden values, by hand


def test_the_linear_loss_is_half_the_square_up_to_its_threshold() -> None:
    u, y = np.array([0.0, 0.3, 0.5, 2.0, -2.0]), np.zeros(5)
    loss = Linear(0.5)
    assert_allclose(loss.value(u, y), [0, 0.045, 0.125, 0.5 * 2 - 0.125, 0.5 * 2 - 0.125])
    assert_allclose(loss.slope(u, y), [0, 0.3, 0.5, 0.5, -0.5])
    assert_allclose(loss.curvature(u, y), [1, 1, 1, 0, 0])
    plain = Linear()
    assert_allclose(plain.value(u, y), u**2 / 2)
    assert_allclose(plain.slope(u, y), u)


def test_the_poisson_loss_goes_on_as_a_line_beyond_its_limit() -> None:
    loss, u, y = Poisson(4, 4), np.array([0.0, math.log(4), 3.0]), np.array([2.0, 1.0, 0.0])
    beyond = 3 - math.log(4)
    assert_allclose(loss.value(u, y), [1.0, 4 - math.log(4), 4 * (1 + beyond)])
    assert_allclose(loss.slope(u, y), [-1.0, 3.0, 4.0])
    assert_allclose(loss.curvature(u, y), [1.0, 4.0, 0.0])
    assert_allclose(Poisson(4).curvature(u, y), np.exp(u))


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_threshold_is_refused(bound: float) -> None:
    with pytest.raises(ConfigError, match="residual_bound"):
        Linear(bound)


@pytest.mark.parametrize("largest", [0.0, 0.5, math.inf, math.nan])
def test_an_impossible_largest_count_is_refused(largest: float) -> None:
    with pytest.raises(ConfigError, match="max"):
        Poisson(largest)
    with pytest.raises(ConfigError, match="mean"):
        Poisson(3, 0.0)
