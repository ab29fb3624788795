"""Paths of gradient descent beside plain loops, alone, shared or pooled, and their intervals."""

from __future__ import annotations

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from kafka.partitioner import murmur2 as kafkas
from numpy.testing import assert_allclose

from pipeline.errors import ConfigError, NumericError, PayloadError
from pipeline.estimators.estimate import Estimate
from pipeline.linalg import pack_upper
from pipeline.messages.model import read_model, write_model
from pipeline.messages.release import header_of
from pipeline.messages.topics import murmur2, partition_of
from pipeline.methods import server_of
from pipeline.methods.ldp_sgd import plug_in
from pipeline.methods.ldp_sgd.intervals import (
    contrast,
    critical_value,
    gradient_noise,
    plug_ins,
    random_scaling,
    tail,
    variance,
)
from pipeline.methods.ldp_sgd.plug_in import regressed_curvature
from pipeline.methods.ldp_sgd.state import LARGEST, SgdPath, SgdState, Sums
from pipeline.methods.ldp_sgd.step_rule import (
    MIXED,
    Rule,
    StepRule,
    noise_cap,
    rule_of,
    scaling_of,
    staleness_cap,
)
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.partition import Partition, differences
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix
from tests.builders import LogEntry
from tests.sgd import drawn, rows_of, study_text, task_of
from tests.wire import as_rows

SIZE, BLOCK, RELEASES = 3, 7, 1400


def pulled(seed: int = 0, releases: int = RELEASES) -> tuple[np.ndarray, np.ndarray]:
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
    gradients, points = pulled(seed)
    path, at = SgdPath(made), 0
    for size in [*(sizes or []), RELEASES]:
        path.fold(gradients[at : at + size], points[at : at + size])
        at += size
    return path


def test_the_sums_are_those_of_a_plain_loop() -> None:
    gradients, points = pulled()
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
    iterates, _ = looped(rule(burn_in=burn_in), pulled()[0])
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
    gradients, points = pulled(releases=8000)
    path, share = SgdPath(rule(burn_in=350)), []
    for i in range(0, 8000, 10):
        path.fold(gradients[i : i + 10], points[i : i + 10])
        if path.records > 16 * 1400:
            share.append(1 - path.stretch().records / path.records)
    assert 0.05 <= min(share) < 0.06
    assert 1 / 9 < max(share) <= 1 / 8
    assert len(path.marks) == 4


def test_the_regressed_curvature_is_least_squares() -> None:
    gradients, points = pulled(2)
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
    gradients, points = pulled()
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


FEW = 300
SHARED = Rule(StepRule(0.8, 0.55, 0.2), 70, np.zeros(SIZE), full=True, shared=True)


