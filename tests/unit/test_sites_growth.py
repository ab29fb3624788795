"""Windows of sites that grow: records count by their slots, and noise by its releases."""

from __future__ import annotations

import math
from itertools import chain, islice

import numpy as np
import pytest

from pipeline.errors import ConfigError, PrivacyError
from pipeline.estimators.population import Population
from pipeline.methods import method_of, server_of
from pipeline.methods import task_of as make_task
from pipeline.methods.noisy_mle.client import SiteTask
from pipeline.methods.noisy_mle.estimate import Sites, sites_of
from pipeline.methods.noisy_mle.method import (
    of_each_model,
    releases_in,
    slots_until,
    stages,
    window_sizes,
)
from pipeline.methods.sites.state import FIRST, Shape, SiteState
from pipeline.records.blocks import MOST_RECORDS
from pipeline.records.encoder import Arrays
from pipeline.release.model import round_model
from pipeline.release.policy import Directive, OpenWindow, Wait
from pipeline.release.query import MatrixPart, Query, VectorPart
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of
from pipeline.stream.partition import Partition
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, relogged
from tests.sites import SPREAD, TRUTH, study_text, task_of, window

SITES, STREAMS = 4, 10


def text(loss: str = "logistic", method: str = "", window: str = "", **settings: object) -> str:
    """Return a study of 20 records a window; `window` are further lines of that table."""
    given: dict[str, object] = {
        "p": 3, "records": 20, "releases": SITES, "mechanism": "insecure-simulation",
        "epsilon": 8.0, "norm_bound": "typical",
    }  # fmt: skip
    made = study_text(method, loss=loss, **(given | settings))
    return made.replace("[window]\n", f"[window]\n{window}\n")


def exact_of(query: Query) -> dict[str, tuple[list[int], list[int], int]]:
    """Return the exact sums of a query, their units and slots."""
    found = {}
    for name, part in query.parts.items():
        assert isinstance(part, VectorPart | MatrixPart)
        found[name] = part.sums.integers.tolist(), part.sums.exponents.tolist(), part.slots
    return found


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("loss", ["logistic", "linear"])
def test_sums_of_blocks_are_those_of_one_window(loss: str, version: int) -> None:
    """Whatever a block holds, its units are the study's."""
    large, small = (
        task_of(text(loss, records=records, residual_bound=0.3 if loss == "linear" else None))
        for records in (60, 20)
    )
    model = round_model(version, np.array([0.3, 40.0, -0.2, 0.1]), (1.0, 1.0), 40)
    model = model if version else small.first_model
    records = window(loss, 60, np.random.default_rng(1))
    records.features[:3], records.features[3] = 1e6, np.nan
    records.responses[20:40] = np.nan
    empty = Arrays(np.zeros((0, 3)), np.zeros(0))
    parts = [slice(0, 15), slice(15, 20), slice(20, 40), slice(40, 60)]
    blocks = [
        small.query(Arrays(records.features[part], records.responses[part]), model)
        for part in parts
    ]
    whole = large.query(records, model)
    total = blocks[0] + small.query(empty, model) + blocks[1] + blocks[2] + blocks[3]
    assert total.blocks == 5
    for name, (sums, units, slots) in exact_of(total).items():
        assert (sums, units) == exact_of(whole)[name][:2]
        assert slots == 5 * 20


def test_the_sums_of_the_largest_window_stay_within_their_bits() -> None:
    for loss, method in (("linear", ""), ("linear", 'release = "score"'), ("logistic", "")):
        task = task_of(text(loss, method, records=1))
        # a norm bound that cuts nothing, where every product is as large as it can be
        task.__dict__["norm_bound"] = task.longest
        for version in (0, 3):
            model = round_model(version, np.zeros(4), (1.0, 1.0), 40) if version else None
            one = Arrays(np.ones((1, 3)), np.ones(1))
            for sums, _, _ in exact_of(task.query(one, model or task.first_model)).values():
                assert max(map(abs, sums)) * MOST_RECORDS < 2**63
    with pytest.raises(PrivacyError, match=r"^window\.most: "):
        task_of(text(records=100, window=f"most = {MOST_RECORDS + 100}"))
    assert task_of(text(records=100, window="most = 4_000_000")).growth.largest == 4_000_000


