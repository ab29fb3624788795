from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from pipeline.errors import PrivacyError
from pipeline.privacy import discrete_gaussian
from pipeline.privacy.discrete_gaussian import DiscreteGaussian
from tests.builders import SeededStream

#: All draws below come from seeded streams, so that nothing is random from run to run; a fresh
#: stream would fail a test with this probability at most.
ALARM = 1e-6


def exact_pmf(sigma: float, reach: int) -> dict[int, mpmath.mpf]:
    with mpmath.workdps(60):
        s = mpmath.mpf(sigma)
        weights = {k: mpmath.exp(-(k * k) / (2 * s * s)) for k in range(-reach, reach + 1)}
        total = mpmath.fsum(weights.values())
        return {k: w / total for k, w in weights.items()}


@pytest.mark.parametrize(("sigma", "seed"), [(0.7, 1), (3.0, 2), (40.0, 3)])
def test_a_million_draws_follow_the_exact_probabilities(sigma: float, seed: int) -> None:
    n = 1_000_000
    draws = DiscreteGaussian(sigma).draw(n, SeededStream(seed))
    pmf = exact_pmf(sigma, math.ceil(14 * sigma))
    common = [k for k, p in pmf.items() if n * p >= 10]
    expected = np.array([float(n * pmf[k]) for k in common])
    observed = np.array([np.count_nonzero(draws == k) for k in common], dtype=float)
    rest = n - expected.sum()
    expected = np.append(expected, rest)
    observed = np.append(observed, n - observed.sum())
    statistic = np.sum((observed - expected) ** 2 / expected)
    assert stats.chi2.sf(statistic, len(expected) - 1) > ALARM


@pytest.mark.parametrize("sigma", [0.5, 0.7, 3.0])
def test_every_threshold_is_the_floor_of_the_exact_cumulative_probability(sigma: float) -> None:
    table = discrete_gaussian._thresholds(sigma)
    reach = len(table) // 2
    pmf = exact_pmf(sigma, reach)
    with mpmath.workdps(60):
        running = mpmath.mpf(0)
        for k, threshold in zip(range(-reach, reach), table.tolist(), strict=True):
            running += pmf[k]
            wanted = running * 2**64
            # a floor may fall on either side of an integer that is hit to 60 digits
            assert int(threshold) in {int(wanted), int(wanted - mpmath.mpf("1e-30"))}


@pytest.mark.parametrize("sigma", [257.0, 300.0, 383.9, 1000.5])
def test_the_convolution_is_the_exact_law_within_its_stated_distance(sigma: float) -> None:
    sampler = DiscreteGaussian(sigma)
    size = sampler.bound
    law = np.zeros(2 * size + 1)
    law[size] = 1.0
    for stride, table in sampler._terms:
        steps = np.diff([0, *table.tolist(), 2**64]) / 2.0**64
        spread = np.zeros(2 * size + 1)
        half = len(table) // 2
        for i, probability in enumerate(steps):
            shift = stride * (i - half)
            if probability:
                spread += probability * np.roll(law, shift)
        law = spread
    k = np.arange(-size, size + 1, dtype=float)
    wanted = np.exp(-(k**2) / (2 * sigma**2))
    wanted /= wanted.sum()
    distance = np.abs(law - wanted).sum() / 2
    # the float64 arithmetic of this test errs by about 1e-16 for each table
    assert distance <= sampler.total_variation + 2e-15
    assert abs(law @ k**2 - sigma**2) < 1e-9 * sigma**2


@pytest.mark.parametrize("sigma", [20_000.0, 11_585.3])
def test_a_large_sigma_has_the_moments_and_tails_of_the_law(sigma: float) -> None:
    n = 1_000_000
    draws = DiscreteGaussian(sigma).draw(n, SeededStream(4)).astype(float)
    reach = stats.norm.isf(ALARM / 2)
    assert abs(draws.mean()) < reach * sigma / math.sqrt(n)
    assert abs(draws.var() / sigma**2 - 1) < reach * math.sqrt(2 / n)
    fourth = np.mean((draws / sigma) ** 4)
    assert abs(fourth - 3) < reach * math.sqrt(96 / n)
    for z in (1.0, 2.0, 3.0, 4.0):
        chance = 2 * stats.norm.sf((math.floor(z * sigma) + 0.5) / sigma)
        seen = np.count_nonzero(np.abs(draws) > math.floor(z * sigma))
        assert abs(seen - n * chance) < reach * math.sqrt(n * chance) + 5
    ks = stats.kstest(draws + 0.0, stats.norm(scale=sigma).cdf)
    # one lattice step is 2e-5 of the distribution function, far below the sampling error
    assert ks.pvalue > ALARM


