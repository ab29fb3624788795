from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.linalg import pack_upper
from pipeline.methods.renewable import private_estimate, solution
from pipeline.methods.renewable.private_estimate import estimate_private
from pipeline.methods.renewable.private_state import (
    PrivateBatch,
    PrivateState,
    Shape,
    epochs_by_version,
)
from pipeline.methods.renewable.solution import Solution
from pipeline.reducer import differences, estimate_of
from pipeline.release.task import Task
from tests.builders import (
    SeededStream,
    folded,
    population_target,
    sample_log,
    task_of,
    whole_stream,
)
from tests.by_formula import by_formula


@pytest.fixture(autouse=True)
def linear_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases here are made by a linear score: no distance is too far for it, and no step."""
    monkeypatch.setattr(private_estimate, "is_far", lambda *_: False)
    for limit in ("MOVING", "SHORT"):
        monkeypatch.setattr(solution, limit, math.inf)


def batch_of(task: Task, seed: int, versions: list[int], start: int = 0) -> PrivateBatch:
    """Make releases of a linear world: g = H (t - theta) + noise, in lattice integers."""
    rng = np.random.default_rng(seed)
    d, m = task.size, len(versions)
    assert task.update_channels.curvature is not None
    theta = np.linspace(0.5, -0.5, d)
    expansion = np.rint(4096 * rng.normal(0, 0.2, (m, d))).astype(np.int64)
    gradient, curvature = [], []
    for row in expansion:
        half = rng.normal(0, 1, (task.slots, d))
        true = 0.2 * half.T @ half
        score = true @ (row / 4096 - theta) + rng.normal(0, 3, d)
        gradient.append(np.rint(score / task.update_channels.gradient.unit))
        noise = rng.normal(0, task.update_channels.curvature.standard_deviation, (d, d)) / 2
        curvature.append(
            np.rint(pack_upper(true + noise + noise.T) / task.update_channels.curvature.unit)
        )
    packed = d * (d + 1) // 2
    return PrivateBatch(
        counts=rng.integers(0, 2**20, (m + start, 2)),
        start=rng.integers(-(2**18), 2**18, (start, 2 * d)),
        versions=np.array(versions, dtype=np.int64),
        expansion=expansion.reshape(m, d),
        gradient=np.array(gradient, dtype=np.int64).reshape(m, d),
        curvature=np.array(curvature, dtype=np.int64).reshape(m, packed),
        squares=np.zeros((m, 0), dtype=np.int64),
        slots=task.slots,
        groups=np.zeros(m, dtype=np.int64),
    )


def state_of(task: Task, *batches: PrivateBatch) -> PrivateState:
    state = PrivateState(Shape.of(task))
    for batch in batches:
        state.fold(batch)
    return state


@pytest.mark.parametrize("top", [44, 80, 150])
def test_the_estimate_is_that_of_the_spec(top: int) -> None:
    task = task_of(p=3, epsilon=8.0, records=200)
    batch = batch_of(task, top, [v for v in range(1, top) for _ in range(2)], start=4)
    found, wanted = estimate_private(task, state_of(task, batch)), by_formula(task, [(1.0, batch)])
    assert_allclose(found.coefficients, wanted["theta"], rtol=1e-8)
    assert found.status == "ready"
    assert_allclose(found.covariance, wanted["covariance"], rtol=1e-6, atol=1e-14)
    assert_allclose(found.privacy_covariance, wanted["privacy"], rtol=1e-8, atol=1e-16)


def test_standard_errors_are_those_of_the_formula_and_no_total_is_below_its_privacy_part() -> None:
    task = task_of(p=3, epsilon=8.0, records=200)
    batch = batch_of(task, 1, [v for v in range(1, 40) for _ in range(3)])
    errors = estimate_private(task, state_of(task, batch)).standard_errors()
    assert errors is not None
    wanted = by_formula(task, [(1.0, batch)])
    assert_allclose(errors[2], np.sqrt(np.diag(wanted["privacy"])), rtol=1e-8)
    assert np.all(errors[0] >= errors[2])
    assert_allclose(errors[0] ** 2, errors[1] ** 2 + errors[2] ** 2)


def test_the_estimate_is_a_function_of_the_sums_alone() -> None:
    task = task_of(p=3, epsilon=8.0, records=200)
    batch = batch_of(task, 2, list(range(1, 60)), start=3)
    one = estimate_private(task, state_of(task, batch))
    again = PrivateState.decode(Shape.of(task), state_of(task, batch).encode())
    two = estimate_private(task, again)
    assert one.coefficients.tobytes() == two.coefficients.tobytes()
    assert one.covariance is not None
    assert two.covariance is not None
    assert one.covariance.tobytes() == two.covariance.tobytes()


def test_epochs_double() -> None:
    versions = [1, 2, 3, 4, 7, 8, 2**52 - 1, 2**52, 2**53 - 1]
    assert epochs_by_version(np.array(versions)).tolist() == [0, 1, 1, 2, 2, 3, 51, 52, 52]
    task = task_of(p=1)
    state = state_of(task, batch_of(task, 0, versions))
    assert {e: int(sums[state.gram_length - 1]) for e, sums in state.epochs.items()} == {
        0: 1, 1: 2, 2: 2, 3: 1, 51: 1, 52: 2,
    }  # fmt: skip


def test_old_epochs_leave_gradient_and_curvature() -> None:
    task = task_of(p=2, epsilon=8.0, records=200)
    old = batch_of(task, 3, [1] * 30)
    new = batch_of(task, 4, [16, 33, 70] * 20)
    found = estimate_private(task, state_of(task, old, new))
    alone = estimate_private(task, state_of(task, new))
    assert found.releases == alone.releases + 30
    assert found.privacy_covariance is not None
    assert alone.privacy_covariance is not None
    assert found.coefficients.tobytes() == alone.coefficients.tobytes()
    assert found.privacy_covariance.tobytes() == alone.privacy_covariance.tobytes()


def test_differences_between_clients_are_no_spread() -> None:
    task = task_of(p=2, epsilon=8.0, records=200)
    same = batch_of(task, 9, [4] * 240)
    groups = np.arange(240) % 4
    shifts = np.rint(np.array([-300.0, -100.0, 100.0, 300.0]) / task.update_channels.gradient.unit)
    shifted = same.gradient + shifts[groups][:, None].astype(np.int64)
    plain, apart, mixed = (
        estimate_private(task, state_of(task, replace(same, **change)))
        for change in ({}, {"gradient": shifted, "groups": groups}, {"gradient": shifted})
    )
    errors = [e.standard_errors() for e in (plain, apart, mixed)]
    assert all(found is not None for found in errors)
    assert_allclose(errors[1][0], errors[0][0], rtol=0.05)  # type: ignore[index]
    assert np.all(errors[2][0] > 3 * errors[0][0])  # type: ignore[index]


def test_nothing_and_start_releases_alone_have_a_status_of_their_own() -> None:
    task = task_of(p=2)
    empty = estimate_private(task, PrivateState(Shape.of(task)))
    assert (empty.status, empty.releases, empty.coefficients.tolist()) == ("empty", 0, [0, 0, 0])
    started = estimate_of(task, [folded(task, sample_log(task, releases=6))])
    assert started.status == "starting"
    assert started.releases == 6
    assert np.all(np.isfinite(started.coefficients))
    assert started.intervals(0.95) is None


def test_the_first_step_goes_from_zero_towards_the_difference_of_the_classes() -> None:
    task = task_of(p=2, epsilon=10.0, records=5000, maximum=8.0)
    found = estimate_of(task, [folded(task, sample_log(task, releases=6, clients=3))])
    assert found.coefficients[1] > 0.3
    assert found.coefficients[2] < -0.2


def test_few_releases_are_warming_and_have_no_interval() -> None:
    task = task_of(p=3, epsilon=8.0, records=200)
    few = estimate_private(task, state_of(task, batch_of(task, 5, [1] * 19)))
    assert few.status == "warming"
    assert "20 recent releases; 19" in few.reason
    assert few.covariance is None
    assert few.standard_errors() is None
    enough = estimate_private(task, state_of(task, batch_of(task, 5, [1] * 20)))
    assert enough.status == "ready"


def test_a_curvature_below_its_noise_is_warming_and_says_what_helps() -> None:
    task = task_of(p=5, epsilon=0.2, records=20)
    found = estimate_private(task, state_of(task, batch_of(task, 6, [1, 2, 3] * 30)))
    assert found.floored == task.size
    assert found.status == "warming"
    assert found.reason.startswith("no interval for any coefficient: ")
    for word in ("more records", "estimator.ridge = ", "privacy.epsilon = "):
        assert word in found.reason
    assert found.progress is not None
    assert found.progress.share < 1
    assert found.progress.records is not None
    assert found.intervals(0.95) is None
    assert np.all(np.isfinite(found.coefficients))


def test_a_private_stream_ends_near_the_truth() -> None:
    task = task_of(p=3, epsilon=4.0, records=200, ridge=0.01)
    found = estimate_of(task, [whole_stream(task, seed=1, rounds=24, clients=10)])
    target = population_target(3, q=1.0, ridge=0.01)
    assert found.status == "ready"
    errors = found.standard_errors()
    assert errors is not None
    assert np.all(np.abs(found.coefficients - target) < 5 * errors[0])
    assert np.all(errors[0] < 0.3)


def test_the_seeded_stream_makes_a_stream_reproducible() -> None:
    task = task_of(p=2, epsilon=4.0, records=50)
    one, two = (whole_stream(task, seed=3, rounds=3, clients=2) for _ in range(2))
    assert differences(one, two) == []
    assert SeededStream(1).uint64(3).tolist() == SeededStream(1).uint64(3).tolist()


def test_releases_at_far_models_are_left_out_once_nearer_ones_are_there() -> None:
    task = task_of(p=2, epsilon=8.0, records=200)
    theta = np.rint(4096 * np.linspace(0.5, -0.5, task.size)).astype(np.int64)
    near = batch_of(task, 3, [2, 3] * 20)
    near = replace(near, expansion=theta + np.rint(near.expansion / 100).astype(np.int64))
    far = replace(batch_of(task, 4, [1] * 20), expansion=np.tile(theta + 8192, (20, 1)))
    close = replace(far, expansion=np.tile(theta, (20, 1)))
    alone, left, held = (
        estimate_private(task, state_of(task, *batches))
        for batches in ((near,), (far, near), (close, near))
    )
    assert left.coefficients.tobytes() == alone.coefficients.tobytes()
    assert held.coefficients.tobytes() != alone.coefficients.tobytes()


def test_half_of_how_curvature_goes_with_models_is_taken_off_and_half_may_be_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A third of the releases, at models delta away, has 4 H and the others H.

    The mean is 2 H, and scores pull (4 / 3 * 2 / 3 - 2 / 3 * 1 / 3) H delta: delta / 3 too far.
    """
    monkeypatch.setattr(solution, "SECOND_ORDER", 0.0)
    task = task_of(p=2, epsilon=8.0, records=200)
    late, early = batch_of(task, 3, [2, 3] * 20), batch_of(task, 4, [1] * 20)
    points = np.rint(late.expansion / 100).astype(np.int64)
    late = replace(late, expansion=points)
    early = replace(early, expansion=points[:20] + 400)

    def solved(part: PrivateBatch) -> Solution:
        return solution.solve_over(task, [(1.0, state_of(task, part, late))], 2)

    alike, other = solved(early), solved(replace(early, curvature=4 * early.curvature))
    assert_allclose(other.bent, math.sqrt(3) * 400 / 4096 / 6, rtol=0.15)
    assert alike.bent < 0.01
    monkeypatch.setattr(solution, "TRAPEZOID", 0.0)
    plain = solved(replace(early, curvature=4 * early.curvature))
    assert_allclose(plain.coefficients - other.coefficients, -400 / 4096 / 6, rtol=0.2)


