"""Noise of a trusted aggregator and of messages: scales, refusals, guarantees, variances."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from benchmarks.papers.given_noise import GivenNoise
from pipeline.errors import DataError, PrivacyError
from pipeline.losses import GeneralisedDWD
from pipeline.methods.published.fits import Records, Ridge
from pipeline.methods.published.noise import (
    GaussianNoise,
    LaplaceNoise,
    MessageNoise,
    determinant_loss,
    least_stabiliser,
    normal_symmetric,
)
from pipeline.methods.published.online import (
    ClassBalance,
    OnlineFit,
    PrivateOnlineFit,
    TrustedOnlineFit,
)
from tests.builders import simulate

LOSS = GeneralisedDWD(1.0)
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


@pytest.mark.parametrize(
    "noise",
    [
        LaplaceNoise(0.8, 3.0, 2.0, 0.1, 500.0),
        GaussianNoise(0.8, 1e-5, 2.0, 0.1, 500.0),
    ],
)
def test_every_trusted_noise_says_that_a_stream_has_no_guarantee(
    noise: LaplaceNoise | GaussianNoise,
) -> None:
    fit = TrustedOnlineFit(LOSS, Ridge(0.1, "identity"), 4, noise, np.random.default_rng(1))
    text = noise.guarantee
    assert text.startswith("not guaranteed over a stream: ")
    for reason in ("add up over releases", "assumed, not known", "trusted", "released exactly"):
        assert reason in text
    assert ("without bound" in text) == isinstance(noise, LaplaceNoise)
    assert np.all(np.isfinite(fit.update(batch_of(2))))


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


def test_the_stabiliser_acts_as_a_ridge_that_never_fades() -> None:
    """Its limit is that of the penalty lambda + rho / n_b: (.472, .325) here, by quadrature."""
    loss = GeneralisedDWD(1.0, 0.01, ramp="symmetric")
    y = np.where(np.arange(1_000) < 800, 1.0, -1.0)
    found = []
    for seed in range(8):
        rng = np.random.default_rng([4, seed])
        noise = GivenNoise(0.0, stabiliser=500.0)
        fit = TrustedOnlineFit(loss, Ridge(0.1, "identity"), 11, noise, rng)
        for _ in range(150):
            fit.update([Records.of(rng.normal(size=(1_000, 10)) + 0.2 * y[:, None], y)])
        found.append([fit.coefficients[0], fit.coefficients[1:].sum() / math.sqrt(10)])
    error = np.std(found, axis=0, ddof=1) / math.sqrt(8)
    # figures are rounded to three digits; two comparisons, one false alarm in a thousand
    reach = stats.t.isf(2.5e-4, 7) * error + 5e-4
    # how far the start still weighs: one batch in 150
    assert np.all(np.abs(np.mean(found, axis=0) - (0.472, 0.325)) < reach + 0.5 / 150)


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


def test_with_a_large_budget_noised_messages_reach_the_plain_stream() -> None:
    batches = [batch_of(seed, n=500) for seed in range(40)]
    noise = MessageNoise(1e6, 1e-5, 2.5, counts_share=0.05, largest_weight=4.0)
    plain = OnlineFit(LOSS, Ridge(0.05), 4)
    fits = [
        PrivateOnlineFit(LOSS, Ridge(0.05), 4, noise, np.random.default_rng(0), balanced=balanced)
        for balanced in (False, True)
    ]
    weighted = OnlineFit(LOSS, Ridge(0.05), 4, balance=ClassBalance(4.0))
    for batch in batches:
        for fit in (plain, weighted, *fits):
            fit.update(batch)
    # (1, x) has at most norm 2, so nothing is clipped; the start is another one
    assert_allclose(fits[0].coefficients, plain.coefficients, atol=0.05)
    assert_allclose(fits[1].coefficients, weighted.coefficients, atol=0.05)
    # what the weights are worth here, for comparison
    assert weighted.coefficients[0] < plain.coefficients[0] - 0.15
    assert fits[0].floored == 0


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


def test_rounds_of_the_wrong_shape_are_refused() -> None:
    noise = MessageNoise(1.0, 1e-5, 2.0)
    fit = PrivateOnlineFit(LOSS, Ridge(0.1), 4, noise, np.random.default_rng(0))
    with pytest.raises(DataError, match="3 features"):
        fit.update([Records.of(np.ones((4, 2)), np.ones(4))])
    with pytest.raises(DataError, match="at least one record"):
        fit.update([Records.of(np.ones((0, 3)), np.ones(0))])
