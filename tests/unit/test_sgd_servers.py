"""Locally private gradients in several partitions: one shared path, or paths that are pooled."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from kafka.partitioner import murmur2 as kafkas
from numpy.testing import assert_allclose

from pipeline.errors import ConfigError, PayloadError
from pipeline.messages.model import read_model, write_model
from pipeline.messages.release import header_of
from pipeline.messages.topics import murmur2, partition_of
from pipeline.methods import server_of
from pipeline.methods.ldp_sgd.intervals import random_scaling
from pipeline.methods.ldp_sgd.path import LARGEST, SgdPath
from pipeline.methods.ldp_sgd.state import SgdState
from pipeline.methods.ldp_sgd.step_rule import Rule, StepRule, rule_of
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.partition import Partition, differences
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry
from tests.sgd import drawn, rows_of, study_text, task_of
from tests.wire import as_rows

SIZE, BLOCK, RELEASES = 3, 7, 300
SHARED = Rule(StepRule(0.8, 0.55, 0.2), 70, np.zeros(SIZE), full=True, shared=True)


# --- the arithmetic of a shared path


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gradients, points, and how much had been seen of the partition and of all."""
    rng = np.random.default_rng(seed)
    points = rng.normal(0.3, 0.3, (RELEASES, SIZE))
    gradients = points[:, None, :] + rng.normal(0, 1, (RELEASES, BLOCK, SIZE))
    seen = np.maximum(np.arange(RELEASES) - 2, 0) * BLOCK
    # some clients were away, and one claims what cannot be
    clock = np.where(rng.random(RELEASES) < 0.1, 5, 3 * seen)
    clock[50] = 2**53 - 1
    return gradients, points, seen, clock


def test_a_shared_path_is_that_of_a_plain_loop() -> None:
    gradients, points, seen, clock = arrays()
    path = SgdPath(SHARED)
    path.fold(gradients, points, seen, clock=clock)
    theta, moved, kept, late = np.zeros(SIZE), 0.0, [], 0
    for i in range(RELEASES):
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


def simulated(partitions: int, seed: int) -> list[SgdPath]:
    """Move a shared path towards zero: the gradient at u is u, with noise of variance one."""
    rng = np.random.default_rng([3, seed])
    rule = Rule(StepRule(0.5, 0.6), 500, np.ones(SIZE), shared=True)
    paths = [SgdPath(rule) for _ in range(partitions)]
    for model in range(1000):
        point = np.ones(SIZE) + np.sum([path.theta - 1 for path in paths], axis=0)
        for path in paths:
            gradient = point + rng.normal(0, 1, (1, 5, SIZE))
            clock = np.array([model * 5 * partitions])
            path.fold(gradient, point[None], np.array([path.records]), clock=clock)
    return paths


@pytest.mark.slow
def test_intervals_of_a_shared_path_cover_and_those_of_independent_ones_do_not() -> None:
    hits: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for seed in range(150):
        parts = [(path.stretch(), path.origin) for path in simulated(4, seed)]
        for shared, found in hits.items():
            scaling = random_scaling(parts, shared=shared)
            found.append(np.abs(scaling.mean) <= scaling.half_width(0.95))
    # the entries of one path are independent: 450 intervals, and half a percent for n being finite
    reach = 4 * math.sqrt(0.95 * 0.05 / (SIZE * 150)) + 0.005
    assert abs(np.mean(hits[True]) - 0.95) < reach
    # taking the logs of one path for four that are independent halves the length and more
    assert np.mean(hits[False]) < 0.95 - reach


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


@pytest.mark.slow
def test_intervals_and_lateness_of_several_partitions() -> None:
    task = study("shared", records=20)
    rows, clients = rows_of(task, *drawn("linear", 60_000, 4)), named(3)
    run = OfflineRun(task)
    for i in range(3000):
        run.add(clients[i % 3], rows[20 * i : 20 * i + 20])
    estimate, message = run.estimate(0.0)
    assert message.status == "ready", message.reason
    assert set(message.intervals) == {"random-scaling", "plug-in"}
    # partitions take turns, and a model comes after every second release: none is late in its own
    assert estimate.staleness == 0.0
    for i in range(300):
        run.add(clients[0], rows[20 * i : 20 * i + 20])
        run.add(clients[0], rows[20 * i : 20 * i + 20])
    # now every second release of the first partition is 20 of its records late
    [first, *_] = run.partitions
    state, late = first.sums.states[0], run.estimate(0.0)[0].staleness
    assert isinstance(state, SgdState)
    part = state.path.stretch()
    # its share of the stretches that count, and as many more records as came to all partitions
    held = [p.sums.states[0].path.stretch().records for p in run.partitions]  # type: ignore[union-attr]
    assert part.behind == 300 * 20
    assert late == pytest.approx(20 * 300 * (72_000 / 32_000) / (sum(held) / 20))


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
