from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy import stats

from pipeline.errors import PrivacyError
from pipeline.privacy.laws import Gaussian, Table
from pipeline.privacy.samplers import SINGLE_TABLE, DiscreteGaussian
from pipeline.types import Integers
from tests.builders import SeededStream
from tests.laws import gaussian_masses, misfit

#: All draws below come from seeded streams, so that nothing is random from run to run; a fresh
#: stream would fail a test with this probability at most.
ALARM = 1e-6
MANY = 1_000_000


@pytest.mark.parametrize(
    ("sigma", "seed"), [(0.5, 0), (0.7, 1), (3.0, 2), (40.0, 3), (900.0, 4), (23_000.0, 5)]
)
def test_a_million_draws_follow_the_exact_probabilities(sigma: float, seed: int) -> None:
    draws = DiscreteGaussian(sigma).draw(MANY, SeededStream(seed))
    assert misfit(draws, gaussian_masses(sigma)) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.3, 1.0, 1023.5, 1024.5, 2**13.5, 2**14 + 0.3])
def test_sixteen_million_draws_follow_the_exact_probabilities(sigma: float) -> None:
    stream = SeededStream(11)
    draws = np.concatenate([DiscreteGaussian(sigma).draw(MANY, stream) for _ in range(16)])
    assert misfit(draws, gaussian_masses(sigma)) > ALARM


def narrower(sigma: float, stream: SeededStream) -> Integers:
    return DiscreteGaussian(0.99 * sigma).draw(MANY, stream)


def shifted(sigma: float, stream: SeededStream) -> Integers:
    """The wrong side of a look-up."""
    return DiscreteGaussian(sigma).draw(MANY, stream) + 1


def signless(sigma: float, stream: SeededStream) -> Integers:
    return np.abs(DiscreteGaussian(sigma).draw(MANY, stream))


def mostly_right(sigma: float, stream: SeededStream) -> Integers:
    """The sign of one draw in fifty is lost."""
    draws = DiscreteGaussian(sigma).draw(MANY, stream)
    draws[::50] = np.abs(draws[::50])
    return draws


def cut(sigma: float, stream: SeededStream) -> Integers:
    """A support that ends at four sigma."""
    end = round(4 * sigma)
    return np.clip(DiscreteGaussian(sigma).draw(MANY, stream), -end, end)


def continuous(sigma: float, stream: SeededStream) -> Integers:
    """A rounded normal number, whose variance is a twelfth larger."""
    return np.rint(np.random.default_rng(1).normal(0, sigma, MANY)).astype(np.int64)


@pytest.mark.parametrize(
    ("wrong", "sigmas"),
    [
        (narrower, (0.7, 3.0, 900.0, 23_000.0)),
        (shifted, (0.7, 3.0, 40.0)),
        (signless, (0.7, 3.0, 900.0, 23_000.0)),
        (mostly_right, (3.0, 900.0, 23_000.0)),
        (cut, (3.0, 900.0, 23_000.0)),
        (continuous, (0.7, 2.0)),
    ],
)
def test_a_wrong_sampler_is_found(
    wrong: Callable[[float, SeededStream], Integers], sigmas: tuple[float, ...]
) -> None:
    for sigma in sigmas:
        assert misfit(wrong(sigma, SeededStream(6)), gaussian_masses(sigma)) < ALARM


# --- the law of a sum of tables ---------------------------------------------------------------


def mass_of(sampler: DiscreteGaussian) -> Callable[[int], mpmath.mpf]:
    """Return P(X = x) of the sampler's sum of strides times table draws, term by term."""
    terms = []
    for stride, table in sampler._terms:
        sigma = mpmath.mpf(law_of(table).sigma)
        terms.append((stride, 2 * sigma**2, theta(sigma), stride * law_of(table).sigma))

    def mass(level: int, x: int) -> mpmath.mpf:
        stride, twice, total, _ = terms[level]
        if level == len(terms) - 1:
            assert stride == 1
            return mpmath.exp(-(x * x) / twice) / total
        # coarse draws that leave a remainder within 17 deviations to the finer tables: the rest
        # is less than 1e-60 of the sum
        fine = math.hypot(*(term[3] for term in terms[level + 1 :]))
        middle, reach = x / stride, math.ceil(17 * fine / stride) + 1
        around = range(math.floor(middle) - reach, math.ceil(middle) + reach + 1)
        return mpmath.fsum(
            mpmath.exp(-(k * k) / twice) / total * mass(level + 1, x - stride * k) for k in around
        )

    return lambda x: mass(0, x)


