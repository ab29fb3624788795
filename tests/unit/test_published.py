"""Published methods: fits, streams and noise against independent solvers, formulas and figures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, stats

from benchmarks.papers.dwd import GivenNoise
from pipeline.errors import DataError, NumericError, PrivacyError
from pipeline.losses import Logistic, Loss
from pipeline.methods.published.fits import (
    Records,
    Ridge,
    federated_fit,
    majorised_fit,
    pooled_fit,
    sums_at,
)
from pipeline.methods.published.method import RampedDWD
from pipeline.methods.published.noise import (
    GaussianNoise,
    LaplaceNoise,
    MessageNoise,
    determinant_loss,
    least_stabiliser,
    normal_symmetric,
)
from pipeline.methods.published.online import (
    FIRST_ROUNDS,
    ClassBalance,
    OnlineFit,
    PrivateOnlineFit,
    TrustedOnlineFit,
)
from tests.builders import simulate

PAPER_LOSS = RampedDWD(1.0, 0.01, symmetric=True)


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
    loss: Loss = Logistic() if q is None else RampedDWD(q)
    fit = pooled_fit(loss, records, ridge)
    assert fit.converged
    wanted = independent_fit(records, q=q, ridge=ridge.of_gradient(5))
    assert_allclose(fit.coefficients, wanted, atol=1e-8)


def test_without_a_ridge_overlapping_classes_have_a_pooled_fit_too() -> None:
    records = records_of(2, 400, 3)
    wanted = independent_fit(records, q=1.0, ridge=np.zeros(4))
    assert_allclose(pooled_fit(RampedDWD(1.0), records, Ridge(0.0)).coefficients, wanted, atol=1e-8)


@pytest.mark.parametrize("q", [0.01, 1.0, 100.0])
def test_damped_federated_steps_reach_the_pooled_fit_however_records_are_spread(q: float) -> None:
    records, ridge, loss = records_of(3, 600, 4), Ridge(0.02), RampedDWD(q)
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


# --- refusals and hard cases -----------------------------------------------------------------


def separable(n: int = 40) -> Records:
    x = np.linspace(-2, 2, n)[:, None]
    return Records.of(np.hstack([x, np.sin(3 * x)]), np.where(x[:, 0] > 0, 1.0, -1.0))


@pytest.mark.parametrize("q", [1e-3, 1.0, 1e3])
def test_separable_classes_need_a_ridge(q: float) -> None:
    loss, records = RampedDWD(q), separable()
    with pytest.raises(NumericError, match=r"separable.*estimator\.ridge > 0"):
        pooled_fit(loss, records, Ridge(0.0))
    fit = pooled_fit(loss, records, Ridge(0.01))
    assert fit.converged
    assert np.all(np.isfinite(fit.coefficients))


def test_one_class_has_no_best_intercept_unless_it_is_penalised() -> None:
    features, _ = simulate(np.random.default_rng(7), 50, 2)
    records, loss = Records.of(features, np.ones(50)), RampedDWD(1.0)
    for fit in (pooled_fit, federated_fit):
        with pytest.raises(NumericError, match="one class only, so a free intercept"):
            fit(loss, records if fit is pooled_fit else [records], Ridge(0.1))  # type: ignore[operator]
    found = pooled_fit(loss, records, Ridge(0.1, "identity")).coefficients
    assert found[0] > 0.5
    assert_allclose(found, independent_fit(records, q=1.0, ridge=np.full(3, 0.1)), atol=1e-8)


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


LOSSES: list[Loss] = [RampedDWD(0.1), RampedDWD(1.0), Logistic()]


def batches_of(seed: int, number: int, clients: int, n: int, p: int) -> list[list[Records]]:
    rng = np.random.default_rng(seed)
    return [[Records.of(*simulate(rng, n, p)) for _ in range(clients)] for _ in range(number)]


def joined(batches: list[list[Records]]) -> Records:
    every = [client for batch in batches for client in batch]
    return Records(
        np.concatenate([client.design for client in every]),
        np.concatenate([client.responses for client in every]),
    )


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.name}{getattr(loss, 'q', '')}")
@pytest.mark.parametrize("ridge", [Ridge(0.1, "identity"), Ridge(0.1), Ridge.as_printed(0.1)])
def test_the_additive_form_equals_the_recursion_where_nothing_is_stale(
    loss: Loss, ridge: Ridge
) -> None:
    """By induction: A_b theta_b = A_b theta_{b-1} - g_b = v_{b-1} + H_b theta_{b-1} - g_b."""
    batches = batches_of(1, 60, 5, 40, 4)
    online = OnlineFit(loss, ridge, 5)
    at = federated_fit(loss, batches[0], ridge, rounds=FIRST_ROUNDS).coefficients
    curvature, right = np.zeros((5, 5)), np.zeros(5)
    for batch in batches:
        for client in batch:
            message = sums_at(loss, [client], at)
            bread = message.curvature + 40 * np.diag(ridge.of_curvature(5))
            curvature += bread
            right += bread @ at - message.gradient - 40 * ridge.of_gradient(5) * at
        at = np.linalg.solve(curvature, right)
        # condition numbers below 1e3 times the rounding of sums over 300 messages
        assert_allclose(online.update(batch), at, atol=1e-12)
    assert online.records == 60 * 5 * 40
    assert_allclose(online.curvature, curvature, rtol=1e-12)


def test_one_step_from_zero_is_the_mean_over_the_ridge_and_a_fitted_start_is_not() -> None:
    batch = batches_of(5, 1, 3, 50, 2)[0]
    mean = (joined([batch]).responses[:, None] * joined([batch]).design).mean(axis=0)
    loss, ridge = PAPER_LOSS, Ridge(0.1, "identity")
    assert_allclose(OnlineFit(loss, ridge, 3, first="one-step").update(batch), mean / 0.1)
    pooled = pooled_fit(loss, joined([batch]), ridge).coefficients
    assert_allclose(OnlineFit(loss, ridge, 3).update(batch), pooled, atol=1e-5)


def test_counts_are_noised_once_for_every_message() -> None:
    draws = []
    for seed in range(400):
        balance = ClassBalance(100.0, deviation=50.0, rng=np.random.default_rng([8, seed]))
        for _ in range(4):
            balance.add(1_000, 3_000)
        draws.append(balance._counts - (4_000, 12_000))
    variance = np.var(draws)
    # 800 normal draws of variance 4 x 50^2: a chi-square quantile at one in ten thousand
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], 800) / 800 * 4 * 50**2
    assert low < variance < high


def test_a_batch_that_cannot_be_folded_leaves_the_state_as_it_was() -> None:
    loss = PAPER_LOSS
    features, _ = simulate(np.random.default_rng(9), 30, 2)
    one_class = [Records.of(features, np.ones(30))]
    for first, words in (("fitted", "one class only"), ("one-step", "not positive definite")):
        fit = OnlineFit(loss, Ridge(0.1), 3, first=first)  # type: ignore[arg-type]
        with pytest.raises(NumericError, match=words):
            fit.update(one_class)
        assert (fit.batches, fit.records) == (0, 0)
        assert not fit.curvature.any()
    fit = OnlineFit(loss, Ridge(0.1, "identity"), 3)
    assert np.all(np.isfinite(fit.update(one_class)))


def test_batches_of_the_wrong_shape_are_refused() -> None:
    fit = OnlineFit(RampedDWD(1.0), Ridge(0.1), 3)
    with pytest.raises(DataError, match="2 features"):
        fit.update([Records.of(np.ones((4, 3)), np.ones(4))])
    with pytest.raises(DataError, match="at least one record"):
        fit.update([Records.of(np.ones((0, 2)), np.ones(0))])


LOSS = RampedDWD(1.0)
TOP = LOSS.sharp_curvature_bound


def batch_of(seed: int, n: int = 200, p: int = 3) -> list[Records]:
    return [Records.of(*simulate(np.random.default_rng(seed), n, p))]


# --- a trusted aggregator --------------------------------------------------------------------


def test_the_gaussian_scale_is_the_theorem_s() -> None:
    """12.1 times the sensitivity at (0.8, 1e-5); 121 with C2 = 5 and no step."""
    noise = GaussianNoise(0.8, 1e-5, l2_bound=5.0, step_bound=0.0, stabiliser=1e9)
    assert noise.scale(TOP, 0.0) == pytest.approx(121.0, abs=0.05)
    twice = 2 * math.log(1e5)
    step = 10 + 2 * 4 * 25 * 0.01
    wanted = step * (math.sqrt(twice) + math.sqrt(twice + 0.8)) / 0.8
    assert replace(noise, step_bound=0.01).scale(TOP, 0.0) == pytest.approx(wanted)


def test_the_laplace_scale_is_the_theorem_s() -> None:
    noise = LaplaceNoise(0.8, l1_bound=3.0, l2_bound=2.0, step_bound=0.5, stabiliser=50.0)
    spent = 2 * math.log(1 + 4 * 4 / (30.0 + 50.0))
    assert determinant_loss(2.0, TOP, 80.0) == pytest.approx(spent)
    assert noise.scale(TOP, 30.0) == pytest.approx((2 * 3 + 2 * 4 * 3 * 2 * 0.5) / (0.8 - spent))


def test_no_scale_exists_where_the_determinant_spends_the_budget() -> None:
    laplace = LaplaceNoise(0.1, l1_bound=3.0, l2_bound=5.0, step_bound=0.0, stabiliser=0.0)
    # the paper's own condition is made for epsilon 1: it allows T2 = 1 / 2
    condition_2 = TOP * 25 / math.expm1(0.25) - 100.0
    assert determinant_loss(5.0, TOP, condition_2 + 100.0) == pytest.approx(0.5)
    for noise in (
        replace(laplace, stabiliser=condition_2),
        GaussianNoise(0.1, 1e-7, 5.0, 0.0, condition_2),
        laplace,
        GaussianNoise(0.1, 1e-7, 5.0, 0.0, 0.0),
    ):
        with pytest.raises(PrivacyError, match=r"T2 = .* of epsilon.*larger stabiliser"):
            noise.draw(np.random.default_rng(0), 3, TOP, 100.0)
        with pytest.raises(PrivacyError, match="no noise scale exists"):
            TrustedOnlineFit(
                LOSS, Ridge(0.1, "identity"), 4, noise, np.random.default_rng(0)
            ).update(batch_of(0))


def test_the_least_stabiliser_is_just_enough() -> None:
    held = least_stabiliser(0.1, 5.0, TOP)
    noise = GaussianNoise(0.1, 1e-7, 5.0, 0.0, held)
    assert noise.scale(TOP, 0.0) > 0
    with pytest.raises(PrivacyError):
        replace(noise, stabiliser=held * (1 - 1e-6)).scale(TOP, 0.0)
    # equality is refused for Laplace: nothing would be left to divide by
    spent = determinant_loss(2.0, TOP, 50.0)
    with pytest.raises(PrivacyError):
        LaplaceNoise(spent, 2.0, 2.0, 0.0, 50.0).scale(TOP, 0.0)


def test_without_noise_and_stabiliser_the_trusted_stream_is_the_plain_one() -> None:
    ridge = Ridge(0.1, "identity")
    plain = OnlineFit(LOSS, ridge, 4, first="one-step")
    trusted = TrustedOnlineFit(LOSS, ridge, 4, GivenNoise(0.0), np.random.default_rng(0))
    for seed in range(10):
        assert_allclose(trusted.update(batch_of(seed)), plain.update(batch_of(seed)), atol=1e-12)


def test_records_are_clipped_to_the_bounds_of_the_noise() -> None:
    noise = GaussianNoise(0.8, 1e-5, l2_bound=1.2, step_bound=0.0, stabiliser=1e6)
    seen = TrustedOnlineFit(LOSS, Ridge(0.1, "identity"), 4, noise, np.random.default_rng(0))
    assert np.max(np.linalg.norm(seen._prepared(batch_of(3)[0]).design, axis=1)) <= 1.2 + 1e-12


# --- noise in every message ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "gradient", "curvature"), [(10, 14.3, 97), (20, 19.7, 186), (50, 30.8, 451)]
)
def test_deviations_are_those_of_an_independent_calibration(
    p: int, gradient: float, curvature: float
) -> None:
    noise = MessageNoise(1.0, 1e-5, math.sqrt(1 + p))
    assert noise.gradient_deviation(LOSS, first=False) == pytest.approx(gradient, abs=0.05)
    assert noise.curvature_deviation(LOSS) == pytest.approx(curvature, abs=0.6)


def test_the_parts_of_a_message_spend_the_budget_and_no_more() -> None:
    noise = MessageNoise(1.0, 1e-5, 2.0, counts_share=0.1, largest_weight=3.0)
    gradient = 3.0 * 2.0 / noise.gradient_deviation(LOSS, first=False)
    curvature = 3.0 * LOSS.curvature_bound * 4.0 / noise.curvature_deviation(LOSS)
    counts = 1.0 / noise.counts_deviation()
    assert math.hypot(gradient, curvature, counts) == pytest.approx(noise.mu)
    first = 2.0 / noise.gradient_deviation(LOSS, first=True)
    assert math.hypot(first, counts) == pytest.approx(noise.mu)


def test_shared_noise_sums_to_one_message_s_noise_however_many_share_it() -> None:
    shared = MessageNoise(1.0, 1e-5, 2.0, clients=20)
    assert shared.total_factor() == 1.0
    # where nobody else may add any, each message carries all of it
    assert replace(shared, tolerated=19).total_factor() == pytest.approx(math.sqrt(20))
    # with five that may not add theirs, each of the others adds more
    assert replace(shared, tolerated=5).total_factor() ** 2 == pytest.approx(20 / 15)


def test_symmetric_noise_is_isotropic_in_the_frobenius_norm() -> None:
    rng = np.random.default_rng(5)
    draws = np.array([normal_symmetric(rng, 4, 3.0) for _ in range(2_000)])
    assert np.array_equal(draws, draws.transpose(0, 2, 1))
    for (i, j), variance in (((0, 0), 9.0), ((3, 3), 9.0), ((0, 1), 4.5), ((2, 3), 4.5)):
        low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], 2_000) / 2_000 * variance
        assert low < np.mean(draws[:, i, j] ** 2) < high


@pytest.mark.parametrize("tolerated", [0, 7])
def test_the_first_step_carries_the_noise_that_was_promised(tolerated: int) -> None:
    noise = MessageNoise(1.0, 1e-5, 2.0, 8, tolerated)
    batch = batch_of(6)
    steps = []
    for seed in range(500):
        fit = PrivateOnlineFit(LOSS, Ridge(0.1), 4, noise, np.random.default_rng([7, seed]))
        steps.append(fit.update(batch))
    bread = 200 * (np.full(4, LOSS.start_curvature * 4 / 4) + Ridge(0.1).of_gradient(4))
    scaled = np.array(steps) * bread
    promised = noise.total_factor() * noise.gradient_deviation(LOSS, first=True)
    factor = math.sqrt(8 / (8 - tolerated))
    assert promised == pytest.approx(factor * 2.0 / noise.mu)
    low, high = stats.chi2.ppf([1e-5, 1 - 1e-5], 4 * 499) / (4 * 499)
    assert low < np.mean(np.var(scaled, axis=0, ddof=1)) / promised**2 < high


def test_message_noise_states_its_guarantee_with_its_assumptions() -> None:
    text = MessageNoise(1.0, 1e-5, 2.0, clients=10, tolerated=3).guarantee
    for part in ("(1, 1e-05)-differentially private", "over the whole stream", "mu = 0.2681",
                 "mu sqrt(r)", "k mu", "simulation only", "secure aggregation",
                 "at least 7 of 10 clients", "do not collude",
                 "a single message in clear has only mu sqrt(7) = 0.7092"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"epsilon": 0.0}, PrivacyError, "epsilon"),
        ({"delta": 1.0}, PrivacyError, "delta"),
        ({"clients": 3, "tolerated": 3}, PrivacyError, "tolerated"),
        ({"tolerated": -1}, PrivacyError, "tolerated"),
    ],
)
def test_message_noise_without_a_guarantee_is_refused(settings, error, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=words):
        MessageNoise(**{"epsilon": 1.0, "delta": 1e-5, "l2_bound": 2.0, **settings})


def test_class_weights_need_a_part_of_the_budget() -> None:
    noise = MessageNoise(1.0, 1e-5, 2.0, largest_weight=4.0)
    with pytest.raises(PrivacyError, match="counts_share must be > 0"):
        PrivateOnlineFit(LOSS, Ridge(0.1), 4, noise, np.random.default_rng(0), balanced=True)
