"""What streams are expected to give: closed forms in limits, and streams of the product."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest

from pipeline.estimators.population import Population, even_points
from pipeline.methods import method_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.expected import Windows, expect, noise_size, reference_of, stages
from pipeline.methods.renewable.solution import noise_of
from pipeline.privacy import memory
from pipeline.simulate.coverage import Releases, simulated
from pipeline.study_file.load import parse_study
from tests.builders import study_text, task_of


@pytest.mark.parametrize("clients", [1, 7])
def test_noise_of_whole_windows_is_that_of_the_chains(clients: int) -> None:
    task = task_of(loss="logistic", records=100)
    windows = Windows(task, clients)
    ends = clients * np.cumsum([0, *islice(task.growth.schedule(10**9), 60)])
    for first, last in ((0, 1), (0, 40), (25, 60)):
        found = windows.noise(float(ends[first]), float(ends[last]))
        assert found == pytest.approx(clients * memory.variance_between(first + 1, last))
        assert windows.releases(float(ends[first]), float(ends[last])) == pytest.approx(
            clients * (last - first)
        )
    # of noise that remembers nothing it is the number of releases
    plain = Windows(task_of(loss="logistic", records=100, noise_memory=0), clients)
    assert plain.noise(0.0, float(ends[40])) == pytest.approx(40 * clients)
    fixed = Windows(task_of(loss="logistic", records=100, growth=0.0), clients)
    assert fixed.number(100.0 * clients * 1234.5) == pytest.approx(1234.5)


@pytest.mark.parametrize("records", [3_000.0, 50_000.0, 1e6])
def test_what_has_come_is_what_is_released_and_half_a_window_of_each_client(records: float) -> None:
    windows = Windows(task_of(loss="logistic", records=100), 5)
    slots = windows.released(records)
    # a window that has just grown may be on either side
    assert windows.come(slots) == pytest.approx(records, abs=windows.next_window(slots) / 2)


def test_points_are_even_in_every_column_and_always_the_same() -> None:
    points = even_points(3, 128)
    assert np.array_equal(np.sort(points, axis=0)[:, 1], (np.arange(128) + 0.5) / 128)
    assert np.array_equal(points, even_points(3, 128))
    assert np.abs(np.corrcoef(points.T)[np.triu_indices(3, 1)]).max() < 0.35


@pytest.mark.parametrize("loss", ["logistic", "linear", "poisson"])
def test_with_next_to_no_noise_lengths_are_those_of_all_records(loss: str) -> None:
    more = {"most": 12.0} if loss == "poisson" else {}
    task = task_of(loss=loss, ridge=0.0, epsilon=20.0, records=250, **more)
    reference, records = reference_of(task), 3e8
    bread = np.linalg.inv(reference.curvature)
    wanted = np.diag(bread @ reference.middle @ bread) / records
    assert expect(task, records, 2).variances == pytest.approx(wanted, rel=0.1)
    # and of a likelihood the middle is the curvature
    if loss != "linear":
        assert reference.middle == pytest.approx(reference.curvature, rel=0.05, abs=0.16)


def test_the_reference_is_what_is_drawn_of_the_population() -> None:
    task = task_of(loss="logistic", p=2, ridge=0.05, maximum=4.0)
    x, y = Population.of(task).draw(np.random.default_rng(3), 200_000)
    reference = reference_of(task)
    design = np.column_stack([np.ones(len(y)), x])
    # even classes weigh 1 each
    curvature = (design * task.loss.curvature(design @ reference.target, y)[:, None]).T @ design
    assert reference.curvature == pytest.approx(curvature / len(y), abs=6e-3)
    held = reference.curvature + np.diag(task.penalty)
    turned = (reference.vectors * reference.values) @ reference.vectors.T
    assert turned == pytest.approx(held)


def test_the_size_of_the_noise_is_by_hand() -> None:
    task, clients = task_of(loss="logistic", records=100, releases=8), 4
    windows = Windows(task, clients)
    # eight windows at the start, and ten of each client behind them with half an open one
    records = 800 + clients * (10 * 100 + 50)
    assert windows.begun == 800
    noise = clients * memory.variance_between(1, 10)
    size = noise_of(task).curvature * math.sqrt(task.size * noise) / (clients * 1000)
    assert noise_size(task, records, clients) == pytest.approx(size)


def test_more_records_or_budget_give_shorter_intervals_sooner() -> None:
    one, richer = (
        expect(task_of(loss="logistic", p=7, ridge=0.0, epsilon=e, records=250), 50_000, 8)
        for e in (0.5, 2.0)
    )
    later = expect(task_of(loss="logistic", p=7, ridge=0.0, epsilon=0.5, records=250), 200_000, 8)
    assert np.all(richer.variances < one.variances)
    assert np.all(later.variances < one.variances)
    assert (later.first, later.lasting) == (one.first, one.lasting)
    assert (richer.lasting or 0) < (one.lasting or 0)
    assert (one.first or 0) <= (one.lasting or 0)


def test_a_rare_level_comes_late() -> None:
    levels = ", ".join(f'"{n}"' for n in range(8))
    declared = [f"x{i} = {{ min = -1, max = 1 }}" for i in range(8)]
    declared.append(f'b = {{ kind = "category", levels = [{levels}] }}')
    task = task_of(loss="logistic", declared=declared, ridge=0.0, epsilon=4.0, records=250)
    found = expect(task, 100_000, 4)
    assert found.first is not None
    assert found.whole is not None
    assert found.whole > found.first
    assert not found.late[1:9].any()
    assert found.late[9:].all()


def test_fewer_releases_than_intervals_need_have_none() -> None:
    task = task_of(loss="linear", p=2, ridge=0.0, epsilon=20.0, records=100, residual_bound=0.3)
    early = [stage for stage in islice(stages(task, 3), 40) if stage.records < 800 + 1000]
    assert early
    assert not any(stage.ready for stage in early)
    found = expect(task, 10_000, 3)
    # eight windows at the start, ten behind it, and half an open one of each client
    assert found.first == pytest.approx(800 + 1000 + 150)


#: Loss, features, epsilon, clients, records, and others.
STREAMS = [
    ("logistic", 4, 2.0, 4, 12_000, {}),
    ("linear", 3, 1.0, 16, 12_000, {"residual_bound": 0.4}),
    ("logistic", 3, 1.0, 1, 8_000, {"noise_memory": 0}),
]


@pytest.mark.takes("streams of 12,000 records")
@pytest.mark.parametrize(("loss", "p", "epsilon", "clients", "records", "more"), STREAMS)
def test_streams_give_what_is_expected(
    loss: str, p: int, epsilon: float, clients: int, records: int, more: dict[str, float]
) -> None:
    study = parse_study(
        study_text(
            loss=loss, p=p, epsilon=epsilon, ridge=0.0, records=250, norm_bound="typical", **more
        )  # type: ignore[arg-type]
    )
    task, population = RenewableTask(study), Population.of(simulated(study))
    found = expect(task, records, clients)
    firsts, errors = [], []
    for number in range(8):
        releases, first = Releases(population, clients, 3, number), math.inf
        for now in releases.models(records):
            if first == math.inf and releases.estimate().standard_errors() is not None:
                first = now
        own = releases.estimate().standard_errors()
        assert own is not None
        firsts.append(first)
        errors.append(own[0][1:])
    # the median of eight firsts is known to about 15 %, that of errors to 3 %
    assert found.first == pytest.approx(float(np.median(firsts)), rel=0.4)
    usual = math.sqrt(float(np.median(found.variances[1:])))
    assert usual == pytest.approx(float(np.median(errors)), rel=0.12)


def test_a_study_that_forgets_expects_no_more_than_it_keeps() -> None:
    forgetting = 'half_life = 2000, of = "records"'
    text = study_text(loss="logistic", p=7, epsilon=0.5, ridge=0.0, records=250)
    kept, fading = (
        method_of(study).plan(method_of(study).task(study), 100_000, 4)
        for study in (
            parse_study(text),
            parse_study(text.replace("[privacy]", f"forgetting = {{ {forgetting} }}\n[privacy]")),
        )
    )
    assert kept.usual < 10**12
    assert fading.usual == 10**12
    assert (fading.usual_half or 0) > 2 * (kept.usual_half or 0)