def law_of(table: Table) -> Gaussian:
    assert isinstance(table._law, Gaussian)
    return table._law


def theta(sigma: mpmath.mpf) -> mpmath.mpf:
    """Return the sum of exp(-k^2 / (2 sigma^2)) over all integers, by Poisson summation."""
    dual = mpmath.fsum(mpmath.exp(-2 * (mpmath.pi * sigma * k) ** 2) for k in range(1, 12))
    return sigma * mpmath.sqrt(2 * mpmath.pi) * (1 + 2 * dual)


def exact_sigma(sampler: DiscreteGaussian) -> mpmath.mpf:
    """Return the sigma that the sampler's tables make up, whose own scales are floats."""
    return mpmath.sqrt(
        mpmath.fsum(
            (stride * mpmath.mpf(law_of(table).sigma)) ** 2 for stride, table in sampler._terms
        )
    )


@pytest.mark.parametrize(
    ("sigma", "levels"),
    [
        (1024.5, 2),
        *(pytest.param(s, 2, marks=pytest.mark.slow) for s in (1500.0, 2047.9, 2**13.5)),
        (23_000.0, 2),
        (2.0**20, 3),
    ],
)
def test_the_sum_of_tables_is_the_exact_law_within_the_stated_factor_at_every_point(
    sigma: float, levels: int
) -> None:
    sampler = DiscreteGaussian(sigma)
    assert len(sampler._terms) == levels
    with mpmath.workdps(90):
        whole = exact_sigma(sampler)
        overlaps = []
        for i in range(levels - 1):
            (stride, table), rest = sampler._terms[i], sampler._terms[i + 1 :]
            fine = mpmath.sqrt(mpmath.fsum((s * law_of(t).sigma) ** 2 for s, t in rest))
            coarse = stride * mpmath.mpf(law_of(table).sigma)
            overlaps.append(coarse * fine / stride / mpmath.hypot(coarse, fine))
        stated = mpmath.fsum(2.01 * mpmath.exp(-2 * (mpmath.pi * s) ** 2) for s in overlaps)
        assert stated < mpmath.mpf("1e-48")
        mass = mass_of(sampler)
        for x in (0, 1, 2, 33, *(-round(z * sigma) for z in (0.5, 4.0, 8.0, 12.0))):
            wanted = mpmath.exp(-(x * x) / (2 * whole * whole)) / theta(whole)
            # the normaliser is within the same factor
            assert abs(mass(x) / wanted - 1) <= 2 * stated


@pytest.mark.parametrize("sigma", [1024.5, 2**13.5, 2.0**14, 23_000.0, 2.0**20, 2.0**39.7])
def test_the_scales_of_the_tables_make_up_sigma_within_a_few_roundings(sigma: float) -> None:
    """Channels add 2^-50 to sigma for this."""
    with mpmath.workdps(40):
        assert abs(exact_sigma(DiscreteGaussian(sigma)) / sigma - 1) < mpmath.mpf(2) ** -51


def test_every_table_fits_the_cache_of_a_core_and_all_tables_of_an_octave_share_one() -> None:
    fine = set()
    for sigma in np.geomspace(2**14, 2**15 - 1, 20):
        terms = DiscreteGaussian(float(sigma))._terms
        assert all(law_of(table).sigma <= SINGLE_TABLE for _, table in terms)
        fine.add(id(terms[1][1]))
    assert len(fine) == 1