def test_a_release_of_two_blocks_says_what_two_releases_do_with_half_the_noise() -> None:
    task, rng = task_of(text("linear", residual_bound=0.3)), np.random.default_rng(2)
    shape, point = Shape(task.size, 1), rng.integers(-(2**20), 2**20, task.size)
    numbers = rng.integers(-(2**30), 2**30, (2, shape.points - FIRST))

    def told(numbers: np.ndarray, *blocks: int) -> Sites:
        state, count = SiteState(shape, task.slots), len(blocks)
        rows = shape.rows_of(np.tile(point, (count, 1)), numbers, np.array(blocks))
        state.fold(np.ones((count, 2), dtype=np.uint64), np.full(count, 4), rows)
        assert (state.releases, state.slots) == (count, 40)
        return sites_of(task, [(0.5, state)], [4])

    one, two = told(numbers.sum(axis=0, keepdims=True), 2), told(numbers, 1, 1)
    for name in ("score", "curvature", "drift", "squares", "records", "squared", "point"):
        assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-14), name
    assert (one.records.tolist(), one.squared.tolist()) == ([20.0], [10.0])
    assert one.points.bending.tolist() == two.points.bending.tolist() == [20.0]
    for name in ("score_noise", "curvature_noise", "squares_noise"):
        assert 2 * getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-14), name
    assert 2 * one.points.noise == pytest.approx(two.points.noise, rel=1e-14)


def test_where_points_lie_is_a_mean_over_records() -> None:
    task = task_of(text())
    shape, state = Shape(task.size, 0), SiteState(Shape(task.size, 0), task.slots)
    points = np.array([[0, 2**20, 0, 0], [2**20, 0, 0, 0]])
    rows = shape.rows_of(
        points, np.zeros((2, shape.points - FIRST), dtype=np.int64), np.array([1, 3])
    )
    state.fold(np.ones((2, 2), dtype=np.uint64), np.full(2, 4), rows)
    found = sites_of(task, [(1.0, state)], [4])
    assert found.point[0] / found.point.max() == pytest.approx([1, 1 / 3, 0, 0])
    assert found.points.mean[0].tolist() == found.point[0].tolist()
    # a quarter lies sqrt 2 away, times 3 / 4 and 1 / 4 of it
    length = (4 / 3 * found.point.max()) ** 2
    assert found.points.scatter[0] == pytest.approx(2 * 3 / 16 * length)


def grown(task: SiteTask, rounds: int, seed: int = 1) -> list[LogEntry]:
    """Return the log of a stream of windows as large as they may be; site 0 sends two a round."""
    run, rng, log = OfflineRun(task), np.random.default_rng(seed), list[LogEntry]()
    held = [0] * SITES
    for _ in range(rounds):
        for site in (0, *range(SITES)):
            slots = task.growth.next_window(held[site])
            records = window(task.loss.name, slots, rng)
            name, payload = f"site-{site}", run.release(f"site-{site}", records, run.model)
            held[site] += slots * (run.model.version > 0)
            run.fold(name, payload)
            log.append(LogEntry(len(log), name.encode(), payload, 0))
        run.move()
    return log


def folded(task: SiteTask, log: list[LogEntry], *cuts: int, erased: str = "") -> Partition:
    state = Partition.empty(task, frozenset({erased} - {""}))
    for first, last in zip((0, *cuts), (*cuts, len(log)), strict=True):
        assert Reducer(task).fold(state, log[first:last]) == []
    return state


