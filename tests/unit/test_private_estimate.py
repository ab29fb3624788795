"""The private estimate and its integer sums, beside formulas that go release by release."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.linalg import pack_upper
from pipeline.methods.renewable import estimate as private_estimate
from pipeline.methods.renewable import solution
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import estimate_private
from pipeline.methods.renewable.state import PrivateBatch, PrivateState, Shape
from pipeline.privacy import memory
from pipeline.stream.merge import estimate_of
from tests.builders import (
    folded,
    sample_log,
    task_of,
)
from tests.by_formula import by_formula

#: As the test named it made: without a middle, and noise that forgets.
PLAIN = "gradient = 0.665, curvature = 0.285, counts = 0.05"


def batch_of(
    task: RenewableTask, seed: int, epochs: list[int], start: int = 0, clients: int = 3
) -> PrivateBatch:
    """Make releases of a linear world: g = H (t - theta) + noise, in lattice integers.

    epochs: Of their models, rising.
    """
    rng, d, m = np.random.default_rng(seed), task.size, len(epochs)
    channels = task.update_channels
    assert channels.curvature is not None
    theta = np.linspace(0.5, -0.5, d)
    expansion = np.rint(4096 * (theta + rng.normal(0, 0.05, (m, d)))).astype(np.int64)
    blocks = rng.integers(1, 5, m) if task.growth.divisor else np.ones(m, dtype=np.int64)
    gradient, curvature, middle = [], [], []
    for row, times in zip(expansion, blocks, strict=True):
        half = rng.normal(0, 1, (task.slots * times, d))
        true = 0.2 * half.T @ half
        score = true @ (row / 4096 - theta) + np.sqrt(0.2) * half.T @ rng.normal(0, 1, len(half))
        score += rng.normal(0, channels.gradient.standard_deviation, d)
        gradient.append(np.rint(score / channels.gradient.unit))
        noise = rng.normal(0, channels.curvature.standard_deviation, (d, d)) / 2
        curvature.append(np.rint(pack_upper(true + noise + noise.T) / channels.curvature.unit))
        if channels.middle is not None:
            noise = rng.normal(0, channels.middle.standard_deviation, (d, d)) / 2
            middle.append(np.rint(pack_upper(true + noise + noise.T) / channels.middle.unit))
    groups = np.arange(m) % clients
    numbers, starts = np.zeros(m, dtype=np.int64), np.zeros((m, memory.EPOCHS), dtype=np.int64)
    for client in range(clients):
        chain = memory.Chain()
        for place in np.flatnonzero(groups == client):
            chain = chain.behind(task.slots * int(blocks[place]), epochs[place], None)
            if task.remembers:
                numbers[place], starts[place] = chain.number, chain.starts
    packed = d * (d + 1) // 2
    return PrivateBatch(
        counts=rng.integers(2**22, 2**23, (m + start, 2 if task.classes else 0)),
        start=rng.integers(-(2**18), 2**18, (start, task.groups * d)),
        slots=task.slots * (start + int(blocks.sum())),
        epochs=np.array(epochs, dtype=np.int64),
        expansion=expansion.reshape(m, d),
        gradient=np.array(gradient, dtype=np.int64).reshape(m, d),
        curvature=np.array(curvature, dtype=np.int64).reshape(m, packed),
        middle=np.array(middle, dtype=np.int64).reshape(m, packed if middle else 0),
        squares=np.zeros((m, 0), dtype=np.int64),
        blocks=blocks,
        numbers=numbers,
        starts=starts,
        groups=groups,
    )


def state_of(task: RenewableTask, *batches: PrivateBatch) -> PrivateState:
    state = PrivateState(Shape.of(task))
    for batch in batches:
        state.fold(batch)
    return state


def part_of(batch: PrivateBatch, places: list[int], slots: int) -> PrivateBatch:
    """Some releases of a batch that has none at the start."""
    names = (
        "counts", "epochs", "expansion", "gradient", "curvature", "middle", "squares", "blocks",
        "numbers", "starts", "groups",
    )  # fmt: skip
    taken = {name: getattr(batch, name)[places] for name in names}
    return replace(batch, **taken, slots=slots * int(batch.blocks[places].sum()))


@pytest.mark.parametrize("loss", ["logistic", "gdwd"])
@pytest.mark.parametrize("ridge", [0.0, 0.003])
@pytest.mark.parametrize(
    "settings",
    [{}, {"noise_memory": 0}, {"noise_memory": 0, "split": PLAIN}, {"growth": 0.0}],
    ids=["default", "forgets", "no middle", "fixed"],
)
def test_the_estimate_is_that_of_the_formulas(
    loss: str, ridge: float, settings: dict[str, object]
) -> None:
    task = task_of(p=3, epsilon=8.0, records=200, loss=loss, ridge=ridge, **settings)
    batch = batch_of(task, 7, sorted(e for e in range(3, 5) for _ in range(24)), start=4)
    found, wanted = estimate_private(task, state_of(task, batch)), by_formula(task, [(1.0, batch)])
    assert_allclose(found.coefficients, wanted["theta"], rtol=1e-8)
    assert found.status == "ready", found.reason
    known = ~wanted["unknown"]
    assert known.all()
    assert_allclose(found.covariance, wanted["covariance"], rtol=1e-6, atol=1e-14)
    assert_allclose(found.privacy_covariance, wanted["privacy"], rtol=1e-6, atol=1e-16)
    assert found.details.get("design_effect") == (
        wanted["effect"] and pytest.approx(wanted["effect"])
    )
    assert found.effective_records == pytest.approx(float(wanted["records"]))


def test_releases_that_never_came_count_as_noise() -> None:
    task = task_of(p=3, epsilon=8.0, records=200, loss="logistic", ridge=0.0)
    batch = batch_of(task, 7, sorted(e for e in range(5) for _ in range(9)))
    state = state_of(task, batch)
    wanted = by_formula(task, [(1.0, batch)], missing=2)
    found, whole = estimate_private(task, state, missing=2), estimate_private(task, state)
    assert_allclose(found.covariance, wanted["covariance"], rtol=1e-6, atol=1e-14)
    errors, before = found.standard_errors(), whole.standard_errors()
    assert errors is not None
    assert before is not None
    assert (errors[2] > 1.02 * before[2]).all()


def test_the_noise_since_each_epoch_is_that_of_the_releases() -> None:
    task = task_of(p=1, epsilon=8.0, records=50, loss="logistic")
    batch = batch_of(task, 2, [0, 0, 0, 1, 1, 3, 3, 3, 4], clients=2)
    state = state_of(task, batch)
    wanted = [0] * memory.EPOCHS
    for place, number in enumerate(batch.numbers.tolist()):
        more = memory.additions(number, batch.starts[place].tolist(), int(batch.epochs[place]))
        wanted = [have + one for have, one in zip(wanted, more, strict=True)]
    assert state.noise.tolist() == wanted
    assert wanted[2] == wanted[3] > wanted[4] > wanted[5] == 0
    plain = task_of(p=1, epsilon=8.0, records=50, loss="logistic", noise_memory=0)
    counted = state_of(plain, batch_of(plain, 2, [0, 0, 0, 1, 1, 3, 3, 3, 4])).noise.tolist()
    assert [count / 2**60 for count in counted[:6]] == [9, 6, 4, 4, 1, 0]


def test_differences_between_clients_are_no_spread() -> None:
    task = task_of(p=2, epsilon=8.0, records=200, loss="logistic", ridge=0.0)
    same = batch_of(task, 9, [4] * 240, clients=4)
    unit = task.update_channels.gradient.unit
    shifts = np.array([-0.3, -0.1, 0.1, 0.3])[same.groups] * task.slots * same.blocks / unit
    shifted = same.gradient + np.rint(shifts)[:, None].astype(np.int64)
    plain, apart, mixed = (
        estimate_private(task, state_of(task, replace(same, **change)))
        for change in (
            {}, {"gradient": shifted}, {"gradient": shifted, "groups": np.zeros_like(same.groups)}
        )
    )  # fmt: skip
    assert plain.details["design_effect"] == apart.details["design_effect"] == 1.0
    assert mixed.details["design_effect"] > 10


def test_records_that_go_together_are_seen_and_chance_is_not() -> None:
    """Of 40 streams of independent records two in a hundred may pass for dependent ones, or six."""
    task = task_of(p=2, epsilon=8.0, records=200, loss="logistic", ridge=0.0)
    unit, seen, chance = task.update_channels.gradient.unit, [], []
    for seed in range(40):
        batch = batch_of(task, seed, [3] * 60)
        chance.append(estimate_private(task, state_of(task, batch)).details["design_effect"])
        rng = np.random.default_rng([seed, 1])
        # what all records of a window share: five times their own variance
        size = np.sqrt(5 * 0.2 * task.slots * batch.blocks)[:, None] / unit
        shared = np.rint(size * rng.normal(0, 1, batch.gradient.shape)).astype(np.int64)
        batch = replace(batch, gradient=batch.gradient + shared)
        seen.append(estimate_private(task, state_of(task, batch)).details["design_effect"])
    assert np.mean(np.array(chance) > 1) <= 6 / 40
    assert 4.5 < np.mean(seen) < 7.5


def test_noise_in_the_middle_is_no_dependence() -> None:
    """Laplace noise leaves little of a middle: what is too small by chance says nothing."""
    task = task_of(p=3, epsilon=2.0, records=100, loss="logistic", mechanism="discrete-laplace")
    found = []
    for seed in range(40):
        batch = batch_of(task, seed, [3] * 60)
        found.append(estimate_private(task, state_of(task, batch)).details["design_effect"])
    assert np.mean(np.array(found) > 1) <= 4 / 40
    mixed = replace(batch, gradient=3 * batch.gradient)
    wanted = by_formula(task, [(1.0, mixed)])["effect"]
    assert wanted > 1
    assert estimate_private(task, state_of(task, mixed)).details["design_effect"] == (
        pytest.approx(wanted)
    )


def test_hostile_sums_never_give_numbers_that_are_none() -> None:
    task = task_of(p=2, epsilon=8.0, records=200, loss="logistic", ridge=0.0)
    batch = batch_of(task, 9, [4] * 40)
    largest = 2**41
    for change in (
        {"curvature": -abs(batch.curvature)},
        {"curvature": np.full_like(batch.curvature, largest)},
        {"curvature": np.zeros_like(batch.curvature)},
        {"middle": -abs(batch.middle)},
        {"middle": np.full_like(batch.middle, largest)},
        {"gradient": np.full_like(batch.gradient, largest)},
        {"gradient": np.zeros_like(batch.gradient), "middle": np.zeros_like(batch.middle)},
        {"expansion": np.full_like(batch.expansion, 2**24)},
    ):
        found = estimate_private(task, state_of(task, replace(batch, **change)))
        assert np.isfinite(found.coefficients).all()
        errors = found.standard_errors()
        if errors is not None:
            assert (errors[0][~np.isnan(errors[0])] >= 0).all()
            assert not np.isnan(errors[0]).all()


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


@pytest.mark.parametrize(("split", "needed"), [(None, 10), (PLAIN, 20)])
def test_few_releases_are_warming_and_have_no_interval(split: str | None, needed: int) -> None:
    task = task_of(p=3, epsilon=8.0, records=200, loss="logistic", split=split)
    few, enough = (
        estimate_private(task, state_of(task, batch_of(task, 5, [1] * count)))
        for count in (needed - 1, needed)
    )
    assert few.status == "warming"
    assert f"{needed} recent releases; {needed - 1}" in few.reason
    assert few.covariance is None
    assert few.standard_errors() is None
    assert enough.status == "ready"


def test_one_class_alone_gives_no_interval() -> None:
    task = task_of(p=3, epsilon=8.0, records=200, loss="logistic")
    batch = batch_of(task, 5, [1] * 30)
    counts = batch.counts.copy()
    counts[:, 0] = 0
    found = estimate_private(task, state_of(task, replace(batch, counts=counts)))
    assert found.status == "warming"
    assert "one class is so rare" in found.reason


def test_a_curvature_below_its_noise_is_warming_and_has_no_interval() -> None:
    task = task_of(p=5, epsilon=0.02, records=20, loss="logistic")
    found = estimate_private(task, state_of(task, batch_of(task, 6, sorted([1, 2, 3] * 30))))
    assert found.floored >= 1
    assert found.status == "warming"
    assert found.reason
    assert found.progress is not None
    assert found.progress.share < 1
    assert found.intervals(0.95) is None
    assert np.all(np.isfinite(found.coefficients))


def test_far_models_and_moving_estimates_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(p=3, epsilon=8.0, records=200, loss="logistic", ridge=0.0)
    state = state_of(task, batch_of(task, 5, [1] * 40))
    monkeypatch.setattr(solution, "MOVING", 1e-6)
    assert estimate_private(task, state).reason == private_estimate.STILL_MOVING
    monkeypatch.setattr(solution, "MOVING", 5.0)
    monkeypatch.setattr(solution, "SECOND_ORDER", 100.0)
    assert estimate_private(task, state).reason == private_estimate.FAR


def test_releases_at_far_models_are_left_out_once_nearer_ones_are_there() -> None:
    task = task_of(p=2, epsilon=8.0, records=200, loss="logistic", ridge=0.0)
    batch = batch_of(task, 3, [0] * 20 + [2] * 40)
    near = part_of(batch, list(range(20, 60)), task.slots)
    far = batch.expansion.copy()
    far[:20] += 8192
    alone, left = (
        estimate_private(task, state_of(task, one)) for one in (near, replace(batch, expansion=far))
    )
    held = estimate_private(task, state_of(task, batch))
    assert left.coefficients.tobytes() == alone.coefficients.tobytes()
    assert held.coefficients.tobytes() != alone.coefficients.tobytes()


def test_before_the_first_model_all_slots_count() -> None:
    task = task_of(p=2, records=30)
    found = estimate_of(task, [folded(task, sample_log(task, releases=3, clients=3))])
    assert (found.status, found.records, found.effective_records) == ("starting", 90, 90.0)