def test_where_curvature_does_not_go_with_models_nothing_is_taken_off_or_charged() -> None:
    task = task_of(p=2, epsilon=8.0, records=200)
    batch = batch_of(task, 3, [1] * 60)
    same = np.tile(batch.curvature[0], (60, 1))
    along = np.rint(same * (1 + 2 * batch.expansion[:, :1] / 4096)).astype(np.int64)
    other, alike = (
        solution.solve_over(task, [(1.0, state_of(task, replace(batch, curvature=part)))], 1)
        for part in (along, same)
    )
    assert np.any(other.unlike)
    assert not np.any(alike.unlike)
    assert task.update_channels.curvature is not None
    variance = 60 * task.update_channels.curvature.standard_deviation**2
    step = np.outer(alike.step, alike.step)
    assert_allclose(alike.turned, variance / 2 * (np.trace(step) * np.eye(task.size) + step))


def test_the_scatter_of_models_bends_an_estimate_only_where_it_is_far_from_their_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = task_of(p=2, epsilon=8.0, records=200)
    batch = batch_of(task, 3, [1] * 60)
    parts = [(1.0, state_of(task, batch))]
    near = solution.solve_over(task, parts, 1)
    monkeypatch.setattr(solution, "MOVING", 0.0)
    far = solution.solve_over(task, parts, 1)
    curvature, points = near.bread.curvature, batch.expansion / 4096
    off = points - points.mean(axis=0)
    scatter = np.mean(np.vecdot(off @ curvature, off)) / curvature[0, 0]
    assert_allclose(far.bent - near.bent, scatter / 2)


def test_a_score_whose_curvature_changes_evenly_is_followed_to_its_zero() -> None:
    """Scores of a parabola's slope: the mean curvature misses the zero, half of each does not.

    With one feature s(t) = a t + b t^2 in both directions, and models evenly about the zero.
    """
    task = task_of(p=1, epsilon=8.0, records=200, ridge=0.0)
    part, curved = task.update_channels.gradient, task.update_channels.curvature
    assert curved is not None
    plain = batch_of(task, 5, [1] * 60)
    t = np.tile(np.linspace(-0.5, 0.5, 60)[:, None], (1, 2))
    slope, bend = 0.2 * t + 0.15 * t**2, 0.2 + 0.3 * t
    packed = np.stack([bend[:, 0], np.zeros(60), bend[:, 1]], axis=1)
    batch = replace(
        plain,
        expansion=np.rint(4096 * t).astype(np.int64),
        gradient=np.rint(slope * task.slots / part.unit).astype(np.int64),
        curvature=np.rint(packed * task.slots / curved.unit).astype(np.int64),
    )
    found = solution.solve_over(task, [(1.0, state_of(task, batch))], 1)
    assert np.all(np.abs(found.coefficients) < 2e-3)
