"""Intervals of linear copies whose fits lie near their bound, which only some streams show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from pipeline.methods.noisy_copies.estimate import FARTHEST, lengthened

#: How far inside a limit estimates are that are shown, in standard errors.
CLEAR = np.linspace(1e-3, 10, 800)
#: Shares of streams that are shown, and of a coefficient's variance along what decides it.
SHOWN, ALONG = (1 / 160, 0.04, 0.1, 0.4, 0.84, 0.98, 0.9999), (1.0, 0.5, 0.25, 0.1, 0.0)


def coverage(shown: float, along: float, longer: Callable[[float], float], level: float) -> float:
    """Return how many of the intervals that are shown hold the truth, by quadrature.

    Of an estimate that has `along` of its variance in a normal number with variance 1 that is
    shown below the limit, and the rest apart from it.
    """
    limit, usual = float(ndtri(shown)), -float(ndtri((1 - level) / 2))
    off = limit - CLEAR
    weights = np.exp(-(off**2) / 2)
    half = usual * np.sqrt(1 - along + along * np.array([longer(clear) for clear in CLEAR]) ** 2)
    if along == 1:
        held = (np.abs(off) <= half).astype(float)
    else:
        middle, deviation = np.sqrt(along) * off, np.sqrt(1 - along)
        held = ndtr((half - middle) / deviation) - ndtr((-half - middle) / deviation)
    return float(weights @ held / weights.sum())


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_whatever_share_is_shown_intervals_hold_what_they_say(level: float) -> None:
    def longer(clear: float) -> float:
        return lengthened(clear, level)

    # from 93 to 97.5 % of 95 %
    miss = 1 - level
    for shown in SHOWN:
        for along in ALONG:
            found = coverage(shown, along, longer, level)
            assert 1 - 1.4 * miss <= found <= 1 - 0.5 * miss, (shown, along)
    # what these intervals would hold if they were no longer
    assert coverage(0.1, 1.0, lambda clear: 1.0, level) < level - 0.1 * level


def test_far_from_a_limit_nothing_is_longer_and_near_it_nothing_is_without_end() -> None:
    factors = [lengthened(clear, 0.95) for clear in (1e-9, 0.5, 1.0, 2.0, 4.0, 1e6)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == pytest.approx(FARTHEST / 1.959964, rel=1e-6)
    assert factors[-1] == 1.0
