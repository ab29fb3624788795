"""Samplers of discrete noise: their draws and tables have exactly the laws that they state."""

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
from pipeline.privacy.laws import Digit, Gaussian, Laplace, Table
from pipeline.privacy.samplers import (
    DIGITS,
    LEADING,
    SINGLE_TABLE,
    DiscreteGaussian,
    DiscreteLaplace,
)
from pipeline.types import Integers
from tests.builders import SeededStream
from tests.laws import Masses, gaussian_masses, laplace_cdf, laplace_masses, misfit

#: All draws below come from seeded streams, so that nothing is random from run to run; a fresh
#: stream would fail a test with this probability at most.
ALARM = 1e-6
MANY = 1_000_000
#: The masses that draws of each sampler should have.
MASSES: dict[type, Callable[[float], Masses]] = {
    DiscreteGaussian: gaussian_masses, DiscreteLaplace: laplace_masses,
}  # fmt: skip
Sampler = type[DiscreteGaussian] | type[DiscreteLaplace]


@pytest.mark.parametrize(("sampler", "scale", "seed"), [
    *((DiscreteGaussian, s, n) for n, s in enumerate((0.7, 3.0, 900.0, 23_000.0))),
    *((DiscreteLaplace, s, n) for n, s in enumerate((1.0, 3.7, 900.0))),
    *(pytest.param(DiscreteGaussian, s, 4, marks=pytest.mark.slow) for s in (0.5, 40.0)),
    *(pytest.param(DiscreteLaplace, s, 4, marks=pytest.mark.slow) for s in (0.5, 70.0)),
    pytest.param(DiscreteLaplace, 23_000.0, 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_million_draws_follow_the_exact_probabilities(
    sampler: Sampler, scale: float, seed: int
) -> None:
    assert misfit(sampler(scale).draw(MANY, SeededStream(seed)), MASSES[sampler](scale)) > ALARM


# --- wrong samplers --------------------------------------------------------------------------


def narrower(sampler: Sampler, scale: float) -> Integers:
    return sampler(0.99 * scale).draw(MANY, SeededStream(6))


def shifted(sampler: Sampler, scale: float) -> Integers:
    """The wrong side of a look-up."""
    return sampler(scale).draw(MANY, SeededStream(6)) + (1 if sampler is DiscreteGaussian else -1)


def signless(sampler: Sampler, scale: float) -> Integers:
    return np.abs(sampler(scale).draw(MANY, SeededStream(6)))


def mostly_right(sampler: Sampler, scale: float) -> Integers:
    """The sign of one draw in fifty is lost."""
    draws = sampler(scale).draw(MANY, SeededStream(6))
    draws[::50] = np.abs(draws[::50])
    return draws


def cut(sampler: Sampler, scale: float) -> Integers:
    """A support that ends where few draws in a million are beyond."""
    end = round((4 if sampler is DiscreteGaussian else 9) * scale)
    return np.clip(sampler(scale).draw(MANY, SeededStream(6)), -end, end)


def rounded_normal(sampler: Sampler, scale: float) -> Integers:
    """A rounded normal number, whose variance is a twelfth larger than the discrete one's."""
    deviation = scale if sampler is DiscreteGaussian else sampler(scale).standard_deviation
    return np.rint(np.random.default_rng(1).normal(0, deviation, MANY)).astype(np.int64)


def two_zeros(sampler: Sampler, scale: float) -> Integers:
    """A geometric size and a sign: zero comes twice as often as it should."""
    rng = np.random.default_rng(2)
    size = np.floor(rng.exponential(scale, MANY)).astype(np.int64)
    return size * rng.choice([-1, 1], MANY)


@pytest.mark.parametrize(("sampler", "wrong", "scales"), [
    (DiscreteGaussian, narrower, (0.7, 3.0, 900.0, 23_000.0)),
    (DiscreteGaussian, shifted, (0.7, 3.0, 40.0)),
    (DiscreteGaussian, signless, (0.7, 3.0, 900.0, 23_000.0)),
    (DiscreteGaussian, mostly_right, (3.0, 900.0, 23_000.0)),
    (DiscreteGaussian, cut, (3.0, 900.0, 23_000.0)),
    (DiscreteGaussian, rounded_normal, (0.7, 2.0)),
    pytest.param(DiscreteLaplace, narrower, (1.0, 3.7, 900.0, 5000.0), marks=pytest.mark.slow),
    (DiscreteLaplace, shifted, (1.0, 3.7, 70.0)),
    pytest.param(DiscreteLaplace, signless, (1.0, 900.0, 5000.0), marks=pytest.mark.slow),
    (DiscreteLaplace, two_zeros, (1.0, 3.7, 70.0)),
    pytest.param(DiscreteLaplace, cut, (3.7, 900.0, 5000.0), marks=pytest.mark.slow),
    pytest.param(DiscreteLaplace, rounded_normal, (1.0, 900.0, 5000.0), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_wrong_sampler_is_found(
    sampler: Sampler, wrong: Callable[[Sampler, float], Integers], scales: tuple[float, ...]
) -> None:
    for scale in scales:
        assert misfit(wrong(sampler, scale), MASSES[sampler](scale)) < ALARM


# --- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampler", "scale"), [
    *((DiscreteGaussian, s) for s in (0.1, 0.5, 3.0, 1024.0, 1024.1, 20_000.0, 2.0**30)),
    *((DiscreteLaplace, s) for s in (0.1, 1.0, 64.0, 20_000.0, 2.0**37)),
])  # fmt: skip
def test_draws_reach_far_and_never_beyond_the_stated_reach(sampler: Sampler, scale: float) -> None:
    made = sampler(scale)
    assert np.abs(made.draw(50_000, SeededStream(6))).max() <= made.reach
    with mpmath.workdps(500):
        # less than once in 10^27 numbers, and of Gaussian ones much less
        if sampler is DiscreteGaussian:
            assert mpmath.erfc(made.reach / scale / mpmath.sqrt(2)) < mpmath.mpf("1e-56")
        else:
            beyond = 2 * laplace_cdf(scale, -math.floor(made.reach) - 1)
            assert beyond < mpmath.mpf("1e-27")


@pytest.mark.parametrize(("sampler", "least", "most"), [
    (DiscreteGaussian, 0.1, 2.0**40), (DiscreteLaplace, 0.02, 2.0**38),
])  # fmt: skip
def test_an_impossible_scale_is_refused(sampler: Sampler, least: float, most: float) -> None:
    for scale in (0.999 * least, 0.0, -1.0, most, math.inf, math.nan):
        with pytest.raises(PrivacyError, match="noise scale"):
            sampler(scale)


# --- Gaussian: the law of a sum of tables ----------------------------------------------------


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
        pytest.param(2.0**20, 3, marks=pytest.mark.slow),
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
        # three tables make a point dear
        some = (0.5, 4.0, 8.0, 12.0) if levels == 2 else (8.0,)
        for x in (0, 33, *(-round(z * sigma) for z in some)):
            wanted = mpmath.exp(-(x * x) / (2 * whole * whole)) / theta(whole)
            # the normaliser is within the same factor
            assert abs(mass(x) / wanted - 1) <= 2 * stated


@pytest.mark.parametrize("sigma", [1024.5, 2**13.5, 2.0**14, 23_000.0, 2.0**20, 2.0**39.7])
def test_the_scales_of_the_tables_make_up_sigma_within_a_few_roundings(sigma: float) -> None:
    """Channels add 2^-50 to sigma for this."""
    with mpmath.workdps(40):
        assert abs(exact_sigma(DiscreteGaussian(sigma)) / sigma - 1) < mpmath.mpf(2) ** -51


@pytest.mark.slow
def test_every_table_fits_the_cache_of_a_core_and_all_tables_of_an_octave_share_one() -> None:
    fine = set()
    for sigma in np.geomspace(2**14, 2**15 - 1, 20):
        terms = DiscreteGaussian(float(sigma))._terms
        assert all(law_of(table).sigma <= SINGLE_TABLE for _, table in terms)
        fine.add(id(terms[1][1]))
    assert len(fine) == 1


@pytest.mark.parametrize("modulus", [2, 3, 5, 7, 16, 31, 32, 33, 64, 80, 320])
def test_a_large_sigma_shows_no_lattice_structure(modulus: int) -> None:
    n = 300_000
    sampler = DiscreteGaussian(20_000.0)
    assert sampler._terms[0][0] == 32  # the stride that could shine through
    residues = np.bincount(sampler.draw(n, SeededStream(5)) % modulus, minlength=modulus)
    statistic = np.sum((residues - n / modulus) ** 2 / (n / modulus))
    assert stats.chi2.sf(statistic, modulus - 1) > ALARM


@pytest.mark.parametrize("sigma", [0.7, 3.0, 40.0, 2.0**14, 2.0**39])
def test_noise_beside_a_diagonal_has_half_the_continuous_variance(sigma: float) -> None:
    beside = DiscreteGaussian(sigma).scaled(math.sqrt(0.5)).standard_deviation
    assert beside**2 - 1 / 12 == pytest.approx((sigma**2 - 1 / 12) / 2, rel=1e-12)


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


# --- Laplace: digits -------------------------------------------------------------------------


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


@pytest.mark.parametrize("scale", [0.02, 0.1, 1.0, 63.0, 1000.0, 23_000.0])
def test_the_stated_deviation_is_that_of_the_law(scale: float) -> None:
    with mpmath.workdps(400):
        q = mpmath.exp(-1 / mpmath.mpf(scale))
        # 2 sum k^2 q^k (1 - q) / (1 + q) in closed form
        exact = mpmath.sqrt(2 * q) / (1 - q)
    assert DiscreteLaplace(scale).standard_deviation == pytest.approx(float(exact), rel=1e-12)
    if 1 <= scale <= 1000:
        assert laplace_masses(scale).deviation == pytest.approx(float(exact), rel=1e-12)


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


@pytest.mark.parametrize("scale", [0.03, 1.0, 2.0**14, 2.0**37])
def test_noise_beside_a_diagonal_pays_for_the_root_of_two(scale: float) -> None:
    """An entry beside the diagonal counts sqrt 2 in the norm, and its noise is that much less."""
    beside = DiscreteLaplace(scale).scaled(math.sqrt(0.5)).scale
    assert beside * math.sqrt(2) == pytest.approx(scale, rel=1e-15)
