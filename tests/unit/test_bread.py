"""Which coefficients a noisy curvature leaves unknown."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.methods.renewable.bread import bread_of
from pipeline.methods.renewable.precision import Noise

NOISE = Noise(gradient=1.0, curvature=1.0, size=9, slots=100)
S = NOISE.of_curvature(300.0)


def curvature(last: np.ndarray, least: float) -> np.ndarray:
    """Return a curvature of 50 s, but of `least` along one direction."""
    return 50 * S * np.eye(9) + (least - 50 * S) * np.outer(last, last)


@pytest.mark.parametrize("least", [0.0, 0.3 * S])
def test_a_hidden_direction_that_is_spread_evenly_hides_every_coefficient(least: float) -> None:
    """Each has a ninth of it, and its variance is as good as all of each."""
    even = np.full(9, 1 / 3)
    bread = bread_of(curvature(even, least), 300.0, np.full(9, 1e-3 * S), NOISE)
    assert bread.hidden == 1
    assert bread.unknown.all()


def test_a_hidden_direction_of_one_coefficient_hides_no_other() -> None:
    bread = bread_of(curvature(np.eye(9)[2], 0.0), 300.0, np.full(9, 1e-3 * S), NOISE)
    assert np.flatnonzero(bread.unknown).tolist() == [2]


def test_a_ridge_beyond_the_noise_hides_none() -> None:
    bread = bread_of(curvature(np.full(9, 1 / 3), 0.0), 300.0, np.full(9, 0.8 * S), NOISE)
    assert bread.hidden == 0
    assert not bread.unknown.any()
