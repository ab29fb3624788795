from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from pipeline.errors import PrivacyError
from pipeline.privacy.laws import Digit, Laplace
from pipeline.privacy.samplers import DIGITS, LEADING, DiscreteLaplace
from pipeline.types import Integers
from tests.builders import SeededStream
from tests.laws import laplace_cdf, laplace_masses, misfit

#: All draws below come from seeded streams, so that nothing is random from run to run; a fresh
#: stream would fail a test with this probability at most.
ALARM = 1e-6
MANY = 1_000_000


@pytest.mark.parametrize(
    ("scale", "seed"),
    [(0.5, 0), (1.0, 1), (3.7, 2), (70.0, 3), (900.0, 4), (23_000.0, 5)],
)
def test_a_million_draws_follow_the_exact_probabilities(scale: float, seed: int) -> None:
    draws = DiscreteLaplace(scale).draw(MANY, SeededStream(seed))
    assert misfit(draws, laplace_masses(scale)) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, 63.9, 64.1, 130.0, 1000.0, 2**13.5, 2**14 + 0.3])
def test_sixteen_million_draws_follow_the_exact_probabilities(scale: float) -> None:
    stream = SeededStream(11)
    draws = np.concatenate([DiscreteLaplace(scale).draw(MANY, stream) for _ in range(16)])
    assert misfit(draws, laplace_masses(scale)) > ALARM


def narrower(scale: float, stream: SeededStream) -> Integers:
    return DiscreteLaplace(0.99 * scale).draw(MANY, stream)


def shifted(scale: float, stream: SeededStream) -> Integers:
    """The wrong side of a look-up."""
    return DiscreteLaplace(scale).draw(MANY, stream) - 1


def signless(scale: float, stream: SeededStream) -> Integers:
    return np.abs(DiscreteLaplace(scale).draw(MANY, stream))


def two_zeros(scale: float, stream: SeededStream) -> Integers:
    """A geometric size and a sign: zero comes twice as often as it should."""
    rng = np.random.default_rng(2)
    size = np.floor(rng.exponential(scale, MANY)).astype(np.int64)
    return size * rng.choice([-1, 1], MANY)


def cut(scale: float, stream: SeededStream) -> Integers:
    """A support that ends at nine scales, beyond which are 120 draws in a million."""
    end = round(9 * scale)
    return np.clip(DiscreteLaplace(scale).draw(MANY, stream), -end, end)


def gaussian(scale: float, stream: SeededStream) -> Integers:
    deviation = DiscreteLaplace(scale).standard_deviation
    return np.rint(np.random.default_rng(1).normal(0, deviation, MANY)).astype(np.int64)


@pytest.mark.parametrize(
    ("wrong", "scales"),
    [
        (narrower, (1.0, 3.7, 900.0, 5000.0)),
        (shifted, (1.0, 3.7, 70.0)),
        (signless, (1.0, 900.0, 5000.0)),
        (two_zeros, (1.0, 3.7, 70.0)),
        (cut, (3.7, 900.0, 5000.0)),
        (gaussian, (1.0, 900.0, 5000.0)),
    ],
)
def test_a_wrong_sampler_is_found(
    wrong: Callable[[float, SeededStream], Integers], scales: tuple[float, ...]
) -> None:
    for scale in scales:
        assert misfit(wrong(scale, SeededStream(6)), laplace_masses(scale)) < ALARM


# --- digits ----------------------------------------------------------------------------------


def exact_mass(scale: float, x: int) -> mpmath.mpf:
    return laplace_cdf(scale, x) - laplace_cdf(scale, x - 1)


def leading_of(sampler: DiscreteLaplace) -> Laplace:
    law = sampler._leading._law
    assert isinstance(law, Laplace)
    return law


def digits_of(sampler: DiscreteLaplace) -> list[tuple[int, Digit]]:
    pairs = []
    for stride, table in sampler._digits:
        assert isinstance(table._law, Digit)
        pairs.append((stride, table._law))
    return pairs


