"""What every family must keep, whatever its loss: a new one is in these tests by its name alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.losses import Likelihood, Linear, Loss, Poisson, Regression, Terms
from tests.compliance.losses import CHECKS, LARGEST, drawn

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


def test_the_registry_names_each_family_by_its_own_name() -> None:
    assert set(losses.NAMES) == {"gdwd", "logistic", "linear", "expectile", "poisson"}
    for name in losses.NAMES:
        loss = losses.build(name)
        assert loss.name == name
        assert loss.responses in ("class", "number", "count")
        assert isinstance(loss, Regression) == (loss.responses != "class")
        assert not (isinstance(loss, Likelihood) and isinstance(loss, Regression))


@families
@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_a_family_keeps_what_is_asked(check: Callable[[Loss], None], loss: Loss) -> None:
    check(loss)


class Toy:
    """A loss of classes: half the squared distance of the predictor from its class, cut at 2."""

    name, responses = "toy", "class"
    slope_bound = 2.0
    curvature_bound = sharp_curvature_bound = start_curvature = 1.0
    start_intercept, start_slope_bound, remainder = 0.0, 1.0, 1.0

    def value(self, predictor: np.ndarray, response: np.ndarray) -> np.ndarray:
        far = np.abs(predictor - response)
        return np.where(far <= 2, far**2 / 2, 2 * far - 2)

    def slope(self, predictor: np.ndarray, response: np.ndarray) -> np.ndarray:
        return np.clip(predictor - response, -2, 2)

    def curvature(self, predictor: np.ndarray, response: np.ndarray) -> np.ndarray:
        return (np.abs(predictor - response) < 2).astype(float)

    sharp_curvature = curvature


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_a_toy_keeps_what_is_asked(check: Callable[[Loss], None]) -> None:
    check(Toy())


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("slope_bound", 1.9),
        ("curvature_bound", 0.9),
        ("start_slope_bound", 0.5),
        ("remainder", 0.0),
        ("slope", lambda self, u, y: 1.01 * np.clip(u - y, -2, 2)),
        ("slope", lambda self, u, y: np.clip(u - y, -2, 1.5)),
        ("curvature", lambda self, u, y: np.where(u > 0, 1.0, 0.5) * (np.abs(u - y) < 2)),
        ("joint_bounds", lambda self: (np.array([1.0, 0.5]), np.array([0.5, 1.0]))),
    ],
)
def test_a_wrong_loss_is_found(name: str, wrong: object) -> None:
    loss = type("Wrong", (Toy,), {name: wrong})()
    found = 0
    for check in CHECKS:
        try:
            check(loss)
        except AssertionError:
            found += 1
    assert found


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