# --- moments and structure -------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [20_000.0, 11_585.3])
def test_a_large_sigma_has_the_moments_and_tails_of_the_law(sigma: float) -> None:
    draws = DiscreteGaussian(sigma).draw(MANY, SeededStream(4)).astype(float)
    reach = stats.norm.isf(ALARM / 2)
    assert abs(draws.mean()) < reach * sigma / math.sqrt(MANY)
    assert abs(draws.var() / sigma**2 - 1) < reach * math.sqrt(2 / MANY)
    fourth = np.mean((draws / sigma) ** 4)
    assert abs(fourth - 3) < reach * math.sqrt(96 / MANY)
    for z in (1.0, 2.0, 3.0, 4.0):
        chance = 2 * stats.norm.sf((math.floor(z * sigma) + 0.5) / sigma)
        seen = np.count_nonzero(np.abs(draws) > math.floor(z * sigma))
        assert abs(seen - MANY * chance) < reach * math.sqrt(MANY * chance) + 5
    ks = stats.kstest(draws + 0.0, stats.norm(scale=sigma).cdf)
    # one lattice step is 2e-5 of the distribution function, far below the sampling error
    assert ks.pvalue > ALARM


@pytest.mark.parametrize("modulus", [2, 3, 5, 7, 16, 31, 32, 33, 64, 80, 320])
def test_a_large_sigma_shows_no_lattice_structure(modulus: int) -> None:
    n = 300_000
    sampler = DiscreteGaussian(20_000.0)
    assert sampler._terms[0][0] == 32  # the stride that could shine through
    residues = np.bincount(sampler.draw(n, SeededStream(5)) % modulus, minlength=modulus)
    statistic = np.sum((residues - n / modulus) ** 2 / (n / modulus))
    assert stats.chi2.sf(statistic, modulus - 1) > ALARM


@pytest.mark.parametrize("sigma", [0.1, 0.5, 3.0, 1024.0, 1024.1, 20_000.0, 2.0**30])
def test_draws_reach_far_and_never_beyond_the_stated_reach(sigma: float) -> None:
    sampler = DiscreteGaussian(sigma)
    assert np.abs(sampler.draw(50_000, SeededStream(6))).max() <= sampler.reach
    with mpmath.workdps(80):
        # less than once in 10^27 numbers, and much less
        beyond = mpmath.erfc(sampler.reach / sigma / mpmath.sqrt(2))
        assert beyond < mpmath.mpf("1e-56")


@pytest.mark.parametrize("sigma", [0.7, 3.0, 40.0, 2.0**14, 2.0**39])
def test_noise_beside_a_diagonal_has_half_the_continuous_variance(sigma: float) -> None:
    beside = DiscreteGaussian(sigma).scaled(math.sqrt(0.5)).standard_deviation
    assert beside**2 - 1 / 12 == pytest.approx((sigma**2 - 1 / 12) / 2, rel=1e-12)


@pytest.mark.parametrize("sigma", [0.0999, 0.0, -1.0, 2.0**40, math.inf, math.nan])
def test_an_impossible_scale_is_refused(sigma: float) -> None:
    with pytest.raises(PrivacyError, match="noise scale"):
        DiscreteGaussian(sigma)


@pytest.mark.parametrize("sigma", [5.0, 7.3, 12.0, 25.0, 40.5, 60.0, 2**13.5, 2.0**14])
def test_discrete_and_rounded_gaussian_differ_by_sixteen_over_sigma_to_the_fourth(
    sigma: float,
) -> None:
    """The claim in `privacy.channel.gaussian`: sigma^2 = tau^2 + 1/12."""
    with mpmath.workdps(80):
        s = mpmath.mpf(sigma)
        tau = mpmath.sqrt(s * s - mpmath.mpf(1) / 12)
        largest = mpmath.mpf(0)
        for k in sorted({round(z * sigma) for z in np.linspace(0, 12, 61)}):
            discrete = mpmath.exp(-(k * k) / (2 * s * s)) / theta(s)
            low, high = (k - mpmath.mpf("0.5")) / tau, (k + mpmath.mpf("0.5")) / tau
            root = mpmath.sqrt(2)
            rounded = (mpmath.erfc(low / root) - mpmath.erfc(high / root)) / 2
            largest = max(largest, abs(mpmath.log(discrete / rounded)))
        assert largest <= 16 / s**4
        assert largest >= 1 / s**4  # the order is right: the bound is no empty one
