"""Streams without noise: the recursion, its additive form, start, ridge and class weights."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.errors import DataError, NumericError
from pipeline.losses import GeneralisedDWD, Logistic, Loss
from pipeline.methods.published.fits import Records, Ridge, federated_fit, pooled_fit, sums_at
from pipeline.methods.published.online import FIRST_ROUNDS, OnlineFit
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