class Fixed:
    """A table that gives the same draw always."""

    def __init__(self, value: int) -> None:
        self._value = value

    def draw(self, count: int, stream: object) -> NDArray[np.int64]:
        return np.full(count, self._value)


def put_together(scale: float, leading: int, digits: tuple[int, ...]) -> int:
    """Return what the sampler makes of these draws of its tables."""
    sampler = DiscreteLaplace(scale)
    strides = [stride for stride, _ in sampler._digits]
    sampler.__dict__["_leading"] = Fixed(leading)
    sampler.__dict__["_digits"] = tuple(zip(strides, map(Fixed, digits), strict=True))
    return int(sampler.draw(1, SeededStream(0))[0])


@pytest.mark.parametrize("scale", [40.0, 64.0, 130.3, 1000.0, 5000.5])
def test_leading_and_lower_digits_together_have_exactly_the_discrete_laplace_law(
    scale: float,
) -> None:
    """Every combination of draws is enumerated around zero: each integer comes from one."""
    sampler = DiscreteLaplace(scale)
    stride, digits = leading_of(sampler).stride, digits_of(sampler)
    seen = {}
    with mpmath.workdps(60):
        for leading in (-3, -2, -1, 0, 1, 2):
            edges = [laplace_cdf(scale, stride * (leading + d) - 1) for d in (1, 0)]
            for draws in itertools.product(*(range(law.count) for _, law in digits)):
                x = put_together(scale, leading, draws)
                mass = edges[0] - edges[1]
                for k, (_, law) in zip(draws, digits, strict=True):
                    b = mpmath.mpf(law.scale)
                    mass *= mpmath.exp(-(law.stride * k) / b)
                    mass *= (1 - mpmath.exp(-law.stride / b)) / (
                        1 - mpmath.exp(-law.stride * law.count / b)
                    )
                assert x not in seen
                seen[x] = mass
        assert sorted(seen) == list(range(-3 * stride, 3 * stride))
        for x, mass in seen.items():
            assert abs(mass / exact_mass(scale, x) - 1) < mpmath.mpf("1e-50")


@pytest.mark.parametrize("scale", [2e5, 3.3e7, 2.0**38 - 0.5])
def test_several_lower_digits_have_exactly_the_law_too(scale: float) -> None:
    """Too many to enumerate: combinations at random and at both ends."""
    sampler = DiscreteLaplace(scale)
    stride, digits = leading_of(sampler).stride, digits_of(sampler)
    assert len(digits) >= 2
    assert math.prod(law.count for _, law in digits) == stride
    rng = np.random.default_rng(3)
    ends = [(0,) * len(digits), tuple(law.count - 1 for _, law in digits)]
    some = [tuple(int(rng.integers(law.count)) for _, law in digits) for _ in range(40)]
    with mpmath.workdps(90):
        for draws in (*ends, *some):
            for leading in (-5, -1, 0, 7):
                x = put_together(scale, leading, draws)
                low = sum(s * k for (s, _), k in zip(digits, draws, strict=True))
                assert x == stride * leading + (low if leading >= 0 else stride - 1 - low)
                edges = [laplace_cdf(scale, stride * (leading + d) - 1) for d in (1, 0)]
                mass = edges[0] - edges[1]
                for k, (_, law) in zip(draws, digits, strict=True):
                    b = mpmath.mpf(law.scale)
                    mass *= mpmath.exp(-(law.stride * k) / b) * mpmath.expm1(-law.stride / b)
                    mass /= mpmath.expm1(-law.stride * law.count / b)
                assert abs(mass / exact_mass(scale, x) - 1) < mpmath.mpf("1e-50")


@pytest.mark.parametrize("scale", [0.02, 0.5, 63.99, 64.0, 1000.0, 23_000.0, 3.3e7, 2.0**37.9])
def test_tables_are_small_and_strides_are_powers_of_two_that_fit(scale: float) -> None:
    sampler = DiscreteLaplace(scale)
    stride = leading_of(sampler).stride
    assert stride.bit_count() == 1
    assert scale / stride < LEADING
    digits = digits_of(sampler)
    assert math.prod(law.count for _, law in digits) == stride
    expected = 1
    for place, law in digits:
        assert (place, law.stride) == (expected, expected)
        assert 2 <= law.count <= DIGITS
        expected *= law.count
    assert all(law.scale == scale for _, law in digits)