@pytest.mark.parametrize("modulus", [2, 3, 5, 7, 16, 64, 155, 156, 157, 312])
def test_a_large_sigma_shows_no_lattice_structure(modulus: int) -> None:
    n = 300_000
    sampler = DiscreteGaussian(20_000.0)
    assert sampler._terms[0][0] == 156  # the stride that could shine through
    residues = np.bincount(sampler.draw(n, SeededStream(5)) % modulus, minlength=modulus)
    statistic = np.sum((residues - n / modulus) ** 2 / (n / modulus))
    assert stats.chi2.sf(statistic, modulus - 1) > ALARM


@pytest.mark.parametrize("sigma", [0.5, 3.0, 256.0, 256.1, 20_000.0, 2.0**30])
def test_no_draw_passes_the_bound_even_for_extreme_uniforms(sigma: float) -> None:
    class Extreme(SeededStream):
        def uint64(self, count: int) -> np.ndarray:
            return np.resize(np.array([0, 2**64 - 1], dtype=np.uint64), count)

    sampler = DiscreteGaussian(sigma)
    draws = sampler.draw(2, Extreme(0))
    # masses below 2^-64 at the lower end have no uniform of their own; the last cell takes the rest
    assert -sampler.bound <= draws[0] < -9 * sigma + 2
    assert draws[1] == sampler.bound
    assert 12 * sigma <= sampler.bound < 14 * sigma + 100
    assert np.abs(sampler.draw(50_000, SeededStream(6))).max() <= sampler.bound


def test_the_stated_distance_stays_tiny_on_the_scales_that_channels_use() -> None:
    for sigma in np.linspace(2**14 / math.sqrt(2), 2**15, 40):
        assert 0 < DiscreteGaussian(float(sigma)).total_variation < 1e-14


@pytest.mark.parametrize("sigma", [0.49, 0.0, -1.0, 2.0**40, math.inf, math.nan])
def test_an_impossible_scale_is_refused(sigma: float) -> None:
    with pytest.raises(PrivacyError, match="noise scale"):
        DiscreteGaussian(sigma)


@pytest.mark.parametrize("sigma", [5.0, 7.3, 12.0, 25.0, 40.5, 60.0, 2**13.5, 2.0**14])
def test_discrete_and_rounded_gaussian_differ_by_sixteen_over_sigma_to_the_fourth(
    sigma: float,
) -> None:
    """The claim in `privacy.channel.calibrate`: sigma^2 = tau^2 + 1/12."""
    with mpmath.workdps(80):
        s = mpmath.mpf(sigma)
        tau = mpmath.sqrt(s * s - mpmath.mpf(1) / 12)
        # Poisson summation: the normaliser is s sqrt(2 pi) up to a factor 1 + 2 exp(-2 pi^2 s^2)
        normal = s * mpmath.sqrt(2 * mpmath.pi) * (1 + 2 * mpmath.exp(-2 * mpmath.pi**2 * s * s))
        largest = mpmath.mpf(0)
        for k in sorted({round(z * sigma) for z in np.linspace(0, 12, 61)}):
            discrete = mpmath.exp(-(k * k) / (2 * s * s)) / normal
            low, high = (k - mpmath.mpf("0.5")) / tau, (k + mpmath.mpf("0.5")) / tau
            root = mpmath.sqrt(2)
            rounded = (mpmath.erfc(low / root) - mpmath.erfc(high / root)) / 2
            largest = max(largest, abs(mpmath.log(discrete / rounded)))
        assert largest <= 16 / s**4
        assert largest >= 1 / s**4  # the order is right: the bound is no empty one
