"""Families of losses: what each must keep, whatever its loss, and golden values by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline import losses
from pipeline.errors import ConfigError
from pipeline.losses import (
    GeneralisedDWD,
    Likelihood,
    Linear,
    Logistic,
    Loss,
    Poisson,
    Regression,
    Terms,
)
from pipeline.methods.published.method import RampedDWD
from pipeline.methods.renewable.spec import spent_by_records
from pipeline.privacy.sensitivity import Order
from tests.compliance.losses import CHECKS, LARGEST, drawn

QS = [1e-3, 0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0, 1e3]
ALL: list[Loss] = [Logistic(), *(GeneralisedDWD(q) for q in QS)]


def name_of(loss: Loss) -> str:
    return f"{loss.name}-{getattr(loss, 'q', '')}"


def one(values: float) -> np.ndarray:
    return np.array([values])


def exact_curvature(loss: GeneralisedDWD, u: np.ndarray) -> np.ndarray:
    q, knee = loss.q, loss.knee
    tail = np.maximum(u, knee)
    return np.where(u > knee, (q + 1) / tail * np.exp((q + 1) * np.log(knee / tail)), 0.0)


@pytest.mark.parametrize(
    ("q", "u", "value", "slope", "curvature"),
    [
        (1.0, -1.0, 2.0, -1.0, 0.0),
        (1.0, 0.3, 0.7, -1.0, None),
        (1.0, 2.0, 0.125, -0.0625, 0.0625),
        (2.0, 2.0, 0.037037, -0.037037, 0.055556),
        (0.5, 2.0, 0.272166, -0.068041, 0.051031),
    ],
)
def test_gdwd_has_the_golden_values_of_the_spec(
    q: float, u: float, value: float, slope: float, curvature: float | None
) -> None:
    loss = GeneralisedDWD(q)
    for y in (1.0, -1.0):
        assert_allclose(loss.value(one(y * u), one(y)), value, atol=5e-7)
        assert_allclose(loss.slope(one(y * u), one(y)), y * slope, atol=5e-7)
        if curvature is not None:
            assert_allclose(loss.curvature(one(y * u), one(y)), curvature, atol=5e-7)


def test_the_step_of_classical_dwd_is_the_documented_one() -> None:
    """As docs/methods/renewable.md says."""
    loss = GeneralisedDWD(1.0)
    found = [loss.foot, loss.top, loss.curvature_bound]
    assert_allclose(found, [0.3435, 0.8585, 1.6181], atol=5e-5)


@pytest.mark.parametrize("q", QS)
def test_the_sharp_curvature_is_exact_and_keeps_its_bound_just_above_the_knee(q: float) -> None:
    loss = GeneralisedDWD(q)
    u = np.concatenate([np.linspace(-2, 3, 999), loss.knee * (1 + np.array([-1e-9, 0, 1e-9]))])
    for y in (np.ones_like(u), -np.ones_like(u)):
        assert_allclose(loss.sharp_curvature(y * u, y), exact_curvature(loss, u), rtol=1e-9)
    top = loss.sharp_curvature(one(loss.knee * (1 + 1e-12)), one(1.0))[0]
    assert_allclose(top, loss.sharp_curvature_bound, rtol=1e-8)
    assert np.all(loss.sharp_curvature(u, np.ones_like(u)) <= loss.sharp_curvature_bound)


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0, 100.0])
def test_the_symmetric_ramp_is_the_paper_s(q: float) -> None:
    """K (u - u0 + e) / 2e around the knee: 0 at its foot, K / 2 at the knee, K at its top."""
    e = 0.01 * q / (q + 1)
    loss = RampedDWD(q, e, symmetric=True)
    top = (q + 1) * loss.knee ** (q + 1) / (loss.knee + e) ** (q + 2)
    u = loss.knee + e * np.array([-2.0, -1.0, 0.0, 0.5, 1.0])
    wanted = top * np.array([0.0, 0.0, 0.5, 0.75, 1.0])
    assert_allclose(loss.curvature(u, np.ones(5)), wanted, rtol=1e-9, atol=1e-9 * top)
    beyond = loss.knee + e * np.array([1.5, 3.0])
    assert_allclose(loss.curvature(beyond, np.ones(2)), exact_curvature(loss, beyond), rtol=1e-12)
    assert_allclose(loss.curvature_bound, top, rtol=1e-12)


@pytest.mark.parametrize("q", QS)
def test_the_curvature_is_the_derivative_of_the_slope_beyond_the_step(q: float) -> None:
    loss = GeneralisedDWD(q)
    u = np.geomspace(loss.top * (1 + 1e-5), 50, 200)
    y = np.ones_like(u)
    h = 1e-6 * u
    numeric = (loss.slope(u + h, y) - loss.slope(u - h, y)) / (2 * h)
    # third derivative times h^2, and the rounding of the difference
    assert_allclose(loss.curvature(u, y), numeric, rtol=1e-5, atol=1e-8 / loss.knee)
    assert_allclose(loss.curvature(u, y), exact_curvature(loss, u), rtol=1e-10, atol=1e-300)


@pytest.mark.parametrize("q", QS)
def test_value_and_slope_are_continuous_at_the_knee(q: float) -> None:
    loss = GeneralisedDWD(q)
    step = 1e-9 * loss.knee
    u, y = loss.knee + np.array([-step, step]), np.ones(2)
    assert abs(np.diff(loss.value(u, y))[0]) <= 4 * step + 1e-15
    assert abs(np.diff(loss.slope(u, y))[0]) <= 2 * (q + 1) ** 2 / q * step * 1.01 + 1e-14
    assert_allclose(loss.value(one(loss.knee), one(1.0)), 1 / (q + 1), rtol=1e-12)


@pytest.mark.parametrize("part", [0.1, 0.3, 1 / 3, 0.9])
@pytest.mark.parametrize("q", QS)
def test_the_step_has_the_area_and_the_mean_place_of_what_it_stands_for(
    q: float, part: float
) -> None:
    """Its mean is that of V'' for all densities of margins that are straight lines there."""
    loss = GeneralisedDWD(q, part * GeneralisedDWD.most_smoothing(q))
    bend = part * min(1.0, 2 / (q + 1))
    level = (q + 1) ** 2 / q * (1 + bend) ** -(q + 2)
    below = np.linspace(loss.foot, loss.knee, 1001)[:-1]
    assert_allclose(loss.curvature(below, np.ones(1000)), level * math.sqrt(0.3), rtol=1e-9)
    assert not loss.curvature(one(loss.foot - 1e-9), one(1.0)).any()
    # midpoints of equal ratios, at which both are smooth
    ends = loss.knee * np.exp(np.linspace(0, math.log(loss.top / loss.knee), 20_001))
    u, width = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
    step, sharp = loss.curvature(u, np.ones_like(u)), exact_curvature(loss, u)
    assert_allclose(step, level * np.sqrt(1 - 0.7 * (loss.knee / u) ** (2 * q + 2)), rtol=1e-9)
    apart = loss.knee - loss.foot
    area, place = level * math.sqrt(0.3) * apart, -level * math.sqrt(0.3) * apart**2 / 2
    assert_allclose(area + step @ width, sharp @ width, rtol=1e-6)
    moments = (step @ (width * (u - loss.knee)), sharp @ (width * (u - loss.knee)))
    assert_allclose(place + moments[0], moments[1], rtol=1e-5)
    # with the same height, nothing larger is released, and nothing else than V'' beyond
    assert loss.curvature_bound <= level
    assert loss.curvature(one(loss.top), one(1.0))[0] <= loss.curvature_bound


def largest_curvature(
    slope: np.ndarray, curvature: np.ndarray, gradient: float, order: Order
) -> float:
    """Return the share of the curvature that is left beside a gradient's, .05 and .05."""
    shares = {"gradient": gradient, "middle": 0.05, "counts": 0.05}
    left = 1 - spent_by_records(shares, (slope, curvature), order)
    some = curvature > 1e-3
    return float(np.min(left[some] / curvature[some] ** order))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("loss", ALL, ids=name_of)
