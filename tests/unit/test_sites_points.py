"""Sites that say false points or versions hold nothing back, and leave nobody alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.sites_coverage import Cell
from pipeline.estimators.estimate import Estimate
from pipeline.linalg import packed_indices
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.privacy.memory import EPOCHS, epoch_of
from pipeline.release.model import COEFFICIENT_EXPONENT
from pipeline.release.task import form_of
from pipeline.stream.in_process import OfflineRun
from tests.sites import name_of, task_of

CELL = Cell("logistic", 3000, 8, 8.0, rounds=3)


def moved(task: SiteTask, payload: bytes, shift: float) -> bytes:
    """Return a release at a false point, whose linearised score is that of the true one."""
    row, size = np.frombuffer(payload, form_of(task).dtype).copy(), task.size
    channels, sums = task.update_channels, row["sums"][0]
    packed = sums[size : size + size * (size + 1) // 2] * channels.curvature.unit
    way = np.append(shift, np.zeros(size - 1))
    gradient = sums[:size] * channels.gradient.unit + packed[packed_indices(size)] @ way
    limit = task.layout.later[0].largest
    sums[:size] = np.clip(np.round(gradient / channels.gradient.unit), -limit, limit)
    row["point"][0] += np.round(way / math.ldexp(1.0, COEFFICIENT_EXPONENT)).astype(np.int64)
    return row.tobytes()


def versioned(task: SiteTask, payload: bytes, version: int) -> bytes:
    """Return a release that says another model's version, and what that had seen."""
    row = np.frombuffer(payload, form_of(task).dtype).copy()
    row["version"] = version
    if task.growth.divisor:
        row["model_watermark"] = seen = version * CELL.sites * task.slots
        begun = np.arange(EPOCHS) <= epoch_of(seen, task.slots)
        row["starts"] = np.where(begun, np.maximum(row["starts"], 1), 0)
    return row.tobytes()


def told(seed: int, shift: float = 0.0, *, first: int = 0, grows: bool = False) -> list[Estimate]:
    """Return the estimates of a stream after each round; site 0 forges.

    shift: Of its points, at models.
    first: The first of five versions that it says after the second round, in as many epochs.
    """
    cell = replace(CELL, grows=grows)
    task, rng = task_of(cell.text(seed)), np.random.default_rng(seed)
    run, found = OfflineRun(task), []
    for number in range(CELL.rounds):
        for site in range(CELL.sites):
            payload = run.release(f"site-{site}", CELL.window(rng), run.model)
            if shift and number and not site:
                payload = moved(task, payload, shift)
            run.fold(f"site-{site}", payload)
        for double in range(5 if first and number == 1 else 0):
            again = run.release("site-0", CELL.window(rng), run.model)
            run.fold("site-0", versioned(task, again, first << double))
        found.append(run.estimate(0.0)[0])
        run.move()
    return found


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("shift", [0.5, 3.0, 1000.0])
def test_a_false_point_that_fits_its_score_keeps_no_interval_away(
    shift: float, grows: bool
) -> None:
    honest, found = (told(5, false, grows=grows)[-1] for false in (0.0, shift))
    # they came never, or without end
    assert (honest.status, found.status) == ("ready", "ready")
    assert (honest.details["misplaced"], found.details["misplaced"]) == ([], [name_of(0)])
    assert found.details["flagged"] == [name_of(0)]
    errors, wider = honest.standard_errors(), found.standard_errors()
    assert errors is not None
    assert wider is not None
    assert np.all(wider[0] < 1.2 * errors[0])
    assert np.all(np.abs(found.coefficients - honest.coefficients) < 2 * errors[0])


def test_a_reason_names_the_site_whose_points_are_no_models() -> None:
    found = told(5, 3.0)[1]
    assert found.status == "warming"
    assert name_of(0) in found.reason
    assert name_of(1) not in found.reason


@pytest.mark.parametrize("grows", [False, True])
def test_versions_that_no_other_site_knows_push_nobody_out(grows: bool) -> None:
    found = told(5, first=2**30, grows=grows)
    assert [estimate.details["count"] for estimate in found] == [CELL.sites] * CELL.rounds
    assert found[-1].status == "ready"
    assert found[-1].details["dropped_count"] == 0


@pytest.mark.parametrize("grows", [False, True])
def test_a_site_that_sends_more_than_all_others_does_not_end_the_start_alone(grows: bool) -> None:
    rng, run = np.random.default_rng(1), OfflineRun(replace(CELL, grows=grows).task(1))
    for site in range(CELL.sites):
        run.fold(f"site-{site}", run.release(f"site-{site}", CELL.window(rng), run.model))
    run.move()
    for _ in range(CELL.sites + 1):
        run.fold("site-0", run.release("site-0", CELL.window(rng), run.model))
    found, _ = run.estimate(0.0)
    assert (found.status, found.details["count"]) == ("warming", CELL.sites)
    assert f"1 of {CELL.sites} sites" in found.reason


def test_a_site_that_answers_an_old_model_only_keeps_no_interval_away() -> None:
    rng, run = np.random.default_rng(2), OfflineRun(CELL.task(2))
    models = []
    for _ in range(CELL.rounds):
        models.append(run.model)
        for site in range(CELL.sites):
            model = run.model if site else models[min(1, len(models) - 1)]
            run.fold(f"site-{site}", run.release(f"site-{site}", CELL.window(rng), model))
        found, _ = run.estimate(0.0)
        run.move()
    assert (found.status, found.details["dropped"]) == ("ready", [name_of(0)])


@pytest.mark.takes("sites of different pace, over many models")
def test_honest_sites_of_different_pace_are_not_misplaced() -> None:
    cell, found = Cell("logistic", 1500, 8, 8.0, every=3), list[str]()
    for seed in range(3):
        rng, run = np.random.default_rng([7, seed]), OfflineRun(cell.task(seed))
        for _ in range(8):
            for site in range(cell.sites):
                for _ in range(rng.poisson(1.0)):
                    payload = run.release(f"site-{site}", cell.window(rng), run.model)
                    run.fold(f"site-{site}", payload)
                    if run.waiting >= cell.every:
                        run.move()
            found += run.estimate(0.0)[0].details["misplaced"]
    assert found == []