@pytest.mark.parametrize("loss", [pytest.param("logistic", marks=pytest.mark.slow), "linear"])
def test_mixed_sizes_have_the_same_bits_in_any_order_and_without_an_erased_site(loss: str) -> None:
    task = task_of(text(loss, window="growth = 0.25"))
    log = grown(task, 14)
    whole = folded(task, log)
    sizes = {len(window_sizes(task, n)) for n in (1, 28)}
    assert sizes == {1, 28}
    assert whole.head.slots == whole.sums.at(0).slots > 20 * len(log)
    # late ones are folded where they come, as long as none is lost
    order = np.random.default_rng(3).permutation(len(log)).tolist()
    mixed = folded(task, relogged([log[place] for place in order]), 5, 6, 40)
    assert mixed.sums.encode() == whole.sums.encode()
    state, others = folded(task, log, erased="site-0"), [e for e in log if e.key != b"site-0"]
    assert state.sums.encode() == folded(task, relogged(others)).sums.encode()
    one, two = estimate_of(task, [whole]), estimate_of(task, [mixed])
    assert one.coefficients.tobytes() == two.coefficients.tobytes()
    assert one.records == whole.head.slots


@pytest.mark.parametrize("method", ["", pytest.param('release = "score"', marks=pytest.mark.slow)])
def test_intervals_of_windows_that_grow_are_as_long_as_estimates_err(method: str) -> None:
    settings: dict[str, object] = {"noise_scale": SPREAD, "ridge": 0.0, "records": 50}
    errors, streams = [], 5
    for seed in range(streams):
        task = task_of(text("linear", method, "growth = 0.5", seed=seed, **settings))
        [state] = [folded(task, grown(task, 8, seed))]
        estimate = estimate_of(task, [state])
        assert (estimate.status, estimate.records) == ("ready", 12_750)
        known = estimate.standard_errors()
        assert known is not None
        errors.append((estimate.coefficients - TRUTH["linear"]) / known[0])
    # three Monte Carlo errors; with the noise of slots in place of releases it is 0.3
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(1, abs=3 / math.sqrt(8 * streams))


@pytest.mark.parametrize(("largest", "share"), [(1.0, 10 / 13), (0.4, 0.4)])
def test_shares_are_of_records_and_not_of_releases(largest: float, share: float) -> None:
    task = task_of(text("linear", f"largest_share = {largest}", noise_scale=0.2, epsilon=20.0))
    server, shape, blocks = server_of(task), Shape(4, 0), np.array([90_000, 9_000, 9_000, 9_000])
    products = np.diag([1, 1 / 3, 1 / 3, 1 / 3])[np.triu_indices(4)]
    numbers = np.zeros((SITES, shape.points - FIRST))
    numbers[:, 4:] = np.outer(20 * blocks, products) / task.update_channels.curvature.unit
    # one release of each
    rows = shape.rows_of(np.zeros((SITES, 4), dtype=np.int64), numbers.astype(np.int64), blocks)
    state, ids = server.empty(), np.arange(2 * SITES, dtype=np.uint64).reshape(SITES, 2)
    state.fold(ids, np.zeros(SITES, dtype=np.int64), rows)
    found = server.estimate([(1.0, state)], [0])
    shares = {row["site"]: row["share"] for row in found.details["sites"]}
    # the noise of so large releases is next to nothing
    assert shares[ids[0].tobytes().hex()] == pytest.approx(share, rel=0.01)
    assert found.records == 20 * blocks.sum()


def test_growth_is_a_part_of_what_releases_of_sums_mean_and_none_of_copies() -> None:
    for loss in ("logistic", "linear"):
        revisions = [
            make_task(parse_study(text(loss, window=line))).revision
            for line in ("", "growth = 0.1\nmost = 1_000_000", "growth = 0", "growth = 0.5")
        ]
        assert revisions[0] == revisions[1]
        assert len(set(revisions)) == 3
    copies = [
        make_task(parse_study(text(kind="noisy-copies", window=line, epsilon=4.0)))
        for line in ("", "growth = 0")
    ]
    assert copies[0].revision == copies[1].revision
    assert not copies[0].growth.divisor
    with pytest.raises(ConfigError, match=r"window\.growth"):
        parse_study(text(kind="noisy-copies", window="growth = 0.1", epsilon=4.0))


