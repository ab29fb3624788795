"""What every mechanism must keep: a suite over all of them, and over wrong ones in its test."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pipeline.privacy.mechanism import NOISE_BITS, Channel, Mechanism
from tests.builders import SeededStream

#: Sensitivities before rounding, distances that rounding adds for each lattice unit, and shares.
CASES = [(s, r, share) for s in (1e-6, 0.3, 1e4) for r in (1.0, 7.5) for share in (0.05, 0.7)]
BUDGET = 0.9
#: Relative error of the formulas beside each other, in floating point.
ROUNDING = 1e-9


def channels(mechanism: Mechanism) -> list[tuple[Channel, float, float]]:
    """Return a channel for each case, with its sensitivity and what its part may cost."""
    return [
        (mechanism.channel(s, r, BUDGET, share), s, mechanism.part(BUDGET, share))
        for s, r, share in CASES
    ]


def shares_add_up_to_the_budget(mechanism: Mechanism) -> None:
    """Parts that share a budget cost it together, in the mechanism's own composition."""
    for shares in ([1.0], [0.7, 0.3], [0.9, 0.05, 0.05]):
        costs = np.array([mechanism.part(BUDGET, share) for share in shares])
        total = float((costs**mechanism.order).sum() ** (1 / mechanism.order))
        assert math.isclose(total, BUDGET, rel_tol=ROUNDING)


def noise_covers_the_sensitivity(mechanism: Mechanism) -> None:
    """A channel costs what its part may cost: not more, and not much less."""
    for channel, sensitivity, budget in channels(mechanism):
        deviation = channel.noise.standard_deviation * channel.unit
        scale = deviation if mechanism.order == 2 else deviation / math.sqrt(2)
        assert channel.sensitivity >= sensitivity
        assert channel.sensitivity / scale <= budget * (1 + 1e-6)
        # rounding to the lattice takes little
        assert sensitivity / scale >= 0.95 * budget


def the_lattice_is_dyadic_and_fine(mechanism: Mechanism) -> None:
    """Units are powers of two, so that sums are exact; noise spans many of them."""
    for channel, _, _ in channels(mechanism):
        assert channel.unit == 2.0**channel.exponent
        assert channel.noise.standard_deviation >= 2**NOISE_BITS


def draws_have_their_size(mechanism: Mechanism) -> None:
    """Mean and deviation of many draws are within six Monte Carlo errors of what is stated."""
    channel, _, _ = channels(mechanism)[0]
    drawn = channel.noise.draw(40_000, SeededStream(5)) / channel.noise.standard_deviation
    assert abs(float(drawn.mean())) < 6 / math.sqrt(len(drawn))
    # the fourth moment of a Laplace law is six times the square of its variance
    assert abs(float((drawn**2).mean()) - 1) < 6 * math.sqrt(5 / len(drawn))


#: Every check.
CHECKS: tuple[Callable[[Mechanism], None], ...] = (
    shares_add_up_to_the_budget,
    noise_covers_the_sensitivity,
    the_lattice_is_dyadic_and_fine,
    draws_have_their_size,
)
