"""One class is rare and nobody weighs it: a levelled curvature is too large for most records."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.doctor.streams import _Releases, simulated
from pipeline.library.checking import check_study
from pipeline.library.planning import proposed
from pipeline.methods import method_of, task_of
from pipeline.methods.renewable import private_estimate, solution
from pipeline.methods.renewable.classes import NARROW, is_too_wide, rarer_weight
from pipeline.methods.renewable.private_estimate import STILL_MOVING, estimate_private
from pipeline.methods.renewable.private_state import PrivateState
from pipeline.methods.renewable.solution import Solution, solve
from pipeline.methods.renewable.task import RenewableTask
from pipeline.study import Study, parse_study, with_keys
from tests.builders import study_text

CLIENTS, RELEASES = 4, 80


def study_with(loss: str = "gdwd", width: float | None = 1.0, *, weighed: bool = False) -> Study:
    study = parse_study(study_text(loss=loss, p=2, epsilon=2.0, records=250))
    changes: dict[str, object] = {}
    if width is not None:
        changes["estimator.method"] = {"secant_width": width}
    if weighed:
        changes["estimator.class_weights"] = {"maximum": 8.0}
    return with_keys(study, changes, name="the study")


def stream_of(study: Study, share: float, seed: int, releases: int = RELEASES) -> _Releases:
    """Run a stream in which one of the classes has about this share."""
    task = simulated(study)
    rng, run = np.random.default_rng(seed), _Releases(task, 5, seed)
    for _ in range(releases // CLIENTS):
        features = rng.uniform(-1, 1, (CLIENTS * task.slots, 2))
        chances = share * np.exp(0.4 * features @ np.array([1.0, -1.0]))
        classes = np.where(rng.random(len(features)) < chances, 1.0, -1.0)
        run.fold(features, classes, CLIENTS)
        run.publish()
    return run


def task_for(study: Study) -> RenewableTask:
    task = task_of(study)
    assert isinstance(task, RenewableTask)
    return task


@pytest.mark.parametrize(
    ("study", "share", "given"),
    [
        (study_with(width=1.0), 0.1, False),
        (study_with(width=1.0), 0.4, True),
        (study_with(width=0.5), 0.1, True),
        (study_with(width=1.0, weighed=True), 0.1, True),
        (study_with("logistic", None), 0.1, True),
    ],
    ids=["wide", "even", "narrow", "weighed", "logistic"],
)
def test_a_widely_levelled_curvature_gives_no_intervals_for_a_rare_class_that_nobody_weighs(
    study: Study, share: float, given: bool
) -> None:
    found = stream_of(study, share, 1).estimate()
    refused = "levelled too widely" in found.reason
    assert refused != given
    if refused:
        assert found.standard_errors() is None
        assert found.status == "warming"
        for way in ("class_weights", f"secant_width = {NARROW:g}", 'loss = "logistic"'):
            assert way in found.reason
        assert found.progress is not None
        assert found.progress.records is None


def test_the_weight_of_the_rarer_class_is_that_after_weighing() -> None:
    plain, weighed = task_for(study_with()), task_for(study_with(weighed=True))
    assert rarer_weight(plain, np.array([900.0, 100.0])) == pytest.approx(0.1)
    assert rarer_weight(plain, np.array([100.0, 900.0])) == pytest.approx(0.1)
    assert rarer_weight(weighed, np.array([900.0, 100.0])) == pytest.approx(0.5)
    # a weight of at most 8 is not enough: 8 * .01 beside .99 / 1.98
    assert rarer_weight(weighed, np.array([990.0, 10.0])) == pytest.approx(0.08 / 0.58)
    # noise has taken the counts below 0
    assert rarer_weight(plain, np.array([900.0, -3.0])) == 0.0
    assert rarer_weight(plain, np.array([-2.0, -3.0])) == 0.5


@pytest.mark.parametrize("typical", [0.1, 0.9])
def test_a_design_levels_no_wider_than_a_rare_class_allows(typical: float) -> None:
    study = with_keys(study_with(width=None), {"data.response.typical": typical}, name="rare")
    found = proposed(study, 40_000, CLIENTS)
    changes = found.own.design.changes
    assert changes["estimator.method"] == {"secant_width": NARROW}
    assert "secant_width" in found.own.design.reasons["estimator.method"]
    assert found.own.outlook.usual <= 40_000
    even = with_keys(study, {"data.response.typical": 0.4}, name="even")
    assert "less than" not in proposed(even, 40_000, CLIENTS).own.design.reasons.get(
        "estimator.method", ""
    )


def test_a_check_says_that_no_intervals_come_and_what_to_do() -> None:
    study = with_keys(study_with(width=2.0), {"data.response.typical": 0.1}, name="rare")
    found = check_study(study)["intervals"]
    assert isinstance(found, dict)
    assert found["come"] == "not with these settings"
    assert "secant_width = 0.5" in found["but"]
    narrow = with_keys(study, {"estimator.method": {"secant_width": 0.5}}, name="narrow")
    assert method_of(narrow).outlook(task_of(narrow), 10_000).usual < 10_000
    assert not is_too_wide(task_for(narrow), 0.1)


def states_of(run: _Releases) -> list[tuple[float, PrivateState]]:
    return [(1.0, state) for part in run._run.partitions for state in part.sums.states.values()]


def solution_of(study: Study, share: float) -> Solution:
    return solve(task_for(study), states_of(stream_of(study, share, 3)))


def test_what_a_step_may_miss_counts_where_classes_are_uneven_and_the_curvature_is_levelled() -> (
    None
):
    """As much as the step itself, less what chance makes of it."""
    plain, uneven = (solution_of(study_with(width=0.5), share) for share in (0.45, 0.1))
    assert (plain.may_miss, uneven.may_miss) == (False, True)
    assert not solution_of(study_with("logistic", None), 0.1).may_miss
    variance = 1e-12 * np.eye(3)
    curvature = uneven.bread.curvature
    way = float(uneven.step @ curvature @ uneven.step) / curvature[0, 0]
    counted = uneven.error(variance) - replace(uneven, may_miss=False).error(variance)
    assert counted == pytest.approx(4 * way, rel=1e-6)
    # a step that is all chance misses nothing
    large = np.eye(3)
    assert uneven.error(large) == replace(uneven, may_miss=False).error(large)


def test_an_estimate_that_leaves_its_models_behind_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_with(width=0.5)
    run = stream_of(study, 0.45, 4)
    assert run.estimate().status == "ready"
    monkeypatch.setattr(private_estimate, "is_far", lambda *_: False)
    monkeypatch.setattr(solution, "MOVING", 1e-3)
    found = estimate_private(task_for(study), states_of(run))
    assert (found.status, found.reason) == ("warming", STILL_MOVING)
    assert found.standard_errors() is None


def test_a_variance_that_somebody_forged_below_zero_is_no_reason_to_stand_still() -> None:
    uneven = solution_of(study_with(width=0.5), 0.2)
    assert uneven.is_moving(np.array([-1e-9, math.inf, math.inf]))
    assert not uneven.is_moving(np.full(3, math.inf))
