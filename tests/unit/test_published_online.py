"""Streams without noise: the recursion, its additive form, start, ridge and class weights."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pipeline.errors import DataError, NumericError
from pipeline.losses import GeneralisedDWD, Logistic, Loss
from pipeline.methods.published.fits import Records, Ridge, federated_fit, pooled_fit, sums_at
from pipeline.methods.published.online import FIRST_ROUNDS, ClassBalance, OnlineFit
from tests.builders import simulate

PAPER_LOSS = GeneralisedDWD(1.0, 0.01, ramp="symmetric")
LOSSES: list[Loss] = [GeneralisedDWD(0.1), GeneralisedDWD(1.0), Logistic()]


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


@pytest.mark.parametrize("q", [0.5, 1.0, 4.0])
def test_a_stream_converges_to_the_pooled_fit_without_seeing_records_twice(q: float) -> None:
    loss, ridge = GeneralisedDWD(q), Ridge(0.02)
    batches = batches_of(4, 100, 4, 100, 3)
    online = OnlineFit(loss, ridge, 4)
    for batch in batches:
        online.update(batch)
    pooled = pooled_fit(loss, joined(batches), ridge).coefficients
    half = pooled_fit(loss, joined(batches[::2]), ridge).coefficients
    # what half of the records leave open: the two halves differ by two standard errors of all
    scale = np.linalg.norm(half - pooled)
    assert np.linalg.norm(online.coefficients - pooled) < 0.5 * scale


def test_one_step_from_zero_is_the_mean_over_the_ridge_and_a_fitted_start_is_not() -> None:
    batch = batches_of(5, 1, 3, 50, 2)[0]
    mean = (joined([batch]).responses[:, None] * joined([batch]).design).mean(axis=0)
    loss, ridge = PAPER_LOSS, Ridge(0.1, "identity")
    assert_allclose(OnlineFit(loss, ridge, 3, first="one-step").update(batch), mean / 0.1)
    pooled = pooled_fit(loss, joined([batch]), ridge).coefficients
    assert_allclose(OnlineFit(loss, ridge, 3).update(batch), pooled, atol=1e-5)


def test_with_two_ridges_the_intercept_lags_behind_its_own_optimum() -> None:
    loss, rng = PAPER_LOSS, np.random.default_rng(6)

    def batch() -> list[Records]:
        y = np.where(np.arange(500) < 400, 1.0, -1.0)
        return [Records.of(rng.normal(size=(500, 20)) + 0.2 * y[:, None], y)]

    fits = {
        "printed": OnlineFit(loss, Ridge.as_printed(0.1), 21, first="one-step"),
        "same": OnlineFit(loss, Ridge(0.1), 21),
    }
    for _ in range(100):
        records = batch()
        for fit in fits.values():
            fit.update(records)
    # the free intercept's population value at p = 20 is .8979
    assert abs(fits["same"].coefficients[0] - 0.8979) < 0.05
    assert abs(fits["printed"].coefficients[0] - 0.8979) > 0.2


def unbalanced(rng: np.random.Generator) -> list[Records]:
    y = np.where(np.arange(500) < 400, 1.0, -1.0)
    return [Records.of(rng.normal(size=(500, 4)) + 0.4 * y[:, None], y)]


@pytest.mark.parametrize("deviation", [0.0, 20.0])
def test_class_weights_centre_the_rule_between_classes_of_unequal_size(deviation: float) -> None:
    intercepts, plain = [], OnlineFit(GeneralisedDWD(1.0), Ridge(0.1), 5)
    for seed in range(12):
        rng = np.random.default_rng([7, seed])
        balance = ClassBalance(deviation=deviation, rng=rng)
        fit = OnlineFit(GeneralisedDWD(1.0), Ridge(0.1), 5, balance=balance)
        for _ in range(60):
            batch = unbalanced(rng)
            fit.update(batch)
            if seed == 0:
                plain.update(batch)
        intercepts.append(fit.coefficients[0])
        # five deviations of the 60 noises, in parts of the 6,000 records of the rarer class
        noise = 5 * deviation * np.sqrt(60) / 6_000
        assert balance.weights == pytest.approx((2.5, 0.625), rel=noise + 1e-12)
    # by symmetry the weighted population's intercept is 0; the first, unweighted batch still has
    # a sixtieth of the curvature behind it
    reach = stats.t.isf(5e-4, 11) * np.std(intercepts, ddof=1) / np.sqrt(12)
    assert abs(np.mean(intercepts)) < reach + plain.coefficients[0] / 60
    assert plain.coefficients[0] > 0.3


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
    fit = OnlineFit(GeneralisedDWD(1.0), Ridge(0.1), 3)
    with pytest.raises(DataError, match="2 features"):
        fit.update([Records.of(np.ones((4, 3)), np.ones(4))])
    with pytest.raises(DataError, match="at least one record"):
        fit.update([Records.of(np.ones((0, 2)), np.ones(0))])


@pytest.mark.parametrize("q", [1e-3, 1e3])
def test_streams_with_extreme_tails_stay_finite(q: float) -> None:
    fit = OnlineFit(GeneralisedDWD(q), Ridge(0.05), 4)
    batches = batches_of(10, 20, 2, 100, 3)
    for batch in batches:
        fit.update(batch)
    pooled = pooled_fit(GeneralisedDWD(q), joined(batches), Ridge(0.05)).coefficients
    assert np.linalg.norm(fit.coefficients - pooled) < 0.5 * np.linalg.norm(pooled)
