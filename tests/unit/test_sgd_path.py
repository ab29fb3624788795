"""The path of stochastic gradient descent and its sums, beside loops written from the formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.errors import ConfigError, NumericError
from pipeline.methods.ldp_sgd import plug_in
from pipeline.methods.ldp_sgd.intervals import (
    contrast,
    critical_value,
    random_scaling,
    tail,
    variance,
)
from pipeline.methods.ldp_sgd.path import LARGEST, SgdPath, Sums
from pipeline.methods.ldp_sgd.step_rule import Rule, StepRule, noise_cap, staleness_cap

SIZE, BLOCK, RELEASES = 3, 7, 1400


def drawn(seed: int = 0, releases: int = RELEASES) -> tuple[np.ndarray, np.ndarray]:
    """Gradients that pull towards a point, and the points they were taken at."""
    rng = np.random.default_rng(seed)
    centre = np.array([0.5, -0.2, 0.1])
    points = rng.normal(centre, 0.3, (releases, SIZE))
    gradients = points[:, None, :] - centre + rng.normal(0, 1, (releases, BLOCK, SIZE))
    return np.rint(gradients * 2**14) / 2**14, points


def rule(*, full: bool = True, burn_in: int = 500) -> Rule:
    return Rule(StepRule(0.8, 0.55, 0.2), burn_in, np.array([0.1, 0.0, -0.1]), full)


def looped(made: Rule, gradients: np.ndarray) -> tuple[np.ndarray, int]:
    """Return all iterates, and after how many records the burn-in really ended."""
    theta, path = made.start, []
    for i, gradient in enumerate(gradients.reshape(-1, SIZE), start=1):
        eta = min(made.steps.eta0 * i**-made.steps.alpha, made.steps.cap)
        theta = theta - eta * gradient
        path.append(theta)
    return np.array(path), math.ceil(made.burn_in / BLOCK) * BLOCK


def folded(made: Rule, sizes: list[int] | None = None, seed: int = 0) -> SgdPath:
    gradients, points = drawn(seed)
    path, at = SgdPath(made), 0
    for size in [*(sizes or []), RELEASES]:
        path.fold(gradients[at : at + size], points[at : at + size])
        at += size
    return path


def test_the_sums_are_those_of_a_plain_loop() -> None:
    gradients, points = drawn()
    path = folded(rule())
    iterates, burnt = looped(rule(), gradients)
    assert_allclose(path.theta, iterates[-1], rtol=1e-12)
    origin = iterates[burnt - 1]
    c = np.cumsum(iterates[burnt:] - origin, axis=0)
    s = np.arange(1, len(c) + 1)
    g, u = gradients.reshape(-1, SIZE)[burnt:], np.repeat(points, BLOCK, axis=0)[burnt:]
    wanted = {
        "c": c[-1], "s": c.sum(axis=0), "b": s @ c, "a": c.T @ c, "g": g.sum(axis=0),
        "u": u.sum(axis=0), "gu": g.T @ u, "uu": u.T @ u, "gg": g.T @ g,
    }  # fmt: skip
    assert path.sums.records == len(c)
    assert path.records == RELEASES * BLOCK
    for name, value in wanted.items():
        assert_allclose(getattr(path.sums, name), value, rtol=1e-9, atol=1e-9, err_msg=name)


# from the end of the burn-in, and from a mark behind it
@pytest.mark.parametrize("burn_in", [500, 100])
def test_random_scaling_from_the_sums_is_its_definition(burn_in: int) -> None:
    path = folded(rule(burn_in=burn_in))
    assert (path.stretch().records < path.sums.records) is (burn_in == 100)
    iterates, _ = looped(rule(burn_in=burn_in), drawn()[0])
    kept = iterates[-path.stretch().records :]
    means = np.cumsum(kept, axis=0) / np.arange(1, len(kept) + 1)[:, None]
    s = np.arange(1, len(kept) + 1)
    off = s[:, None] * (means - means[-1])
    v = off.T @ off / len(kept) ** 2
    found = random_scaling([(path.stretch(), path.origin)])
    assert_allclose(found.mean, means[-1], rtol=1e-12)
    assert_allclose(variance(path.stretch()), np.diag(v), rtol=1e-9)
    assert_allclose(found.half_width(0.9), 5.3227 * np.sqrt(np.diag(v) / len(kept)), rtol=1e-4)
    direction = np.array([1.0, -1.0, 0.5])
    centre, scale = contrast(path.stretch(), direction)
    assert_allclose(centre, direction @ (means[-1] - path.origin), rtol=1e-9)
    assert_allclose(scale, math.sqrt(direction @ v @ direction / len(kept)), rtol=1e-8)


@pytest.mark.parametrize("burn_in", [500, 100])
def test_the_diagonal_alone_is_the_diagonal_of_the_whole(burn_in: int) -> None:
    one, two = (folded(rule(full=full, burn_in=burn_in)) for full in (False, True))
    assert_allclose(one.sums.a, np.diag(two.sums.a), rtol=1e-12)
    assert_allclose(variance(one.stretch()), variance(two.stretch()), rtol=1e-9)


def test_a_stretch_begins_after_five_to_twelve_percent_once_there_are_marks() -> None:
    gradients, points = drawn(releases=8000)
    path, share = SgdPath(rule(burn_in=350)), []
    for i in range(0, 8000, 10):
        path.fold(gradients[i : i + 10], points[i : i + 10])
        if path.records > 16 * 1400:
            share.append(1 - path.stretch().records / path.records)
    assert 0.05 <= min(share) < 0.06
    assert 1 / 9 < max(share) <= 1 / 8
    assert len(path.marks) == 4


def test_the_regressed_curvature_is_least_squares() -> None:
    gradients, points = drawn(2)
    path = SgdPath(rule(burn_in=0))
    path.fold(gradients, points)
    design = np.column_stack([np.ones(RELEASES * BLOCK), np.repeat(points, BLOCK, axis=0)])
    slopes = np.linalg.lstsq(design, gradients.reshape(-1, SIZE), rcond=None)[0][1:].T
    found = plug_in.regressed_curvature([path.sums])
    assert_allclose(found, (slopes + slopes.T) / 2, rtol=1e-8, atol=1e-10)
    # the true curvature of these gradients is the identity
    assert np.max(np.abs(found - np.eye(SIZE))) < 6 / math.sqrt(RELEASES * BLOCK) / 0.3
    plug = plug_in.without_release([path.sums])
    bread = np.linalg.inv(found)
    middle = np.einsum("ni,nj->ij", *(gradients.reshape(-1, SIZE),) * 2) / (RELEASES * BLOCK)
    assert_allclose(plug.covariance, bread @ middle @ bread / (RELEASES * BLOCK), rtol=1e-9)


def test_a_path_that_has_not_moved_has_no_curvature() -> None:
    path = SgdPath(rule(burn_in=0))
    path.fold(np.zeros((5, BLOCK, SIZE)), np.zeros((5, BLOCK, SIZE))[:, 0])
    with pytest.raises(NumericError, match="moved in every direction"):
        plug_in.without_release([path.sums])
    with pytest.raises(NumericError, match="burn-in"):
        random_scaling([(Sums.zero(SIZE, full=False), np.zeros(SIZE))])
    with pytest.raises(NumericError, match="not positive yet"):
        plug_in.plug_in(np.zeros((SIZE, SIZE)), np.eye(SIZE), 9)


def test_a_path_that_diverges_stops_before_that_release_and_keeps_its_sums() -> None:
    gradients, points = drawn()
    gradients = gradients.copy()
    gradients[600, 3, 1] = 1e9
    whole, before = SgdPath(rule()), SgdPath(rule())
    whole.fold(gradients, points)
    before.fold(gradients[:600], points[:600])
    assert whole.diverged == 600 * BLOCK == whole.records
    assert whole.sums.a.tobytes() == before.sums.a.tobytes()
    assert np.max(np.abs(whole.theta)) <= LARGEST
    whole.fold(gradients[:5], points[:5])
    assert whole.records == 600 * BLOCK


@pytest.mark.parametrize(
    ("level", "wanted"),
    [(0.8, 3.8749), (0.9, 5.3227), (0.95, 6.7473), (0.98, 8.6132), (0.99, 10.0173),
     (0.995, 11.4174), (0.999, 14.6590)],
)  # fmt: skip
def test_critical_values_of_one_path(level: float, wanted: float) -> None:
    assert critical_value(level) == pytest.approx(wanted, abs=6e-5)
    assert tail(critical_value(level)) == pytest.approx(1 - level, rel=1e-9)


@pytest.mark.parametrize(
    ("paths", "wanted"), [(1, 6.7473), (2, 5.8651), (4, 5.3589), (8, 5.0861), (16, 4.9449)]
)
def test_critical_values_of_pooled_paths(paths: int, wanted: float) -> None:
    assert critical_value(0.95, (1.0,) * paths) == pytest.approx(wanted, abs=6e-5)
    # a share of nearly nothing changes nearly nothing
    assert critical_value(0.95, (1.0, 1e-9)) == pytest.approx(6.7473, abs=1e-3)


def test_the_critical_value_is_that_of_simulated_brownian_motion() -> None:
    rng, steps, draws = np.random.default_rng(1), 1000, 20_000
    ratio = np.empty(draws)
    for first in range(0, draws, 2000):
        walk = np.cumsum(rng.normal(size=(2000, steps)), axis=1) / math.sqrt(steps)
        bridge = walk - np.arange(1, steps + 1) / steps * walk[:, -1:]
        ratio[first : first + 2000] = walk[:, -1] / np.sqrt(np.mean(bridge**2, axis=1))
    for level in (0.8, 0.95):
        share = np.mean(np.abs(ratio) <= critical_value(level))
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / draws) + 2 / steps


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan])
def test_an_impossible_level_is_refused(level: float) -> None:
    with pytest.raises(ConfigError, match="level"):
        critical_value(level)


def test_steps_have_the_same_bits_wherever_a_batch_begins() -> None:
    made = StepRule(0.7, 0.6, 0.3)
    whole = made.steps(1, 40_000)
    rng = np.random.default_rng(0)
    for first in [1, 2, 16_384, 16_385, *rng.integers(1, 39_000, 20).tolist()]:
        assert np.array_equal(made.steps(first, 900), whole[first - 1 : first + 899])
    assert_allclose(whole, np.minimum(0.7 * np.arange(1, 40_001.0) ** -0.6, 0.3), rtol=1e-14)
    assert len(made.steps(5, 0)) == 0


@pytest.mark.parametrize(
    ("eta0", "alpha", "cap"),
    [(0, 0.6, 1), (math.inf, 0.6, 1), (1, 0.5, 1), (1, 1.1, 1), (1, 0.6, 0), (1, math.nan, 1)],
)
def test_an_impossible_rule_of_steps_is_refused(eta0: float, alpha: float, cap: float) -> None:
    with pytest.raises(ConfigError):
        StepRule(eta0, alpha, cap)


def test_the_caps_are_those_of_the_spec() -> None:
    d, mu, h, c, kappa = 11, 1.0, 0.8, 0.6, 0.5
    noise = 2 * math.sqrt(d) * c / mu
    assert noise_cap(kappa, h, c, noise, d) == pytest.approx(kappa * h * mu**2 / (2 * d**2))
    assert noise_cap(kappa, h, c, 0.0, d) == math.inf
    assert staleness_cap(0.4, 1100, rho=0.5) == pytest.approx(0.5 / (0.4 * 1100))
