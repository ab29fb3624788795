"""The bounds that every draw is decided by, against formulas at seventy digits and more."""

from __future__ import annotations

import mpmath
import pytest

from pipeline.privacy.laws import Digit, Gaussian, Laplace, Law, Weights
from tests.laws import bell, cumulative, geometric

SCALES = (0.1, 0.5, 1.0, 3.7, 100.0, 1000.0)
LAWS: list[Gaussian | Laplace | Digit] = [
    *map(Gaussian, SCALES),
    Laplace(0.02, 1),
    *(Laplace(scale, 1) for scale in (*SCALES[:4], 60.0)),
    Laplace(1000.0, 16),
    Laplace(2.0**38 - 0.5, 2**32),
    Digit(0.5, 1, 2),
    Digit(1.0, 1, 64),
    Digit(1000.0, 1, 16),
    Digit(23000.5, 1, 512),
    Digit(2.0**38 - 0.5, 2**30, 4),
]
SMALL = [law for law in LAWS if law != Gaussian(1000.0)]


def last_of(weights: Weights) -> int:
    return weights.first + len(weights.low) - 1


def true_weights(law: Law, weights: Weights) -> list[mpmath.mpf]:
    """Return the weights from their definitions, in the unit of the list: that of k = 0."""
    unit = mpmath.mpf(weights.low[-weights.first])
    count = max(-weights.first, last_of(weights)) + 1
    if isinstance(law, Gaussian):
        half = bell(law.sigma, count)
        return [unit * half[abs(k)] for k in range(weights.first, last_of(weights) + 1)]
    assert isinstance(law, Laplace | Digit)
    b = mpmath.mpf(law.scale)
    powers = geometric(mpmath.exp(-law.stride / b), count)
    # of each stride the integer nearest to zero, as the others of the stride follow it
    left = [unit * mpmath.exp(-1 / b) * powers[-k - 1] for k in range(weights.first, 0)]
    return left + [unit * power for power in powers[: last_of(weights) + 1]]


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_bounds_of_every_weight_and_of_the_tails_hold_the_truth(law: Law) -> None:
    bits = 64 if law == Gaussian(1000.0) else 128
    weights = law.weights(bits)
    assert weights.low[-weights.first] == weights.high[-weights.first]
    with mpmath.workdps(130):
        true = true_weights(law, weights)
        assert all(
            low <= w <= high for low, w, high in zip(weights.low, true, weights.high, strict=True)
        )
        total = mpmath.fsum(true)
        spread = sum(weights.high) - sum(weights.low) + weights.left + weights.right
        assert spread < total * mpmath.mpf(2) ** (4 - bits)
        below, above = outside(law, weights, total)
        # a hundred digits, so that rounding here cannot fail a bound that is met exactly
        assert below <= weights.left * (1 + mpmath.mpf("1e-100"))
        assert above <= weights.right * (1 + mpmath.mpf("1e-100"))
        if law.endless:
            assert min(weights.left, weights.right) > 0
        else:
            assert (weights.left, weights.right, weights.first) == (0, 0, 0)


def outside(law: Law, weights: Weights, total: mpmath.mpf) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Return the true weight to the left and to the right of the list."""
    if isinstance(law, Gaussian):
        half = bell(law.sigma, 2 - 2 * weights.first)
        tail = weights.low[-weights.first] * mpmath.fsum(half[1 - weights.first :])
        return tail, tail
    assert isinstance(law, Laplace | Digit)
    ends = cumulative(law, weights.first - 1, last_of(weights), 120)
    share = 1 - ends[0] - (1 - ends[-1])
    if isinstance(law, Digit):
        return mpmath.mpf(0), 1 - ends[-1]
    return total * ends[0] / share, total * (1 - ends[-1]) / share


@pytest.mark.parametrize("law", SMALL, ids=str)
@pytest.mark.parametrize("bits", [64, pytest.param(192, marks=pytest.mark.slow)])
def test_the_cumulative_bounds_hold_the_truth_and_are_close(law: Law, bits: int) -> None:
    weights = law.weights(bits + 64)
    lower, upper = weights.cumulative(bits)
    assert upper == sorted(upper)
    # a probability must be told from one; small scales fall by e^-50 and more with each integer
    digits = 400 if last_of(weights) < 100 else 100
    with mpmath.workdps(digits + 10):
        true = cumulative(law, weights.first, last_of(weights), digits)  # type: ignore[arg-type]
        for low, value, high in zip(lower, true, upper, strict=True):
            floor = int(mpmath.floor(value * 2**bits))
            assert low <= floor <= high
            assert high - low <= 1
    if law.endless:
        assert max(upper) < 2**bits


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_more_bits_never_contradict_fewer(law: Law) -> None:
    """A draw that is decided at some precision stays the same at any higher one."""
    if law == Gaussian(1000.0):
        law = Gaussian(100.0)
    coarse, fine = law.weights(96), law.weights(224)
    lower, upper = coarse.cumulative(64)
    finer_lower, finer_upper = fine.cumulative(64)
    shift = coarse.first - fine.first
    assert shift >= 0
    for i in range(len(lower)):
        assert lower[i] <= finer_lower[i + shift] <= finer_upper[i + shift] <= upper[i]
