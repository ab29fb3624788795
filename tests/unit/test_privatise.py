from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.linalg import upper_is_diagonal
from pipeline.messages.release import read, seal
from pipeline.methods.renewable.client import query_of, summarise_bounded
from pipeline.privacy import memory
from pipeline.privacy.mechanism import slack
from pipeline.privacy.randomness import SecureStream
from pipeline.privacy.samplers import DiscreteGaussian
from pipeline.release.layout import identity
from pipeline.release.privatise import privatise
from tests.builders import SeededStream, simulate, some_model, task_of
from tests.neighbours import cost_of, first_deviation

PRIVATE = task_of(p=2)
FEATURES, RESPONSES = simulate(np.random.default_rng(0), 50, 2)
MODEL = some_model(PRIVATE, 1)
SUMS = summarise_bounded(PRIVATE, FEATURES, RESPONSES, MODEL)
QUERY = query_of(PRIVATE, SUMS)
IDENTITY = {"client": "c", "ledger": "l", "seq": 0}


@pytest.mark.parametrize("version", [0, 1])
def test_the_noise_of_a_release_has_the_scale_of_its_channels(version: int) -> None:
    """2000 releases of one window; every number within 6 standard errors: alarm 1e-8."""
    task = task_of(p=2)
    model = some_model(task, version)
    sums = summarise_bounded(task, FEATURES, RESPONSES, model)
    channels, stream = task.channels(version), SeededStream(3)
    query = query_of(task, sums)
    noised = [privatise(task, query, stream).parts for _ in range(2000)]
    for name, part in channels.parts.items():
        exact = getattr(sums, name)
        noise = np.array([n[name] for n in noised]) - part.round(exact.integers, exact.exponents)
        deviation = np.full(noise.shape[1], first_deviation(part))
        if name in ("curvature", "middle"):
            deviation[~upper_is_diagonal(task.size)] /= math.sqrt(2)
        check_noise(noise, deviation)


def check_noise(noise: np.ndarray, sigma: np.ndarray) -> None:
    n = len(noise)
    assert np.all(np.abs(noise.mean(axis=0)) < 6 * sigma / math.sqrt(n))
    assert np.all(np.abs(noise.var(axis=0) / sigma**2 - 1) < 6 * math.sqrt(2 / n))
    correlation = np.corrcoef(noise.T) - np.eye(noise.shape[1])
    assert np.abs(correlation).max() < 6 / math.sqrt(n)


def test_every_sampler_is_covered_by_the_proof_and_by_the_slack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each coordinate must cover a Gaussian of its share, and the slack all their deviations.

    In svec form, where an off-diagonal number counts sqrt 2 times, every coordinate of a part
    needs tau = sensitivity / unit / mu, so the number itself needs the variance
    tau_number^2 + 1/12 of `channel.gaussian`, with tau_number = tau / sqrt 2 off the diagonal.
    """
    used: list[tuple[float, int]] = []
    draw = DiscreteGaussian.draw

    def noting(self: DiscreteGaussian, count: int, stream: SecureStream) -> np.ndarray:
        used.append((self.sigma, count))
        return draw(self, count, stream)

    monkeypatch.setattr(DiscreteGaussian, "draw", noting)
    task = task_of(p=2)
    privatise(task, query_of(task, SUMS), SeededStream(0))
    mu, needed = task.budget.event.mu, []
    shares = task.split.shares
    # the whole that shares are of: what one record can use up of them
    [whole] = {
        round(shares[name] * mu**2 / float(cost_of(part, 2)), 9)
        for name, part in task.update_channels.parts.items()
    }
    # the draws of noise that remembers are 2^11 times finer, and larger by |c|
    finer = math.sqrt(sum(c * c for c in memory.COEFFICIENTS))
    for name, part in task.update_channels.parts.items():
        tau = finer * part.sensitivity / part.unit / (mu * math.sqrt(shares[name] / whole))
        needed += {
            "gradient": [(tau, 3)],
            "curvature": [(tau, 3), (tau / math.sqrt(2), 3)],
            "middle": [(tau, 3), (tau / math.sqrt(2), 3)],
            "counts": [(tau, 2)],
        }[name]
    numbers = 3 + 6 + 6 + 2
    assert sum(count for _, count in used) == numbers
    # no smaller than needed, and no larger than float64 and the rounding of `whole` make it
    for (sigma, count), (tau, wanted) in zip(sorted(used), sorted(needed), strict=True):
        assert count == wanted
        assert abs(sigma**2 / (tau**2 + 1 / 12) - 1) < 1e-8
    assert 1 <= whole < 1 + 1 / 256
    # a record meets eight draws of each
    epsilon, delta = slack(8 * numbers, 1.0)
    assert epsilon >= 2 * 8 * sum(count * 16 / sigma**4 for sigma, count in used)
    with mpmath.workdps(60):
        # beyond 12 sigma, where the factor of the proof is not shown
        beyond = mpmath.erfc(12 / mpmath.sqrt(2)) * 1.01
        assert delta >= (1 + mpmath.e) * 8 * numbers * beyond


def test_two_releases_of_one_window_never_share_their_noise() -> None:
    stream = SecureStream()
    one, two = (privatise(PRIVATE, QUERY, stream).parts["gradient"] for _ in range(2))
    assert not np.array_equal(one, two)


def test_a_release_holds_the_sums_and_the_noise_in_the_units_it_names() -> None:
    payload = seal(PRIVATE, privatise(PRIVATE, QUERY, SeededStream(1)), **IDENTITY)
    release = read(PRIVATE, payload)
    digests = [identity(name).hex() for name in (b"c", b"l")]
    assert [release.header.client, release.header.ledger, release.header.seq] == [*digests, 0]
    unit = PRIVATE.layout.later[0].exponent
    assert unit == PRIVATE.update_channels.gradient.exponent
    gradient = release.parts["gradient"] * 2.0**unit
    wanted = np.ldexp(SUMS.gradient.integers.astype(float), SUMS.gradient.exponents)
    # ten standard deviations of the noise
    assert_allclose(gradient, wanted, atol=10 * PRIVATE.update_channels.gradient.standard_deviation)
    assert not np.array_equal(gradient, wanted)