# --- the arithmetic of a shared path


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gradients, points, and how much had been seen of the partition and of all."""
    rng = np.random.default_rng(seed)
    points = rng.normal(0.3, 0.3, (FEW, SIZE))
    gradients = points[:, None, :] + rng.normal(0, 1, (FEW, BLOCK, SIZE))
    seen = np.maximum(np.arange(FEW) - 2, 0) * BLOCK
    # some clients were away, and one claims what cannot be
    clock = np.where(rng.random(FEW) < 0.1, 5, 3 * seen)
    clock[50] = 2**53 - 1
    return gradients, points, seen, clock


def test_a_shared_path_is_that_of_a_plain_loop() -> None:
    gradients, points, seen, clock = arrays()
    path = SgdPath(SHARED)
    path.fold(gradients, points, seen, clock=clock)
    theta, moved, kept, late = np.zeros(SIZE), 0.0, [], 0
    for i in range(FEW):
        for j in range(BLOCK):
            eta = min(0.8 * (max(int(clock[i]), i * BLOCK) + BLOCK) ** -0.55, 0.2)
            theta = theta - eta * gradients[i, j]
            if i * BLOCK >= 70:
                kept.append(points[i])
                moved += eta
        late += (i * BLOCK - int(seen[i])) * (i * BLOCK >= 70)
    origin = points[70 // BLOCK - 1]
    c = np.cumsum(np.array(kept) - origin, axis=0)
    s = np.arange(1, len(c) + 1)
    sums = path.sums
    assert_allclose(path.theta, theta, rtol=1e-9)
    assert_allclose(path.origin, origin)
    for found, wanted in ((sums.c, c[-1]), (sums.b, s @ c), (sums.a, c.T @ c), (sums.moved, moved),
                          (sums.u, np.sum(kept, axis=0))):  # fmt: skip
        assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    assert (sums.records, sums.behind) == (len(c), late)


def test_parts_of_a_shared_path_may_be_far_from_each_other() -> None:
    """Partitions whose data differ pull apart without end; only their sum has a limit."""
    path = SgdPath(Rule(StepRule(1.0, 0.51), 0, np.zeros(1), shared=True))
    for _ in range(60):
        path.fold(np.full((500, BLOCK, 1), 50.0), np.zeros((500, 1)))
    assert path.diverged is None
    assert abs(path.theta[0]) > LARGEST
    assert path.records == 60 * 500 * BLOCK


# --- the stream


def study(several: str, partitions: int = 3, **settings: object) -> Task:
    path = f'partitions = "{several}", burn_in = 100'
    return task_of(path=path, partitions=partitions, publish=2, **settings)


def named(partitions: int) -> list[str]:
    """Return a client for each partition, in order."""
    found: dict[int, str] = {}
    for i in range(1000):
        name = f"client-{i}"
        found.setdefault(partition_of(name.encode(), partitions), name)
    return [found[number] for number in range(partitions)]


def streamed(
    task: Task, releases: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[OfflineRun, list[tuple[int, bytes]]]:
    """Run a stream; return the run, and the partition and payload of each release."""
    rows = rows_of(task, *drawn("linear", releases * task.slots, 1))
    run = OfflineRun(task)
    made: list[bytes] = []

    def noted(*arguments: object, **identity: object) -> bytes:
        payload = release_of(*arguments, **identity)  # type: ignore[arg-type]
        made.append(payload)
        return payload

    monkeypatch.setattr("pipeline.stream.in_process.release_of", noted)
    clients = named(task.study.stream.partitions)
    log: list[tuple[int, bytes]] = []
    for i in range(releases):
        number = [0, 1, 0, 2, 0][i % 5]
        run.add(clients[number], rows[i * task.slots : (i + 1) * task.slots])
        log.append((number, made[-1]))
    return run, log


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "none"])
@pytest.mark.parametrize("several", ["shared", "pooled"])
def test_each_partition_is_a_fold_of_its_own_log_in_any_batches(
    several: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = study(several, mechanism=mechanism)
    run, log = streamed(task, 60, monkeypatch)
    key = [name.encode() for name in named(3)]
    for number, held in enumerate(run.partitions):
        mine = [payload for place, payload in log if place == number]
        entries = [LogEntry(i, key[number], payload, 0) for i, payload in enumerate(mine)]
        for sizes in ([], [1] * len(entries), [3, 1, 5]):
            state, reducer, at = Partition.empty(task), Reducer(task), 0
            for size in (*sizes, len(entries)):
                assert reducer.fold(state, entries[at : at + size]) == []
                at += size
                # what was stored and read again goes on as if it had not been
                state = Partition.decode(
                    task, state.fields(everything=True), state.client_fields(everything=True)
                )
            assert differences(state, held) == []


def test_a_shared_path_is_one_path_and_every_client_is_sent_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = study("shared")
    run, log = streamed(task, 40, monkeypatch)
    rows, steps = server_of(task), rule_of(task).steps
    theta, own, total = task.first_model.coefficients, [0, 0, 0], 0
    newest, seen, places = task.first_model.coefficients, 0, [[0, 0, 0]]
    for i, (number, payload) in enumerate(log):
        release = header_of(payload)
        batch = rows.batch(as_rows(task, [payload]))  # type: ignore[attr-defined]
        # a model goes out after every second release, rounded to the public lattice
        assert_allclose(batch.points[0], newest, atol=2.0**-13)
        assert (release.model_watermark, release.partition_watermark or 0) == (
            seen,
            places[-1][number],
        )
        step = steps.step(max(seen, own[number]) + task.slots)
        theta = theta - step * batch.gradients.sum(axis=(0, 1))
        own[number] += task.slots
        total += task.slots
        if i % 2:
            newest, seen = theta, total
            places.append(list(own))
    assert_allclose(run.estimate(0.0)[0].point, theta, rtol=1e-12)


def test_clients_of_pooled_paths_are_sent_the_iterate_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = study("pooled")
    run, log = streamed(task, 40, monkeypatch)
    rows, rule = server_of(task), rule_of(task)
    paths = [SgdPath(rule) for _ in range(3)]
    newest = [path.theta for path in paths]
    for i, (number, payload) in enumerate(log):
        batch = rows.batch(as_rows(task, [payload]))  # type: ignore[attr-defined]
        assert_allclose(batch.points[0], newest[number], atol=2.0**-13)
        paths[number].fold(batch.gradients, batch.points)
        if i % 2:
            newest = [path.theta for path in paths]
    for path, held in zip(paths, run.partitions, strict=True):
        state = held.sums.states[0]
        assert isinstance(state, SgdState)
        assert_allclose(state.path.theta, path.theta, rtol=1e-12)
    # far apart, as each has its own records: one point could not have served them all
    assert np.max(np.abs(paths[1].theta - paths[2].theta)) > 2.0**-10


@pytest.mark.slow
def test_a_shared_path_goes_to_the_minimiser_of_all_where_partitions_differ() -> None:
    """Two groups on one line of slopes 0 and 1, whose features differ: 3 to 1 in square."""
    answers = {}
    for several in ("shared", "pooled"):
        task = task_of(
            p=1, mechanism="none", partitions=2, records=20, path=f'partitions = "{several}"',
            estimator="residual_bound = 10", publish=4,
        )  # fmt: skip
        rng, run, clients = np.random.default_rng(4), OfflineRun(task), named(2)
        for _ in range(1200):
            for slope, width, client in zip((0.0, 1.0), (0.9, 0.3), clients, strict=True):
                x = width * rng.choice([-1.0, 1.0], (20, 1))
                run.add(client, rows_of(task, x, (slope * x[:, 0]).tolist()))
        answers[several] = float(run.estimate(0.0)[0].coefficients[1]) * 10
    # least squares of all is 0.09 / (0.81 + 0.09); the mean of both minimisers is one half
    assert answers["shared"] == pytest.approx(0.1, abs=0.01)
    assert answers["pooled"] == pytest.approx(0.5, abs=0.05)


# --- what is said to clients, and what is refused


def test_a_key_goes_where_kafka_puts_it() -> None:
    rng = np.random.default_rng(1)
    keys = [rng.bytes(int(length)) for length in rng.integers(0, 40, 500)]
    assert [murmur2(key) for key in keys] == [kafkas(key) & 0xFFFFFFFF for key in keys]
    assert {partition_of(key, 7) for key in keys} == set(range(7))


@pytest.mark.parametrize("several", ["shared", "pooled"])
def test_a_model_of_several_partitions_survives_the_wire(
    several: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = study(several)
    run, _ = streamed(task, 10, monkeypatch)
    model, read = run.model, read_model(task, write_model(task, run.model, "2026-01-01T00:00:00Z"))
    assert [part.partition_watermark for part in read.parts] == [
        part.partition_watermark for part in model.parts
    ]
    for number in range(3):
        one, other = model.at(number), read.at(number)
        assert np.array_equal(one.lattice, other.lattice)
        assert (one.partition_watermark, one.watermark, one.version) == (
            other.partition_watermark,
            other.watermark,
            other.version,
        )
        assert other.at(number) is other


def test_a_model_for_other_partitions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {several: study(several) for several in ("shared", "pooled")}
    payloads = {
        several: write_model(task, streamed(task, 4, monkeypatch)[0].model, "now")
        for several, task in tasks.items()
    }
    one = msgspec.json.decode(payloads["pooled"])
    for several, change, reason in (
        ("pooled", one["partitions"][:2], "wrong-shape"),
        ("pooled", [{"watermark": 1}] * 3, "wrong-shape"),
        ("pooled", [{"watermark": 1, "coefficients": [0.0]}] * 3, "wrong-shape"),
        ("pooled", [{"watermark": 1, "coefficients": [0.3] * 4}] * 3, "off-lattice"),
        ("pooled", [{"watermark": 1, "coefficients": [1e300] * 4}] * 3, "out-of-range"),
        ("pooled", [{"watermark": -1, "coefficients": [0.0] * 4}] * 3, "undecodable"),
        ("shared", one["partitions"], "wrong-shape"),
        ("shared", [], "wrong-shape"),
    ):
        spoilt = msgspec.json.decode(payloads[several])
        spoilt["partitions"] = change
        with pytest.raises(PayloadError) as caught:
            read_model(tasks[several], msgspec.json.encode(spoilt))
        assert caught.value.reason == reason


def test_other_studies_say_nothing_of_partitions() -> None:
    task = task_of()
    assert b"partitions" not in write_model(task, task.first_model, "now")
    payload = release_of(task, [], task.first_model, client="a", ledger="l", seq=0)
    assert b"\xa5place" not in payload


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"partitions": 2}, 'path.partitions = "shared" or "pooled"'),
        ({"partitions": 1, "path": 'partitions = "shared"'}, "remove it"),
        ({"partitions": 2, "path": 'partitions = "local"'}, "partitions"),
    ],
)
def test_several_partitions_without_a_way_are_refused(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_study(study_text(**settings))  # type: ignore[arg-type]


def test_the_way_is_part_of_the_revision_and_the_number_of_partitions_is_not() -> None:
    assert study("shared").revision != study("pooled").revision
    assert study("shared", 2).revision == study("shared", 5).revision


ALL = 'releases = "gradients+curvature+products"'


def simulated_study(several: str, partitions: int = 3, more: str = "", **settings: object) -> Task:
    path = f'partitions = "{several}", burn_in = 100{more}'
    settings.setdefault("mechanism", "insecure-simulation")
    settings.setdefault("records", 20)
    return task_of(path=path, partitions=partitions, publish=2, **settings)


def filled(task: Task, numbers: list[int]) -> OfflineRun:
    """Run a stream whose releases come to these partitions."""
    slots = task.slots
    names: dict[int, str] = {}
    for i in range(1000):
        names.setdefault(partition_of(f"{i}".encode(), task.study.stream.partitions), f"{i}")
    rows, run = rows_of(task, *drawn("linear", slots * len(numbers), 4)), OfflineRun(task)
    for i, number in enumerate(numbers):
        run.add(names[number], rows[slots * i : slots * (i + 1)])
    return run


def stretches(run: OfflineRun) -> list[Sums]:
    return [p.sums.states[0].path.stretch() for p in run.partitions]  # type: ignore[union-attr]


def by_hand(parts: list[Sums]) -> Matrix:
    """Return the least-squares slope within logs."""
    cross = sum(part.gu - np.outer(part.g, part.u) / part.records for part in parts)
    spread = sum(part.uu - np.outer(part.u, part.u) / part.records for part in parts)
    slope = cross @ np.linalg.inv(spread)
    return (slope + slope.T) / 2


# --- the covariance


def sums_of(curvature: float, noise: float, records: int, seed: int) -> Sums:
    """Return sums of gradients that are linear in their points, with matrices beside them."""
    rng = np.random.default_rng(seed)
    u = rng.normal(0, 1, (records, SIZE))
    g = curvature * u + rng.normal(0, noise, (records, SIZE))
    beside = [pack_upper(factor * records * np.eye(SIZE)) for factor in (curvature, noise)]
    return dataclasses.replace(
        Sums.zero(SIZE, full=False, extra=12), records=records, g=g.sum(axis=0),
        u=u.sum(axis=0), gu=g.T @ u, uu=u.T @ u, gg=g.T @ g, extra=np.concatenate(beside),
    )  # fmt: skip


def test_pooled_plug_ins_take_curvature_and_middle_of_each_path() -> None:
    task = simulated_study("pooled", 2, f", {ALL}", p=SIZE - 1)
    parts = [sums_of(1.0, 1.0, 3000, 1), sums_of(0.25, 2.0, 1000, 2)]
    noise, one = gradient_noise(task) ** 2, np.eye(SIZE)
    wanted = {"plug-in": 0 * one, "plug-in-curvature": 0 * one, "plug-in-products": 0 * one}
    spent = dict.fromkeys(wanted, 0 * one)
    for part, flat, product in zip(parts, (1.0, 0.25), (1.0, 2.0), strict=True):
        middle, share = part.gg / part.records, part.records / 4000
        # the noise of a released curvature errs by A^-1 E b where the average is moved by b
        scaling = scaling_of(task)
        assert scaling is not None
        square = scaling.noise**2 / part.records
        for name, a, m in (
            ("plug-in", by_hand([part]), middle),
            ("plug-in-curvature", flat * one, middle),
            ("plug-in-products", flat * one, (product + noise) * one),
        ):
            bread = np.linalg.inv(a)
            move = bread @ part.g / part.records
            error = square / 2 * (move @ move * one + np.outer(move, move))
            error = 0 * one if name == "plug-in" else error
            wanted[name] = wanted[name] + share**2 * bread @ (m / part.records + error) @ bread
            spent[name] = spent[name] + share**2 * noise * bread @ bread / part.records
    found = plug_ins(task, parts)
    assert found.keys() == wanted.keys()
    for name, plug in found.items():
        assert_allclose(plug.covariance, wanted[name], rtol=1e-9, atol=1e-12)
        assert_allclose(plug.privacy_covariance(noise), spent[name], rtol=1e-9, atol=1e-12)
        assert plug.floored == 0
    assert found["plug-in-curvature"].condition == pytest.approx(1.0)


@pytest.mark.parametrize("several", [pytest.param("shared", marks=pytest.mark.slow), "pooled"])
def test_the_privacy_part_is_the_noise_of_gradients_through_the_curvature(several: str) -> None:
    """A^-1 (2B / mu)^2 A^-1 / n of all records, or of each path by itself."""
    task = simulated_study(several, more=", behind = 0", records=100)
    run = filled(task, [0, 1, 2] * (200 if several == "pooled" else 100))
    found, message = run.estimate(0.0)
    assert found.status == "ready", found.reason
    parts = stretches(run)
    # epsilon 10.997 at delta 1e-6 is mu = 2
    deviation = 2 * task.clipping_norm * task.loss.slope_bound / 2
    total, wanted = sum(part.records for part in parts), np.zeros((task.size, task.size))
    for group in [parts] if several == "shared" else [[part] for part in parts]:
        bread, own = np.linalg.inv(by_hand(group)), sum(part.records for part in group)
        wanted = wanted + (own / total) ** 2 * deviation**2 * bread @ bread / own
    assert found.privacy_covariance is not None
    # rounding makes the deviation at most one part in 256 larger, and mu is 2 within 2e-4
    ratio = np.diag(found.privacy_covariance) / np.diag(wanted)
    assert (ratio > (1 - 2e-4) ** 2).all()
    assert (ratio < ((1 + 1 / 256) * (1 + 2e-4)) ** 2).all()
    shown = [row.privacy_se for row in message.coefficients]
    unit = task.response_scale[1]
    assert_allclose(shown, unit * np.sqrt(np.diag(found.privacy_covariance)), rtol=1e-9)


# --- readiness


@pytest.mark.slow
def test_a_shared_path_has_mixed_by_the_steps_of_all_partitions() -> None:
    run = filled(simulated_study("shared"), [0, 1, 2] * 270)
    parts = stretches(run)
    least = np.linalg.eigvalsh(regressed_curvature(parts))[0]
    # together they have mixed, and none would have alone
    assert max(least * part.moved for part in parts) < MIXED < least * sum(p.moved for p in parts)
    found = run.estimate(0.0)[0]
    assert found.status == "ready", found.reason


@pytest.mark.slow
def test_one_small_pooled_partition_withholds_all_intervals_and_is_named() -> None:
    task = simulated_study("pooled", more=", behind = 0", records=60)
    found = warming(task, [0, 1] * 250 + [2] * 20)
    assert "partition 2 (1200 records) is too short" in found.reason
    assert "50 in every partition" in found.reason
    found = warming(simulated_study("pooled"), [0, 2] * 40 + [1] * 6)
    assert "partition 1 (120 records) has hardly begun to move" in found.reason


def test_the_reason_of_warming_says_that_models_are_late() -> None:
    found = warming(simulated_study("pooled", 2, ", behind = 5"), [0, 0, 1, 1] * 20)
    assert "relaxation times" in found.reason
    assert "records late on average, and the steps allow for 5: publish more often" in found.reason
    assert "slow the clients" in found.reason


def test_a_shared_path_that_has_left_its_range_needs_a_new_study() -> None:
    steps = ", eta0 = 1e12, alpha = 0.51, curvature = 1e-9, behind = 0"
    task = simulated_study("shared", more=steps, mechanism="none", estimator="residual_bound = 20")
    found = warming(task, [0, 1, 2] * 20)
    assert "begin a new study" in found.reason
    assert "does not repair a shared path" in found.reason


def warming(task: Task, numbers: list[int]) -> Estimate:
    found = filled(task, numbers).estimate(0.0)[0]
    assert found.status == "warming"
    assert found.covariance is None
    return found