def test_sums_at_zero_wait_for_the_first_model_where_it_lets_windows_grow() -> None:
    def waits(line: str, version: int, method: str = "") -> bool:
        policy = task_of(text("linear", method, window=line)).policy
        told = policy.decide(OpenWindow(0, 20), Directive(version, 99), 0.0)
        return bool(isinstance(told, Wait) and told.reason)

    assert (waits("", 0), waits("", 1)) == (True, False)
    assert (waits("growth = 0", 0), waits("growth = 0", 1)) == (False, False)
    score = 'release = "score"'
    assert (waits("", 0, score), waits("", 1, score)) == (True, True)


def counted(task: SiteTask, slots: int) -> tuple[int, int]:
    """Return how many slots and releases all sites have after the first rounds with so many."""
    total = releases = 0
    for size in chain([task.slots] * of_each_model(task), task.growth.schedule(10**9)):
        if total >= slots:
            break
        total, releases = total + task.spec.sites * size, releases + task.spec.sites
    return total, releases


@pytest.mark.parametrize("line", ["", "growth = 0", "growth = 0.5\nmost = 1000"])
@pytest.mark.parametrize("releases", [8, 50])
def test_plans_count_windows_as_they_grow(line: str, releases: int) -> None:
    task = task_of(text(method="sites = 20", window=line, releases=releases))
    for slots in (500, 5_000, 20_000, 300_000):
        total, count = counted(task, slots)
        assert releases_in(task, total) == pytest.approx(count)
        # as soon as that is what is wanted, to one release
        wanted = total / math.sqrt(count)
        assert slots_until(task, wanted) == pytest.approx(total, abs=task.growth.largest * 1.01)
        assert slots_until(task, 1.001 * wanted) > slots_until(task, 0.99 * wanted)
    schedule = chain([20] * of_each_model(task), task.growth.schedule(10**9))
    assert window_sizes(task, 80).tolist() == list(islice(schedule, 80))


def test_windows_of_a_plan_end_where_releases_get_another_age() -> None:
    line = 'half_life = 8000, of = "records"'
    task = task_of(text(method="sites = 10", forgetting=line))
    # two eighths of a half-life are 200 slots of each
    assert max(size for size, _ in stages(task)) == 200
    plan = method_of(task.study).plan
    late, later = (plan(task, records, 10).usual_half for records in (10**6, 10**7))
    assert late == pytest.approx(later)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "last", "settings"),
    [
        ("linear", 150_000, {"ridge": 0.01, "epsilon": 2.0}),
        ("logistic", 250_000, {"ridge": 0.02, "epsilon": 2.0, "records": 250}),
    ],
)
def test_plans_say_when_intervals_come_and_how_long_they_are(
    loss: str, last: int, settings: dict[str, object]
) -> None:
    """Of records as the reference supposes them."""
    lines = [f"x{i} = {{ min = -1, max = 1, typical = 0 }}" for i in range(3)]
    given = {"declared": lines, "records": 100, **settings}
    firsts, halves = [], []
    for seed in range(STREAMS):
        task = task_of(text(loss, f"sites = {SITES}", seed=seed, **given))
        population, rng = Population.of(task), np.random.default_rng(seed)
        run, held, slots, first = OfflineRun(task), 0, 0, 0
        while slots < last:
            size = task.growth.next_window(held)
            for site in range(SITES):
                records = Arrays(*population.draw(rng, size))
                run.fold(f"site-{site}", run.release(f"site-{site}", records, run.model))
            slots, held = slots + SITES * size, held + size * (run.model.version > 0)
            estimate, _ = run.estimate(0.0)
            first = first or slots * (estimate.status == "ready")
            run.move()
        ends = estimate.intervals(0.95)
        assert ends is not None
        firsts.append(first)
        halves.append(float(np.median((ends[1] - ends[0])[1:] / 2)))
    outlook = method_of(task.study).plan(task, slots, SITES)
    # nine of ten, to a quarter
    assert 0.75 < outlook.usual / float(np.quantile(firsts, 0.9)) < 1.25
    assert 0.75 < outlook.usual_half / float(np.mean(halves)) < 1.25
