"""Adversarial search: no record moves all parts of a release together by more than its budget.

Each part has the noise of its share, so what neighbouring windows use up is the sum over parts of
what each moves, in units of its noise: squares under Gaussian noise, plainly under Laplace noise.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.methods.renewable import client as task_module
from pipeline.methods.renewable.client import RenewableTask
from pipeline.privacy import sensitivity
from pipeline.release.model import Model
from pipeline.study.model import Split
from tests.builders import task_of
from tests.neighbours import Neighbours, climbed, cost_of, distances, leapt, moved, random_pair

MECHANISMS = ("discrete-gaussian", "discrete-laplace")
both = pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS)
EFFORTS = (1, pytest.param(20, marks=pytest.mark.slow))


def used_up(task: RenewableTask, version: int, shares: dict[str, float]) -> float:
    """Return the share of the budget that neighbours use up, from their distance in each part."""
    order = task.budget.mechanism.order
    parts = task.channels(version).parts
    cost = sum(cost_of(parts[name], order) * share**order for name, share in shares.items())
    return float(cost) / task.budget.per_record**order


STUDIES = {
    "logistic": {"loss": "logistic"},
    "logistic-weighted": {"loss": "logistic", "maximum": 5.0, "p": 2},
    "logistic-short": {"loss": "logistic", "norm_bound": 1.1},
    "logistic-coarse": {"loss": "logistic", "epsilon": 0.01, "delta": 1e-7, "user_records": 300},
    "logistic-no-middle": {"loss": "logistic", "split": "middle = 0"},
    "gdwd": {"maximum": 3.0},
    "gdwd-smoothing": {"q": 4.0, "smoothing": 0.05, "p": 2},
    "linear": {"loss": "linear", "residual_bound": 0.4},
    "linear-known": {"loss": "linear", "noise_scale": 0.4},
    "poisson": {"loss": "poisson", "most": 6.0},
}


#: Each study with both mechanisms and with both neighbours; a long run has each with each.
APART = [
    pytest.param(name, neighbours, mechanism, marks=[pytest.mark.slow] * ((i + j + k) % 2))
    for i, name in enumerate(STUDIES)
    for j, neighbours in enumerate(("zero-out", "replace-one"))
    for k, mechanism in enumerate(MECHANISMS)
]


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize(("name", "neighbours", "mechanism"), APART)
def test_no_neighbours_use_up_more_than_the_budget(
    name: str, neighbours: str, mechanism: str, effort: int
) -> None:
    settings: dict[str, object] = {"p": 3, **STUDIES[name]}
    task = task_of(neighbours=neighbours, mechanism=mechanism, **settings)
    rng = np.random.default_rng(5)
    pairs = [random_pair(task, rng, start=False) for _ in range(40 * effort)]
    found = [used_up(task, 1, distances(task, pair)) for pair in pairs]
    best = pairs[int(np.argmax(found))]
    most = climb(task, best, rng, 80 * effort)
    assert most <= 1.0


def climb(task: RenewableTask, pair: Neighbours, rng: np.random.Generator, steps: int) -> float:
    """Return the most that is used up on a way up from a pair."""
    best = used_up(task, 1, distances(task, pair))
    for _ in range(steps):
        candidate = moved(task, rng, pair)
        found = used_up(task, 1, distances(task, candidate))
        if found > best:
            best, pair = found, candidate
    return best


def at_slope(task: RenewableTask, slope: float) -> Model:
    """Return a model at which each record with y = 1 has this slope, and all weights are full."""
    weight = round(1024 * task.largest_weight)
    if task.loss.name == "logistic":
        intercept = math.log(1 / slope - 1)
    else:
        intercept = task.loss.knee * slope ** (-1 / (task.loss.q + 1))  # type: ignore[attr-defined]
    lattice = np.zeros(task.size, dtype=np.int64)
    lattice[0] = round(4096 * intercept)
    return Model(1, lattice, (weight, weight))


def corners(task: RenewableTask) -> tuple[np.ndarray, np.ndarray]:
    """Return two records of the largest norm that are orthogonal: 1 + x'z = 0."""
    one, other = np.ones(task.size - 1), np.ones(task.size - 1)
    other[: task.size // 2] = -1
    return one, other


@both
@pytest.mark.parametrize(
    ("settings", "worst"),
    [({"loss": "logistic"}, 0.6126), ({"loss": "logistic", "maximum": 4.0}, 0.6126), ({}, 1.0)],
    ids=["logistic", "weighted", "gdwd"],
)
def test_the_worst_record_uses_up_the_whole_budget(
    settings: dict[str, object], worst: float, neighbours: str
) -> None:
    """No noise is wasted. A replaced record has another of the same slope, and the other class.

    Records of odd dimension are orthogonal, so that matrices move sqrt 2 as far; gradients are
    opposite with mirrored records only, so that not all parts move as far as they could at once.
    """
    task = task_of(p=7, neighbours=neighbours, epsilon=1.0, delta=1e-6, **settings)
    one, other = corners(task)
    nobody = (np.zeros((0, 7)), np.zeros(0))
    pair = Neighbours(nobody, (one, 1.0), None, at_slope(task, worst))
    if neighbours == "replace-one":
        pair = replace(pair, two=(other, 1.0))
    shares = distances(task, pair)
    floor = 0.97
    if neighbours == "replace-one":
        # of gdwd the step is .57 of its bound where slopes are full, of logistic p (1 - p) is .95
        # |g - g'|^2 is 2 |g|^2 of 4 |g|^2 where they are orthogonal, and no class is exchanged
        assert shares["curvature"] > 0.97 * (0.9 if worst < 1 else 0.57)
        floor = 0.45
    assert floor < used_up(task, 1, shares) <= 1.0


@pytest.mark.parametrize(
    "shares",
    [
        {"gradient": 0.9, "curvature": 0.9, "middle": 0.05, "counts": 0.05},
        {"gradient": 1.0, "curvature": 0.6716, "middle": 0.05, "counts": 0.05},
    ],
)
def test_shares_that_are_too_large_are_found(
    shares: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither the check of shares nor their scale is in the way."""
    monkeypatch.setattr(task_module, "split_of", lambda *_: Split(**shares))
    monkeypatch.setattr(RenewableTask, "_spent", lambda *_: 1.0)
    task = task_of(p=3, loss="logistic")
    rng, most = np.random.default_rng(6), 0.0
    for _ in range(4):
        pair = random_pair(task, rng, start=False)
        for _ in range(20):
            pair = max(
                (leapt(task, rng, pair), pair), key=lambda p: used_up(task, 1, distances(task, p))
            )
        most = max(most, climb(task, pair, rng, 60))
    assert most > 1.05


def short_pair(task: RenewableTask) -> Neighbours:
    """Return a record of which the whole budget is used up, and one of the opposite full slope.

    Both are about as short as (1, x) can be, so that the matrices are nearly parallel.
    """
    reach = math.sqrt(task.norm_bound**2 - 1)
    one, other = 0.999 * reach, 0.99 * reach
    steep = 30 / (other - one)
    lattice = np.round(4096 * np.array([-0.458 - steep * one, steep])).astype(np.int64)
    nobody = (np.zeros((0, 1)), np.zeros(0))
    model = Model(1, lattice, (1024, 1024))
    return Neighbours(nobody, (np.array([one]), 1.0), (np.array([other]), -1.0), model)


@pytest.mark.parametrize("norm_bound", [1.02, 1.1, 1.3])
def test_short_records_that_replace_each_other_keep_the_budget(norm_bound: float) -> None:
    task = task_of(p=1, loss="logistic", neighbours="replace-one", norm_bound=norm_bound)
    assert 0.9 < used_up(task, 1, distances(task, short_pair(task))) <= 1


def test_the_distance_of_parallel_matrices_would_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short records are never far apart, but one alone is nearly as far from none."""

    def parallel(self: RenewableTask, factor: float, *rest: object) -> float:
        return sensitivity.of_curvature(self.bounds, factor, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(RenewableTask, "_of_matrix", parallel)
    task = task_of(p=1, loss="logistic", neighbours="replace-one", norm_bound=1.1)
    assert used_up(task, 1, distances(task, short_pair(task))) > 1.1


@mechanisms
def test_parts_at_the_public_start_share_the_budget(mechanism: str) -> None:
    """There a record has the slope of the start and counts once: gradient and counts alone."""
    for settings in ({}, {"split": "gradient = 0.2, curvature = 0.2, counts = 0.1"}):
        task = task_of(loss="logistic", mechanism=mechanism, **settings)
        parts = task.initial_channels.parts
        assert list(parts) == ["gradient", "counts"]
        assert used_up(task, 0, dict.fromkeys(parts, 1.0)) == pytest.approx(1, abs=1e-11)


def test_the_climb_of_a_search_goes_up() -> None:
    task = task_of(p=2, loss="logistic")
    rng = np.random.default_rng(1)
    pair = random_pair(task, rng, start=False)
    most = climbed(task, rng, pair, lambda shares: used_up(task, 1, shares), 200)
    assert used_up(task, 1, most) > used_up(task, 1, distances(task, pair))
