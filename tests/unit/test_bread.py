"""Which coefficients a noisy curvature leaves unknown."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.methods.renewable.bread import bread_of, shrunk
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


def noise_of_size(rng: np.random.Generator, d: int, size: float) -> np.ndarray:
    """Return a symmetric matrix of noise: its diagonal has the variance size^2 / d, others half."""
    drawn = rng.normal(size=(d, d)) * size / np.sqrt(d)
    return (drawn + drawn.T) / 2


def test_noise_that_turns_a_hidden_direction_towards_the_ridge_makes_it_no_more_certain() -> None:
    """An intercept that goes with a feature has a direction in which ridge and records say little.

    Noise mixes it with other weak ones, in which the ridge is enough.
    """
    noise = Noise(gradient=1.0, curvature=1.0, size=4, slots=100)
    s = noise.of_curvature(300.0)
    columns = [[-0.76, 0.6, 0.18, -0.19], [0.64, 0.72, 0.22, -0.2], [0, 0, 1, 1], [0, 1, 0, 3.0]]
    basis = np.linalg.qr(np.array(columns).T)[0]
    true = (basis * np.array([0.0, 42.0, 0.45, 0.75]) * s) @ basis.T
    penalty = np.array([0.0, 1.0, 1.0, 1.0]) * 1.15 * s
    assert float(penalty @ basis[:, 0] ** 2) < 0.75 * s
    rng = np.random.default_rng(1)
    found = [bread_of(true + noise_of_size(rng, 4, s), 300.0, penalty, noise) for _ in range(400)]
    given = np.mean([~bread.unknown for bread in found], axis=0)
    assert given[0] < 0.01
    assert np.all(given[2:] > 0.8)


@pytest.mark.parametrize("d", [4, 10])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_shrunk_eigenvalues_are_nearer_to_the_true_matrix(d: int, spread: float) -> None:
    """Of the same vectors, in the mean square over all entries."""
    rng = np.random.default_rng(d)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    true = (basis * np.linspace(1.0, 1.0 + spread, d)) @ basis.T
    before, after = [], []
    for _ in range(300):
        values, vectors = np.linalg.eigh(true + noise_of_size(rng, d, 1.0))
        mended = (vectors * shrunk(values, 1.0)) @ vectors.T
        before.append(np.sum(((vectors * values) @ vectors.T - true) ** 2))
        after.append(np.sum((mended - true) ** 2))
    gained = np.subtract(before, after)
    assert gained.mean() > 3 * gained.std() / np.sqrt(300)
    if spread == 0:
        # all vectors say the same, so that all of the noise but that of the trace can go
        assert np.mean(after) < 0.6 * np.mean(before)


def test_shrunk_eigenvalues_keep_their_order_and_their_sum() -> None:
    rng = np.random.default_rng(3)
    for size in (0.0, 0.1, 1.0, 10.0):
        values = np.sort(rng.normal(size=7))
        found = shrunk(values, size)
        assert np.all(np.diff(found) >= 0)
        assert found.sum() == pytest.approx(values.sum())
    assert shrunk(values, 0.0).tolist() == values.tolist()
    assert shrunk(np.array([1.0, 1.0]), 1.0).tolist() == [1.0, 1.0]


def test_a_direction_is_on_its_way_as_releases_come_until_it_is_known() -> None:
    """Noise falls as the root of the releases: a quarter of those it takes is a share of 1/4."""
    hidden = curvature(np.eye(9)[2], 0.875 * S)
    bread = bread_of(hidden, 300.0, np.full(9, 1e-3 * S), NOISE)
    assert bread.come == pytest.approx((0.876 / 1.75) ** 2, rel=0.05)
    later = bread_of(hidden, 300.0 / bread.come * 1.05, np.full(9, 1e-3 * S), NOISE)
    assert (bread.hidden, later.hidden) == (1, 0)


def test_how_far_it_is_does_not_depend_on_the_basis_of_directions_that_are_equally_hidden() -> None:
    """Without a ridge nothing is certain of four directions, which have different curvatures."""
    axes = np.linalg.qr(np.random.default_rng(5).normal(size=(9, 9)))[0]
    whole = (axes * np.array([0.1, 0.2, 0.5, 0.7, 20, 20, 20, 20, 20]) * S) @ axes.T
    found = []
    for seed in range(5):
        shift = np.random.default_rng(seed).normal(size=(9, 9)) * 1e-13 * S
        bread = bread_of(whole + shift + shift.T, 300.0, np.zeros(9), NOISE, noisy=False)
        assert bread.hidden == 4
        found.append(bread.come)
    assert found == pytest.approx([(0.1 / 1.75) ** 2] * 5, rel=1e-6)
