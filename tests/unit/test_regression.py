"""Linear and Poisson regression, from records to estimates: independent fits, units, odd data."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from pipeline.errors import NumericError
from pipeline.estimators.reference_fit import Rows, pooled_fit
from pipeline.losses import Loss, Poisson
from pipeline.messages.estimate import EstimateMessage
from pipeline.methods.renewable.client import summarise_bounded
from pipeline.release.model import round_model
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from tests.builders import cut, regression_stream, rows_of, task_of

LINEAR, POISSON = np.array([0.1, 0.3, -0.2, 0.15]), np.array([0.8, 0.3, -0.2, 0.1])


def numbers(rng: np.random.Generator, n: int, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(-1, 1, (n, 3))
    return X, np.clip(LINEAR[0] + X @ LINEAR[1:] + rng.normal(0, noise, n), -1, 1)


def counts(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(-1, 1, (n, 3))
    return X, rng.poisson(np.exp(POISSON[0] + X @ POISSON[1:])).astype(float)


def overdispersed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw counts whose variance is three times their mean: negative binomial."""
    X = rng.uniform(-1, 1, (n, 3))
    mean = np.exp(POISSON[0] + X @ POISSON[1:])
    return X, rng.negative_binomial(mean / 2, 1 / 3).astype(float)


def pooled(loss: Loss, X: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    rows = Rows(np.column_stack([np.ones(len(y)), X]), y)
    penalty = np.append(0.0, np.full(X.shape[1], ridge))
    return pooled_fit(loss, lambda: [rows], penalty).coefficients


def message_of(task: Task, X: np.ndarray, y: np.ndarray) -> EstimateMessage:
    """Run encoded records through the windows of one client."""
    run = OfflineRun(task)
    for window in cut(rows_of(X, y), task.slots):
        run.add("a", window)
    return run.estimate(0.0)[1]


def values(message: EstimateMessage) -> np.ndarray:
    return np.array([coefficient.value for coefficient in message.coefficients])


def poisson_by_scipy(X: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """Fit by a general optimiser, on formulas written down once more."""
    design = np.column_stack([np.ones(len(y)), X])

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        mean = np.exp(design @ theta)
        gradient = design.T @ (mean - y) / len(y)
        gradient[1:] += ridge * theta[1:]
        value = np.mean(mean - y * (design @ theta)) + ridge * theta[1:] @ theta[1:] / 2
        return float(value), gradient

    point = np.zeros(design.shape[1])
    for _ in range(5):
        point = minimize(objective, point, jac=True, method="BFGS", options={"gtol": 1e-12}).x
    return np.asarray(point)


# --- without privacy, against independent fits


@pytest.mark.parametrize("ridge", [0.0, 0.05])
@pytest.mark.parametrize("records", [50, 400])
def test_an_open_linear_fit_is_least_squares(ridge: float, records: int) -> None:
    X, y = numbers(np.random.default_rng(1), 1000)
    task = task_of(p=3, private=False, loss="linear", ridge=ridge, records=records)
    design = np.column_stack([np.ones(len(y)), X])
    expected = np.linalg.lstsq(design, y)[0]
    if ridge:
        penalty = len(y) * ridge * np.diag([0.0, 1, 1, 1])
        expected = np.linalg.solve(design.T @ design + penalty, design.T @ y)
    # the scores are linear, so it does not matter where they were taken
    assert_allclose(values(message_of(task, X, y)), expected, atol=1e-10, rtol=0)


def test_an_open_poisson_fit_is_near_an_independent_one() -> None:
    X, y = counts(np.random.default_rng(2), 4000)
    task = task_of(p=3, private=False, loss="poisson", most=1000.0, ridge=0.01, records=200)
    message = message_of(task, X, y)
    # one step from each window's own start: a small part of a standard error
    errors = np.array([c.standard_error for c in message.coefficients])
    assert np.all(np.abs(values(message) - poisson_by_scipy(X, y, 0.01)) < 0.25 * errors)


def test_the_pooled_fit_refuses_counts_without_a_best_fit() -> None:
    X = np.random.default_rng(4).uniform(-1, 1, (50, 2))
    with pytest.raises(NumericError, match="all counts are zero"):
        pooled(Poisson(5), X, np.zeros(50), 0.1)


# --- with privacy, on fixed seeds


@pytest.mark.parametrize(
    "mechanism", ["discrete-gaussian", pytest.param("discrete-laplace", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("loss", "draw", "truth"), [
    ("linear", numbers, LINEAR), ("poisson", counts, POISSON),
])  # fmt: skip
def test_a_private_estimate_is_within_its_errors_of_the_truth(
    loss: str, draw: Callable[..., tuple[np.ndarray, np.ndarray]], truth: np.ndarray, mechanism: str
) -> None:
    most = 12.0 if loss == "poisson" else 1.0
    task = task_of(
        p=3, loss=loss, most=most, epsilon=4.0, records=200, ridge=0.0, mechanism=mechanism
    )
    final = regression_stream(task, draw, seed=5, rounds=25, clients=8)
    errors = final.standard_errors()
    assert final.status == "ready"
    assert errors is not None
    assert np.all(np.abs(final.coefficients - truth) < 5 * errors[0])
    assert np.all(errors[2] > 0)


def test_a_start_far_from_the_middle_of_the_range_does_not_run_away() -> None:
    """Features in the upper part of their ranges: one direction has nearly all curvature."""
    task = task_of(p=8, loss="linear", epsilon=8.0, records=200)
    truth = np.array([0.5] + [0.05] * 8)

    def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.uniform(0.5, 1, (n, 8))
        return X, truth[0] + X @ truth[1:] + rng.normal(0, 0.05, n)

    for rounds in (1, 4):
        found = regression_stream(task, draw, seed=1, rounds=rounds, clients=8)
        X, _ = draw(np.random.default_rng(0), 500)
        off = found.coefficients[0] + X @ found.coefficients[1:] - (truth[0] + X @ truth[1:])
        assert np.max(np.abs(off)) < 1


def test_the_start_reaches_a_mean_beyond_a_small_threshold_and_below_its_noise() -> None:
    task = task_of(p=3, loss="linear", epsilon=8.0, records=200, residual_bound=0.05)

    def high(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.uniform(-1, 1, (n, 3))
        return X, 0.9 + rng.normal(0, 0.02, n).clip(-0.1, 0.1)

    start = regression_stream(task, high, seed=1, rounds=1, clients=8)
    assert abs(start.coefficients[0] - 0.9) < 0.02
    assert start.coefficients[1:].tolist() == [0, 0, 0]

    def none(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.uniform(-1, 1, (n, 3)), np.zeros(n)

    task = task_of(p=3, loss="poisson", most=50.0, epsilon=2.0, records=200)
    for rounds in (1, 10):
        found = regression_stream(task, none, seed=1, rounds=rounds, clients=8)
        assert np.all(np.isfinite(found.coefficients))
    assert math.exp(found.coefficients[0]) < 1


# --- units


@pytest.mark.parametrize(
    "private", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["open", "private"]
)
def test_a_thousandfold_response_has_thousandfold_coefficients(private: bool) -> None:
    rng = np.random.default_rng(6)
    X, y = numbers(rng, 2400)
    found = []
    for unit in (1.0, 1000.0):
        # the centre of the range is not zero, so the intercept holds it
        task = task_of(
            p=3, private=private, loss="linear", mechanism="insecure-simulation", records=50,
            least=1 * unit, most=5 * unit, residual_bound=3 * unit, epsilon=10.0,
        )  # fmt: skip
        found.append(message_of(task, X, y))
    one, many = found
    assert one.status == many.status == "ready"
    for small, large in zip(one.coefficients, many.coefficients, strict=True):
        for name in ("value", "standard_error", "sampling_se", "privacy_se", "interval"):
            # an error that noise hides is hidden in both
            ours, theirs = (np.array(getattr(row, name), dtype=float) for row in (large, small))
            assert_allclose(ours, 1000 * theirs, rtol=1e-12)
    assert one.dispersion is not None
    assert many.dispersion == pytest.approx(1e6 * one.dispersion, rel=1e-12)
    assert 2.9 < one.coefficients[0].value - 2 * LINEAR[0] < 3.1


# --- how far responses spread


def test_the_estimated_noise_scale_of_a_favourable_study_is_right() -> None:
    X, y = numbers(np.random.default_rng(8), 20_000, noise=0.1)
    task = task_of(p=3, private=False, loss="linear", records=500)
    found = message_of(task, X, y).dispersion
    assert found is not None
    # relative error of a variance of Gaussian residuals: sqrt(2 / n)
    assert abs(found / 0.01 - 1) < 5 * math.sqrt(2 / 20_000)
    noised = task_of(p=3, loss="linear", records=500, epsilon=10.0, residual_bound=0.4, ridge=0.0)
    final = regression_stream(noised, numbers, seed=9, rounds=25, clients=8)
    assert final.dispersion is not None
    assert noised.update_channels.counts is not None
    slots = 24 * 8 * 500 * 23 / 24
    own = noised.update_channels.counts.standard_deviation * math.sqrt(23 * 8) / slots / 0.01
    assert abs(final.dispersion / 0.01 - 1) < 5 * math.hypot(own, math.sqrt(2 / slots)) + 0.02


def test_small_residuals_are_not_lost_to_the_threshold_s_lattice() -> None:
    task = task_of(p=1, loss="linear", records=1000)
    residuals = np.random.default_rng(10).normal(0, 1e-3, 1000)
    sums = summarise_bounded(
        task, np.zeros((1000, 1)), residuals, round_model(1, np.zeros(2), (1, 1))
    )
    found = float(np.ldexp(sums.counts.integers.astype(float), sums.counts.exponents)[0])
    # each is cut by at most 2^-19: two parts in a thousand
    assert 0.997 < found / np.sum(residuals**2) <= 1


def test_a_known_noise_scale_spends_nothing_and_is_reported() -> None:
    known = task_of(p=3, loss="linear", noise_scale=0.25, records=50, epsilon=4.0)
    assert known.update_channels.counts is None
    assert known.initial_channels.counts is None
    assert known.budget.guarantee.counts.startswith("record slots: public")
    estimated = task_of(p=3, loss="linear", records=50, epsilon=4.0)
    assert (
        known.update_channels.parts["curvature"].standard_deviation
        < estimated.update_channels.parts["curvature"].standard_deviation
    )
    assert estimated.budget.guarantee.counts.startswith("sums of squared slopes: noised")
    X, y = numbers(np.random.default_rng(11), 1000)
    assert message_of(known, X, y).dispersion == 0.0625


def test_the_dispersion_of_counts_tells_poisson_from_overdispersed_ones() -> None:
    task = task_of(p=3, private=False, loss="poisson", most=1000.0, records=500)
    for draw, expected in ((counts, 1.0), (overdispersed, 3.0)):
        X, y = draw(np.random.default_rng(12), 20_000)
        found = message_of(task, X, y).dispersion
        assert found is not None
        # squares of these counts have a relative spread below 4
        assert abs(found / expected - 1) < 5 * 4 / math.sqrt(20_000)


@pytest.mark.slow
def test_the_error_of_a_dispersion_is_what_noise_makes_of_it() -> None:
    apart, errors = [], []
    for seed in range(24):
        task = task_of(
            p=3, loss="poisson", mechanism="insecure-simulation", seed=seed, most=12.0, records=250,
            epsilon=2.0,
        )  # fmt: skip
        X, y = counts(np.random.default_rng(13), 4000)
        found = message_of(task, X, y)
        if found.dispersion is not None:
            apart.append(found.dispersion - 1.0)
            errors.append(found.details["dispersion_error"])
    assert len(apart) > 20
    # one of the 24 draws differs from its error by a factor in 1 +- 4 / sqrt(2 x 24) at the most
    assert 0.42 < np.sqrt(np.mean(np.square(apart))) / np.median(errors) < 1.58


# --- odd data


@pytest.mark.parametrize("private", [False, True], ids=["open", "private"])
@pytest.mark.parametrize(("loss", "level"), [
    ("linear", -1.0), ("linear", 0.3), ("linear", 1.0), ("poisson", 0.0), ("poisson", 12.0),
])  # fmt: skip
def test_constant_responses_have_a_finite_estimate(loss: str, level: float, private: bool) -> None:
    most = 12.0 if loss == "poisson" else 1.0
    task = task_of(
        p=3, private=private, loss=loss, most=most, records=100, epsilon=8.0,
        mechanism="insecure-simulation",
    )  # fmt: skip
    X = np.random.default_rng(13).uniform(-1, 1, (3000, 3))
    message = message_of(task, X, np.full(3000, level))
    assert np.all(np.isfinite(values(message)))
    mean = values(message)[0]
    if loss == "poisson":
        # beyond the public limit the loss of these counts is flat: no mean there fits better
        mean = min(math.exp(mean), most)
    assert abs(mean - level) < 0.5
