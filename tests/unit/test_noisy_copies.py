"""Copies of sites' estimates, against values of an independent implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.papers.noisy_copies import (
    Linear,
    Logistic,
    alpha_beta,
    gaussian_sigma,
    min_ridge,
    smooth_bound,
)
from benchmarks.papers.noisy_infembler import (
    Central,
    assemble,
    covariance,
    draw,
    sent,
    start,
    step,
)
from pipeline.methods.noisy_copies.accounting import Promise, least_scale, of_linear, of_logistic
from pipeline.methods.noisy_copies.infembler import stretched

#: Reference values have ten digits.
DIGITS = 1e-9
CENTRAL = Central(100.0, np.array([1.0, -0.5]), np.array([[50.0, 10.0], [10.0, 40.0]]))
SITES = sent(
    records=np.array([120.0, 80.0]),
    copies=np.array([20.0, 30.0]),
    scales=np.array([10.0, 12.0]),
    means=np.array([[0.8, -0.3], [1.4, -0.9]]),
    scatters=np.array([[[4.0, -1.0], [-1.0, 6.0]], [[9.0, 2.0], [2.0, 5.0]]]),
)


def test_the_paper_s_calibration() -> None:
    assert alpha_beta(4, 1 / 160, 8, 40) == pytest.approx((0.5777613700, 0.0205204708), abs=DIGITS)
    assert alpha_beta(1, 1e-5, 8, 40) == pytest.approx((0.1002843434, 0.0033465581), abs=DIGITS)
    given = ((1, 1e-5), (4, 1 / 160), (8, 1e-5))
    assert [gaussian_sigma(*one) for one in given] == pytest.approx(
        [3.730631635, 0.702362014, 0.600229072], abs=DIGITS
    )


def test_the_smooth_bound_is_finite_above_a_ridge_alone() -> None:
    beta = alpha_beta(4, 1e-3, 8, 40)[1]
    ridges = [min_ridge(lambda r: Linear(3.0, r), beta), min_ridge(Logistic, beta)]
    assert ridges == pytest.approx([27.96249925, 35.35236230], rel=DIGITS)
    assert smooth_bound(Linear(3.0, 60.0), 1000.0, beta) == pytest.approx(0.0948683298, abs=DIGITS)
    assert smooth_bound(Logistic(60.0), 1000.0, beta) == pytest.approx(0.0316385985, abs=DIGITS)
    assert smooth_bound(Linear(3.0, 0.99 * ridges[0]), 1000.0, beta) == math.inf


def test_a_public_scale() -> None:
    promise = Promise(4, 1e-5)
    linear, logistic = of_linear(1.0, 3.0, 16.0), of_logistic(1.0, 32.0)
    assert least_scale(linear, 8, 40, promise) == pytest.approx(48.76285759, rel=DIGITS)
    assert least_scale(logistic, 8, 40, promise) == pytest.approx(2.978774076, rel=DIGITS)
    # a smaller ridge than the copies allow
    assert least_scale(of_linear(1.0, 3.0, 1.0), 8, 40, promise) == math.inf


def test_infembler_with_central_records() -> None:
    found = assemble(SITES, CENTRAL, tolerance=1e-13)
    assert found.rounds == 45
    assert found.theta == pytest.approx([1.0375825276, -0.5534650665], abs=DIGITS)
    assert found.information[np.triu_indices(2)] == pytest.approx(
        [0.4660753311, 0.0800097364, 0.4000867668], abs=DIGITS
    )
    errors = np.sqrt(np.diag(np.linalg.inv(found.whole)))
    assert errors == pytest.approx([0.0960037022, 0.1040192504], abs=DIGITS)
    sandwich = np.sqrt(np.diag(covariance(SITES, CENTRAL, found)))
    assert sandwich == pytest.approx([0.0962001625, 0.1025732905], abs=DIGITS)
    one = step(SITES, CENTRAL, start(SITES, CENTRAL))
    assert one.theta == pytest.approx([1.0365254647, -0.5518385739], abs=DIGITS)


def test_infembler_without_central_records_and_from_a_warm_start() -> None:
    found = assemble(SITES, tolerance=1e-13)
    assert found.theta == pytest.approx([1.0692703735, -0.5927073749], abs=DIGITS)
    quick = start(SITES)
    for _ in range(12):
        quick = stretched(SITES, quick, step(SITES, None, quick))
    assert quick.theta == pytest.approx(found.theta, abs=DIGITS)
    warm = assemble(SITES, at=assemble(SITES, CENTRAL), tolerance=1e-13)
    assert warm.theta == pytest.approx(found.theta, abs=DIGITS)


def test_mean_and_scatter_have_the_law_of_copies() -> None:
    rng, information = np.random.default_rng(1), np.array([[4.0, 1.0], [1.0, 3.0]])
    theta, copies, scale, runs = np.array([1.0, -1.0]), 6, 2.0, 4000
    drawn = [draw(theta, information, copies, scale, rng) for _ in range(runs)]
    variance = scale * np.linalg.inv(information)
    means, scatters = (np.array(part) for part in zip(*drawn, strict=True))
    # four Monte Carlo errors: of a mean, and of a Wishart matrix with five degrees
    error = 4 * np.sqrt(np.diag(variance) / copies / runs)
    assert np.all(np.abs(means.mean(axis=0) - theta) < error)
    five = (copies - 1) * variance
    spread = (np.outer(np.diag(variance), np.diag(variance)) + variance**2) * (copies - 1)
    assert np.all(np.abs(scatters.mean(axis=0) - five) < 4 * np.sqrt(spread / runs))
