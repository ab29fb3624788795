"""Intervals of rare levels that a ridge holds back, with and without what it adds to residuals."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from scipy.special import expit

from pipeline.methods.noisy_mle import estimate as solving
from pipeline.records.blocks import with_intercept
from pipeline.records.encoder import Arrays
from pipeline.stream.in_process import OfflineRun
from pipeline.types import Matrix, Vector
from tests.sites import study_text, task_of

STREAMS, ROUNDS, SITES, RECORDS, RIDGE = 100, 7, 8, 4000, 0.01
DECLARED = ["a = { min = -1, max = 1 }", 'c = { kind = "category", levels = ["s", "t", "u"] }']
#: One class is rare, and so are two of three levels.
TRUTH, SHARES = np.array([-3.0, 0.5, 1.5, 1.0]), [0.9, 0.05, 0.05]


def text(seed: int) -> str:
    return study_text(
        loss="logistic", ridge=RIDGE, declared=DECLARED, records=RECORDS, epsilon=8.0, seed=seed,
        releases=SITES, mechanism="insecure-simulation", norm_bound="typical",
    )  # fmt: skip


def window(rng: np.random.Generator, records: int = RECORDS) -> Arrays:
    level = rng.choice(3, records, p=SHARES)
    features = np.column_stack([rng.uniform(-1, 1, records), level == 1, level == 2]).astype(float)
    chance = expit(TRUTH[0] + features @ TRUTH[1:])
    return Arrays(features, np.where(rng.random(records) < chance, 1.0, -1.0))


def penalised() -> Vector:
    """Return what estimates with a ridge aim at, shape (4,)."""
    design: Matrix = with_intercept(window(np.random.default_rng(0), 400_000).features)
    weights = np.broadcast_to(task_of(text(1)).record_weights(design), len(design))
    penalty, chance, found = RIDGE * np.array([0.0, 1, 1, 1]), expit(design @ TRUTH), np.zeros(4)
    for _ in range(30):
        said = expit(design @ found)
        bread = (design.T * (weights * said * (1 - said))) @ design / len(design)
        score = design.T @ (weights * (chance - said)) / len(design) - penalty * found
        found = found + np.linalg.solve(bread + np.diag(penalty), score)
    return found


@pytest.mark.slow
def test_intervals_of_a_rare_level_are_long_enough_with_a_ridge() -> None:
    aim, held = penalised(), {True: list[Vector](), False: list[Vector]()}
    for seed in range(STREAMS):
        run, rng = OfflineRun(task_of(text(seed))), np.random.default_rng([3, seed])
        for number in range(ROUNDS):
            for site in range(SITES):
                run.fold(f"site-{site}", run.release(f"site-{site}", window(rng), run.model))
            estimate, _ = run.estimate(0.0)
            if number < ROUNDS - 1:
                run.move()
        with mock.patch.object(solving, "held_back", return_value=np.zeros((4, 4))):
            without, _ = run.estimate(0.0)
        for longer, one in ((True, estimate), (False, without)):
            if one.covariance is not None:
                errors = (one.coefficients - aim) / np.sqrt(np.diag(one.covariance))
                held[longer].append(np.abs(errors) <= 1.96)
    now, before = (np.mean(held[longer], axis=0) for longer in (True, False))
    print(f"with {now.round(3)}, without {before.round(3)}, of {len(held[True])} streams")
    assert len(held[True]) > 0.9 * STREAMS
    # three Monte Carlo errors of a share of 100 streams, and of the mean of four
    assert np.all(now >= 0.93 - 0.075)
    assert 0.93 - 0.04 <= now.mean() <= 0.975 + 0.03
    # the steeper level
    assert before[2] < 0.92 < now[2] + 0.03
