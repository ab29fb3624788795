"""A step may be too short: it was cut, or made with more curvature than is certain."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from scipy.special import expit

from pipeline.doctor.streams import _Releases, simulated
from pipeline.methods.renewable import solution
from pipeline.methods.renewable.bread import bread_of
from pipeline.methods.renewable.precision import READY, noise_of
from pipeline.methods.renewable.private_estimate import STILL_MOVING, estimate_private
from pipeline.methods.renewable.private_state import PrivateState
from pipeline.methods.renewable.solution import LONGEST_STEP, SHORT, solve
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study import parse_study, with_keys
from pipeline.types import Matrix, Vector
from tests.builders import study_text

CLIENTS, FEATURES = 8, 5


def task_for() -> RenewableTask:
    study = parse_study(study_text(loss="logistic", p=FEATURES, epsilon=1.0, records=250))
    task = simulated(with_keys(study, {"estimator.ridge": 0.012}, name="the study"))
    assert isinstance(task, RenewableTask)
    return task


def records(rng: np.random.Generator, count: int) -> tuple[Matrix, Vector]:
    """Draw a feature that stays near one end of its range, and says nearly all of the class."""
    x = rng.uniform(-1, 1, (count, FEATURES))
    x[:, 0] = np.clip(-1 + 0.25 * np.exp(0.5 * rng.normal(size=count)), -1, 1)
    odds = 15 + 20 * x[:, 0] + 0.3 * x[:, 1]
    return x, np.where(rng.random(count) < expit(odds), 1.0, -1.0)


def stream_of(rounds: int) -> tuple[RenewableTask, PrivateState]:
    """Return what some rounds of records have left in the sums."""
    task, rng = task_for(), np.random.default_rng(200)
    run = _Releases(task, 5, 200)
    for _ in range(rounds):
        run.fold(*records(rng, CLIENTS * task.slots), CLIENTS)
        run.publish()
    sums = run._run.partitions[0].sums.states[0]
    assert isinstance(sums, PrivateState)
    return task, sums


def test_there_are_no_intervals_while_the_step_is_too_short() -> None:
    task, sums = stream_of(14)
    with mock.patch.object(solution, "SHORT", math.inf):
        without = estimate_private(task, sums)
    assert without.status == "ready"
    with mock.patch.object(solution, "SHORT", 1e-3):
        found = estimate_private(task, sums)
    assert (found.status, found.reason) == ("warming", STILL_MOVING)
    assert found.standard_errors() is None
    assert found.progress is not None
    assert 0 < found.progress.share < 1


def test_a_step_is_as_long_as_what_is_certain_lets_it_be() -> None:
    task = task_for()
    noise, releases = noise_of(task), 400.0
    size, penalty = noise.of_curvature(releases), np.zeros(task.size)
    values = np.array([0.2, 2.0, 3.0, 5.0, 8.0, 12.0]) * size
    axes = np.linalg.qr(np.random.default_rng(1).normal(size=(task.size, task.size)))[0]
    bread = bread_of(axes @ np.diag(values) @ axes.T, releases, penalty, noise, noisy=False)
    known = values - size >= READY * size
    assert 0 < known.sum() < task.size
    step = np.random.default_rng(2).normal(size=task.size)
    own = axes.T @ step
    wanted = np.where(known, own * values / np.where(known, values - size, 1.0), own)
    assert axes.T @ bread.longest(step) == pytest.approx(wanted)


def test_what_was_cut_off_a_step_is_missing() -> None:
    task, sums = stream_of(2)
    found = solve(task, [(1.0, sums)])
    taken = found.moments.expansion / found.moments.slots - found.coefficients
    # the first models of such a stream go as far as they may
    assert task.norm_bound * np.linalg.norm(taken) == pytest.approx(LONGEST_STEP)
    assert np.linalg.norm(found.step) > 1.2 * np.linalg.norm(taken)
    assert found.missing == pytest.approx(found.bread.longest(found.step) - taken)


def test_steps_that_may_be_too_short_by_more_than_chance_are_on_their_way() -> None:
    task, sums = stream_of(2)
    found = solve(task, [(1.0, sums)])
    variances = np.diag(found.variance(found.spread))
    step = np.sqrt(2 * variances)
    known, hidden = (
        replace(found, step=step, bread=replace(found.bread, loadings=np.full(task.size, share)))
        for share in (0.0, 1.0)
    )
    for part, moving in ((0.9, False), (1.1, True)):
        missing = np.zeros(task.size)
        missing[2] = part * SHORT * variances[2] / step[2]
        assert replace(known, missing=missing).is_moving(variances) == moving
        # of one that has no interval, nothing is said
        assert not replace(hidden, missing=missing).is_moving(variances)
    # what goes against the step is no way that is left
    assert not replace(known, missing=-9 * step).is_moving(variances)