def test_joint_bounds_lose_nothing_to_three_digits(loss: Loss, order: Order) -> None:
    """Beside the loss itself at many points: pieces are wider than what lies in them."""
    knee = getattr(loss, "knee", 0.0)
    reach = getattr(loss, "top", 15.0) - knee
    u = np.concatenate([
        knee + reach * np.linspace(0, 1, 200_001)[1:], -np.linspace(0, 15, 1001), [knee],
    ])  # fmt: skip
    y = np.ones_like(u)
    slope, curvature = (
        np.abs(loss.slope(-u if loss.name == "logistic" else u, y)),
        loss.curvature(u, y),
    )
    exact = largest_curvature(slope, curvature / loss.curvature_bound, 0.6, order)
    found = largest_curvature(*loss.joint_bounds(), 0.6, order)
    assert exact - 1e-3 < found <= exact + 1e-9


def test_a_loss_that_says_no_more_has_both_bounds_at_once() -> None:
    assert [bound.tolist() for bound in losses.joint_bounds(losses.Linear(0.5))] == [[1.0], [1.0]]


@pytest.mark.parametrize("q", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_tail_is_refused(q: float) -> None:
    with pytest.raises(ConfigError, match=r"estimator\.q"):
        GeneralisedDWD(q)


@pytest.mark.parametrize("smoothing", [0.0, -0.1, 0.51, float("nan")])
def test_an_impossible_step_is_refused(smoothing: float) -> None:
    with pytest.raises(ConfigError, match=r"estimator\.smoothing"):
        GeneralisedDWD(1.0, smoothing)


def test_an_unknown_loss_is_refused_with_the_allowed_names() -> None:
    with pytest.raises(ConfigError, match="gdwd, logistic"):
        losses.build("hinge")


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
