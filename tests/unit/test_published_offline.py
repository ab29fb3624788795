"""Fits to records that are all at hand: against independent solvers, golden values, refusals."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, stats

from pipeline.errors import DataError, NumericError
from pipeline.linalg import sandwich
from pipeline.losses import GeneralisedDWD, Logistic, Loss
from pipeline.methods.published.fits import (
    Records,
    Ridge,
    federated_fit,
    majorised_fit,
    objective_of,
    pooled_fit,
    undamped_iterates,
)
from tests.builders import simulate

PAPER_LOSS = GeneralisedDWD(1.0, 0.01, ramp="symmetric")


def records_of(seed: int, n: int, p: int) -> Records:
    return Records.of(*simulate(np.random.default_rng(seed), n, p))


def two_gaussians(seed: int, n: int, p: int, *, positive: float = 0.8) -> Records:
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) < round(positive * n), 1.0, -1.0)
    return Records.of(rng.normal(size=(n, p)) + 0.2 * y[:, None], y)


def split(records: Records, parts: int) -> list[Records]:
    """Split into parts of unequal size."""
    cuts = np.cumsum(np.arange(1, parts)) * len(records) // (parts * (parts + 1) // 2)
    designs, responses = np.split(records.design, cuts), np.split(records.responses, cuts)
    return [Records(x, y) for x, y in zip(designs, responses, strict=True)]


def independent_fit(records: Records, *, q: float | None, ridge: np.ndarray) -> np.ndarray:
    """Minimise by scipy alone, on formulas written down once more; q None is logistic."""
    x, y = records.design, records.responses
    weights = np.ones(len(y)) if records.weights is None else records.weights

    def value(theta: np.ndarray) -> float:
        u = y * (x @ theta)
        if q is None:
            v = np.logaddexp(0, -u)
        else:
            tail = np.maximum(u, q / (q + 1))
            v = np.where(u <= q / (q + 1), 1 - u, q**q / (q + 1) ** (q + 1) * tail**-q)
        return float(weights @ v / len(y) + ridge @ theta**2 / 2)

    def gradient(theta: np.ndarray) -> np.ndarray:
        u = y * (x @ theta)
        if q is None:
            slope = -1 / (1 + np.exp(u))
        else:
            knee = q / (q + 1)
            slope = -((knee / np.maximum(u, knee)) ** (q + 1))
        return x.T @ (weights * y * slope) / len(y) + ridge * theta

    start = optimize.minimize(value, np.zeros(x.shape[1]), jac=gradient, method="BFGS").x
    found = optimize.root(gradient, start, method="hybr", options={"xtol": 1e-14})
    # what is left of the gradient, over a curvature of at least 1e-3, stays below 1e-9
    assert np.max(np.abs(gradient(found.x))) < 1e-12
    return np.asarray(found.x)


@pytest.mark.parametrize("q", [None, 0.01, 0.5, 1.0, 2.0, 100.0])
@pytest.mark.parametrize("shape", ["identity", "intercept-free"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.625, 2.5)])
def test_the_pooled_fit_is_that_of_an_independent_solver(
    q: float | None, shape: str, weights: tuple[float, float]
) -> None:
    records = records_of(1, 400, 4).weighted(weights)
    ridge = Ridge(0.05, shape)  # type: ignore[arg-type]
    loss: Loss = Logistic() if q is None else GeneralisedDWD(q)
    fit = pooled_fit(loss, records, ridge)
    assert fit.converged
    wanted = independent_fit(records, q=q, ridge=ridge.of_gradient(5))
    assert_allclose(fit.coefficients, wanted, atol=1e-8)


def test_without_a_ridge_overlapping_classes_have_a_pooled_fit_too() -> None:
    records = records_of(2, 400, 3)
    wanted = independent_fit(records, q=1.0, ridge=np.zeros(4))
    assert_allclose(
        pooled_fit(GeneralisedDWD(1.0), records, Ridge(0.0)).coefficients, wanted, atol=1e-8
    )


@pytest.mark.parametrize("q", [0.01, 1.0, 100.0])
def test_damped_federated_steps_reach_the_pooled_fit_however_records_are_spread(q: float) -> None:
    records, ridge, loss = records_of(3, 600, 4), Ridge(0.02), GeneralisedDWD(q)
    pooled = pooled_fit(loss, records, ridge)
    for parts in (1, 7):
        fit = federated_fit(loss, split(records, parts), ridge)
        assert fit.converged
        # the score 1e-9 over the smallest curvature, which is above 1e-2
        assert_allclose(fit.coefficients, pooled.coefficients, atol=1e-7)


def test_the_majorised_fit_has_half_the_ridge_and_stops_early_by_its_rule() -> None:
    records = two_gaussians(4, 2_000, 5)
    exact = pooled_fit(PAPER_LOSS, records, Ridge(0.2)).coefficients
    patient = majorised_fit(PAPER_LOSS, records, 0.1, tolerance=1e-26)
    # the last step is below 1e-13 and steps shrink by at least a hundredth
    assert_allclose(patient.coefficients, exact, atol=1e-10)
    early = majorised_fit(PAPER_LOSS, records, 0.1)
    assert early.converged
    assert early.rounds < patient.rounds / 4
    # the rule leaves a gap that is visible in the third digit of the coefficients
    assert 1e-3 < np.linalg.norm(early.coefficients - exact) < 0.2
    assert not majorised_fit(PAPER_LOSS, records, 0.1, rounds=3).converged


# intercept and slope along (1, ..., 1) of the population's minimiser, by quadrature: mu = 0.2,
# sigma = 1, four positives for each negative, q = 1
POPULATION = {
    (10, "identity", 0.1): (0.7684, 0.5809),
    (10, "intercept-free", 0.1): (0.9861, 0.6079),
    (10, "intercept-free", 0.2): (0.9595, 0.4558),
    (20, "identity", 0.1): (0.6683, 0.8087),
    (20, "intercept-free", 0.1): (0.8979, 0.8445),
    (20, "intercept-free", 0.2): (0.8545, 0.6600),
    (50, "identity", 0.1): (0.5040, 1.0138),
    (50, "intercept-free", 0.1): (0.7396, 1.0411),
    (50, "intercept-free", 0.2): (0.6766, 0.8167),
    (100, "identity", 0.1): (0.3600, 1.0490),
    (100, "intercept-free", 0.1): (0.6226, 1.0588),
    (100, "intercept-free", 0.2): (0.5599, 0.8295),
}


@lru_cache(maxsize=1)
def sample(p: int) -> Records:
    return two_gaussians(100 + p, 30_000, p)


@pytest.mark.parametrize(
    ("p", "shape", "weight"),
    # many features take ever more records
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] > 20)) for case in POPULATION],
)
def test_the_pooled_fit_converges_to_the_population_s_minimiser(
    p: int, shape: str, weight: float
) -> None:
    records, ridge = sample(p), Ridge(weight, shape)  # type: ignore[arg-type]
    fit = pooled_fit(PAPER_LOSS, records, ridge).coefficients
    penalty = ridge.of_gradient(p + 1)
    slope = PAPER_LOSS.slope(records.design @ fit, records.responses)
    meat = np.zeros((p + 1, p + 1))
    # the share of the classes is fixed by design: scores vary within classes only
    for label in (-1.0, 1.0):
        chosen = records.responses == label
        scores = records.design[chosen] * slope[chosen, None]
        centred = scores - scores.mean(axis=0)
        meat += centred.T @ centred
    bread = objective_of(PAPER_LOSS, [records], ridge).at(fit).curvature * len(records)
    covariance = sandwich(bread, meat)
    along = np.concatenate([[0.0], np.full(p, p**-0.5)])
    first = np.eye(p + 1)[0]
    for contrast, wanted in zip((first, along), POPULATION[p, shape, weight], strict=True):
        error = float(np.sqrt(contrast @ covariance @ contrast))
        # 24 comparisons, one false alarm in a thousand; quadrature is rounded to four digits
        reach = float(stats.norm.isf(1e-3 / 24 / 2)) * error + 5e-5
        assert abs(float(contrast @ fit) - wanted) < reach
    assert penalty[0] == (weight if shape == "identity" else 0.0)


def test_undamped_steps_from_zero_go_up_before_they_go_down() -> None:
    """The step takes the local curvature for a majoriser, and that is none."""
    records = two_gaussians(5, 4_000, 10)
    objective = objective_of(PAPER_LOSS, [records], Ridge(0.1))
    points = undamped_iterates(PAPER_LOSS, split(records, 3), Ridge.as_printed(0.1), rounds=15)
    values = [objective.at(point).value for point in points]
    assert values[0] == pytest.approx(1.0)
    assert max(values) > 2 * values[0]
    assert values[-1] < values[0]
    best = objective.at(pooled_fit(PAPER_LOSS, records, Ridge(0.1)).coefficients).value
    # the mismatch of the ridge is harmless offline: the fixed point is right
    assert values[-1] == pytest.approx(best, rel=1e-3)
    damped = [federated_fit(PAPER_LOSS, [records], Ridge(0.1), rounds=k) for k in range(8)]
    descent = [objective.at(fit.coefficients).value for fit in damped]
    assert np.all(np.diff(descent) < 0)


def test_the_first_undamped_iterate_is_the_mean_difference_over_the_ridge() -> None:
    records = two_gaussians(6, 500, 4)
    points = undamped_iterates(PAPER_LOSS, [records], Ridge(0.1, "identity"), rounds=1)
    mean = (records.responses[:, None] * records.design).mean(axis=0)
    assert_allclose(points, [np.zeros(5), mean / 0.1], atol=1e-12)


# --- refusals and hard cases -----------------------------------------------------------------


def separable(n: int = 40) -> Records:
    x = np.linspace(-2, 2, n)[:, None]
    return Records.of(np.hstack([x, np.sin(3 * x)]), np.where(x[:, 0] > 0, 1.0, -1.0))


@pytest.mark.parametrize("q", [1e-3, 1.0, 1e3])
def test_separable_classes_need_a_ridge(q: float) -> None:
    loss, records = GeneralisedDWD(q), separable()
    with pytest.raises(NumericError, match=r"separable.*estimator\.ridge > 0"):
        pooled_fit(loss, records, Ridge(0.0))
    fit = pooled_fit(loss, records, Ridge(0.01))
    assert fit.converged
    assert np.all(np.isfinite(fit.coefficients))


def test_classes_that_ties_alone_keep_from_being_separable_need_a_ridge() -> None:
    x = np.array([[-1.0], [0.0], [0.0], [1.0]])
    records = Records.of(np.vstack([x, x]), np.tile([-1.0, -1.0, 1.0, 1.0], 2))
    with pytest.raises(NumericError, match=r"estimator\.ridge"):
        pooled_fit(GeneralisedDWD(1.0), records, Ridge(0.0))


def test_one_class_has_no_best_intercept_unless_it_is_penalised() -> None:
    features, _ = simulate(np.random.default_rng(7), 50, 2)
    records, loss = Records.of(features, np.ones(50)), GeneralisedDWD(1.0)
    for fit in (pooled_fit, federated_fit):
        with pytest.raises(NumericError, match="one class only, so a free intercept"):
            fit(loss, records if fit is pooled_fit else [records], Ridge(0.1))  # type: ignore[operator]
    found = pooled_fit(loss, records, Ridge(0.1, "identity")).coefficients
    assert found[0] > 0.5
    assert_allclose(found, independent_fit(records, q=1.0, ridge=np.full(3, 0.1)), atol=1e-8)


@pytest.mark.parametrize("fault", ["constant", "copied", "more columns than records"])
def test_collinear_columns_need_a_ridge(fault: str) -> None:
    rng, loss = np.random.default_rng(8), GeneralisedDWD(1.0)
    features, responses = simulate(rng, 60, 3)
    if fault == "constant":
        features[:, 1] = 0.5
    elif fault == "copied":
        features[:, 1] = -2 * features[:, 0]
    else:
        features, responses = rng.normal(size=(8, 12)), np.tile([1.0, -1.0], 4)
    records = Records.of(features, responses)
    for fit in (pooled_fit, federated_fit):
        with pytest.raises(NumericError, match=r"collinear.*estimator\.ridge > 0"):
            fit(loss, records if fit is pooled_fit else [records], Ridge(0.0))  # type: ignore[operator]
    ridge = Ridge(0.1)
    pooled = pooled_fit(loss, records, ridge).coefficients
    assert_allclose(
        pooled,
        independent_fit(records, q=1.0, ridge=ridge.of_gradient(records.size)),
        atol=1e-8,
    )
    assert_allclose(federated_fit(loss, [records], ridge).coefficients, pooled, atol=1e-7)


@pytest.mark.parametrize("q", [1e-3, 1e3])
def test_extreme_tails_have_a_fit_whose_gradient_is_zero(q: float) -> None:
    loss, records, ridge = GeneralisedDWD(q), records_of(9, 500, 3), Ridge(0.05)
    fit = pooled_fit(loss, records, ridge)
    assert fit.score < 1e-9
    objective = objective_of(loss, [records], ridge)
    rng = np.random.default_rng(10)
    best = objective.at(fit.coefficients).value
    # a convex function: no point nearby, and none on a line to zero, is lower
    for direction in [*rng.normal(size=(20, 4)), fit.coefficients]:
        for length in (1e-4, 1e-2, -1e-4, -1e-2):
            assert objective.at(fit.coefficients + length * direction).value >= best - 1e-15


def test_an_undamped_step_with_a_singular_curvature_is_refused() -> None:
    records = two_gaussians(11, 100, 2)
    with pytest.raises(NumericError, match="not positive definite"):
        undamped_iterates(PAPER_LOSS, [records], Ridge(0.1), rounds=1)


def test_a_ridge_as_printed_differs_between_gradient_and_curvature() -> None:
    assert_allclose(Ridge.as_printed(0.1).of_gradient(3), [0, 0.1, 0.1])
    assert_allclose(Ridge.as_printed(0.1).of_curvature(3), [0.1, 0.1, 0.1])


def test_bad_arrays_are_refused_by_name() -> None:
    ones = np.ones(3)
    for features, responses, words in (
        (np.ones((3, 2)), np.ones(4), "shape"),
        (np.ones(3), ones, "shape"),
        (np.full((3, 2), np.nan), ones, "features must be finite"),
        (np.ones((3, 2)), np.array([0.0, 1.0, 1.0]), "responses must be -1 or"),
    ):
        with pytest.raises(DataError, match=words):
            Records.of(features, responses)
    with pytest.raises(DataError, match="no records"):
        pooled_fit(PAPER_LOSS, Records.of(np.ones((0, 2)), np.ones(0)), Ridge(0.1))
    with pytest.raises(DataError, match="same number of features"):
        federated_fit(PAPER_LOSS, [records_of(1, 9, 2), records_of(1, 9, 3)], Ridge(0.1))


def test_clipping_keeps_norms_and_directions_and_leaves_short_records_alone() -> None:
    features = np.array([[3.0, 4.0], [0.1, -0.2], [0.0, 0.0]])
    records = Records.of(features, np.ones(3))
    for bounds, order in (({"l2": 2.0}, 2), ({"l1": 2.0}, 1)):
        clipped = records.clipped(**bounds).design
        norms = np.linalg.norm(clipped, ord=order, axis=1)
        assert norms[0] == pytest.approx(2.0)
        assert_allclose(clipped[0, 1:] / clipped[0, 1], features[0] / 3)
        assert_allclose(clipped[1:], records.design[1:])