# --- moments and ends ------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.02, 0.1, 1.0, 63.0, 1000.0, 23_000.0])
def test_the_stated_deviation_is_that_of_the_law(scale: float) -> None:
    with mpmath.workdps(400):
        q = mpmath.exp(-1 / mpmath.mpf(scale))
        # 2 sum k^2 q^k (1 - q) / (1 + q) in closed form
        exact = mpmath.sqrt(2 * q) / (1 - q)
    assert DiscreteLaplace(scale).standard_deviation == pytest.approx(float(exact), rel=1e-12)
    if 1 <= scale <= 1000:
        assert laplace_masses(scale).deviation == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("scale", [20_000.0, 11_585.3])
def test_a_large_scale_has_the_moments_of_the_law(scale: float) -> None:
    sampler = DiscreteLaplace(scale)
    draws = sampler.draw(MANY, SeededStream(4)).astype(float)
    reach, deviation = stats.norm.isf(ALARM / 2), sampler.standard_deviation
    assert abs(draws.mean()) < reach * deviation / math.sqrt(MANY)
    # fourth moment 6 sigma^4, eighth 40320 / 16 sigma^8
    assert abs(draws.var() / deviation**2 - 1) < reach * math.sqrt(5 / MANY)
    assert abs(np.mean((draws / deviation) ** 4) - 6) < reach * math.sqrt(2484 / MANY)
    assert stats.kstest(draws, stats.laplace(scale=scale).cdf).pvalue > ALARM


@pytest.mark.parametrize("modulus", [2, 3, 5, 7, 16, 255, 256, 257, 512])
def test_a_large_scale_shows_no_lattice_structure(modulus: int) -> None:
    n = 300_000
    sampler = DiscreteLaplace(20_000.0)
    assert leading_of(sampler).stride == 512  # the stride that could shine through
    draws = sampler.draw(n, SeededStream(5))
    k = np.arange(modulus)
    # |X| mod m has the masses of a geometric law's remainder, all but the doubled zero
    weight = np.exp(-k / 20_000.0) / -math.expm1(-modulus / 20_000.0)
    chance = (2 * weight - (k == 0)) * -math.expm1(-1 / 20_000.0) / (1 + math.exp(-1 / 20_000.0))
    assert math.isclose(chance.sum(), 1.0)
    residues = np.bincount(np.abs(draws) % modulus, minlength=modulus)
    statistic = np.sum((residues - n * chance) ** 2 / (n * chance))
    assert stats.chi2.sf(statistic, modulus - 1) > ALARM


@pytest.mark.parametrize("scale", [0.1, 1.0, 64.0, 20_000.0, 2.0**37])
def test_draws_reach_far_and_never_beyond_the_stated_reach(scale: float) -> None:
    sampler = DiscreteLaplace(scale)
    assert np.abs(sampler.draw(50_000, SeededStream(6))).max() <= sampler.reach
    with mpmath.workdps(500):
        # less than once in 10^27 numbers
        beyond = 2 * laplace_cdf(scale, -math.floor(sampler.reach) - 1)
        assert beyond < mpmath.mpf("1e-27")


@pytest.mark.parametrize("scale", [0.03, 1.0, 2.0**14, 2.0**37])
def test_noise_beside_a_diagonal_pays_for_the_root_of_two(scale: float) -> None:
    """An entry beside the diagonal counts sqrt 2 in the norm, and its noise is that much less."""
    beside = DiscreteLaplace(scale).scaled(math.sqrt(0.5)).scale
    assert beside * math.sqrt(2) == pytest.approx(scale, rel=1e-15)


@pytest.mark.parametrize("scale", [0.0199, 0.0, -1.0, 2.0**38, math.inf, math.nan])
def test_an_impossible_scale_is_refused(scale: float) -> None:
    with pytest.raises(PrivacyError, match="noise scale"):
        DiscreteLaplace(scale)
