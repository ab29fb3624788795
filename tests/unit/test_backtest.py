"""A history replayed as it would have come: order, delays, pace, scores and fits."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from pipeline.backtest import Options, backtest, run_backtest
from pipeline.backtest.engine import Engine
from pipeline.backtest.history import Closed, Moment, Opened, Reading, Windows
from pipeline.errors import ConfigError, DataError, RecordError
from pipeline.messages.release import header_of
from pipeline.methods import task_of
from pipeline.records.encoder import Encoder, Row, stack
from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.partition import differences
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study, read_study
from tests.builders import study_text

HEAD = """
[study]
name = "{name}"
[data]
response = {{ name = "y", {response} }}
[data.features]
a = {{ min = -1, max = 1 }}
b = {{ min = -2, max = 2 }}
[estimator]
loss = "{loss}"
"""
CLASSES, NUMBERS, COUNTS = (
    HEAD.format(name=name, response=response, loss=loss)
    for name, response, loss in (
        ("classes", 'positive = "yes", negative = "no"', "logistic"),
        ("numbers", 'kind = "number", min = -5, max = 5', "linear"),
        ("counts", 'kind = "count", max = 40', "poisson"),
    )
)
SGD = """
kind = "ldp-sgd"
ridge = 0
"""
NOISED = """
[privacy]
mechanism = "insecure-simulation"
epsilon = 2
delta = 1e-6
seed = 5
"""
OPEN = """
[privacy]
mechanism = "none"
"""
WINDOW = """
[window]
records = 50
[stream]
partitions = 1
publish = { releases = 3 }
"""
STUDIES = {
    "classes": CLASSES + NOISED + WINDOW,
    "classes, open": CLASSES + OPEN + WINDOW,
    "numbers": NUMBERS + NOISED + WINDOW,
    "numbers, open": NUMBERS + OPEN + WINDOW,
    "counts": COUNTS + NOISED + WINDOW,
    "counts, open": COUNTS + OPEN + WINDOW,
    "by record": CLASSES + SGD + NOISED + 'neighbours = "replace-one"' + WINDOW,
    "by record, open": CLASSES + SGD + OPEN + WINDOW,
    "weighted": CLASSES + "class_weights = { maximum = 8.0 }" + NOISED + WINDOW,
    "by record, clipped": CLASSES
    + SGD
    + "path = { clipping_norm = 1.2 }"
    + NOISED
    + 'neighbours = "replace-one"'
    + WINDOW,
    "forgets": CLASSES + 'forgetting = { half_life = 500, of = "records" }' + NOISED + WINDOW,
}


def history(study: Study, count: int = 1_200, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """Records of five clients, some with faults."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(0, 0.6, count), rng.normal(0, 1, count)
    eta = 0.3 + a - 0.5 * b
    kind = study.data.response.kind
    if kind == "class":
        y = np.where(rng.random(count) < 1 / (1 + np.exp(-eta)), "yes", "no").astype(object)
        y[::97] = "perhaps"
    elif kind == "number":
        y = np.where(rng.random(count) < 0.02, np.nan, eta + rng.normal(0, 1, count))
    else:
        y = rng.poisson(np.exp(eta)).astype(float)
        y[::97] = -1
    a[5::211] = np.inf
    who = np.array([f"c{k}" for k in rng.integers(0, 5, count)], dtype=object)
    return {"a": a, "b": b, "y": y, "who": who}


def records_of(table: dict[str, np.ndarray[Any, Any]]) -> Iterator[dict[str, object]]:
    for row in zip(*(column.tolist() for column in table.values()), strict=True):
        yield dict(zip(table, row, strict=True))


def offline(task: Task, table: dict[str, np.ndarray[Any, Any]]) -> OfflineRun:
    """Run windows as `veilstream fit` does, record by record."""
    encoder, run = Encoder(task.study), OfflineRun(task)
    for record in records_of(table):
        row: Row | None = None
        with contextlib.suppress(RecordError):
            row = encoder.encode(record)
        run.take(str(record["who"]), (row,))
    run.close()
    return run


def engine_of(study: Study, table: Any, options: Options) -> Engine:
    task = task_of(options.study_of(study))
    reading = Reading(task.study, options, table, "csv")
    engine = Engine(
        task, timed=options.event_time is not None, names=reading.names,
        network=options.network, labels=options.labels, seed=options.seed,
    )  # fmt: skip
    for part in reading.parts():
        engine.feed(part)
    engine.finish()
    return engine


#: Those that have nothing which another of them has not.
ALIKE = {"classes, open", "numbers", "counts, open", "by record, open", "by record, clipped"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in STUDIES]
)
def test_without_delay_it_is_the_offline_run_bit_by_bit(name: str) -> None:
    study = read_study(STUDIES[name])
    table = history(study)
    expected = offline(task_of(study), table)
    engine = engine_of(study, table, Options(client_column="who"))
    assert differences(engine.run.partition, expected.partition) == []
    assert engine.run.model.version == expected.model.version > 5
    assert engine.run.model.lattice.tolist() == expected.model.lattice.tolist()


@pytest.mark.parametrize("of_file", [False, True])
def test_a_shuffled_history_is_another_order_of_the_same_records(
    of_file: bool, tmp_path: Path
) -> None:
    study = read_study(STUDIES["classes"])
    table = history(study)
    order = np.random.default_rng([4, len(table["y"])]).permutation(len(table["y"]))
    by_hand = {name: column[order] for name, column in table.items()}
    given: Any = table
    if of_file:
        given = tmp_path / "history.csv"
        lines = [",".join(map(str, row.values())) for row in records_of(table)]
        given.write_text("\n".join([",".join(table), *lines]) + "\n")
    expected = engine_of(study, by_hand, Options(client_column="who"))
    engine = engine_of(study, given, Options(client_column="who", shuffle=4))
    assert differences(engine.run.partition, expected.run.partition) == []
    kept = engine_of(study, table, Options(client_column="who"))
    assert differences(engine.run.partition, kept.run.partition) != []


def test_records_with_times_are_not_shuffled() -> None:
    with pytest.raises(ConfigError, match="--shuffle and --event-time"):
        Options(event_time="t", shuffle=1)
    with pytest.raises(ConfigError, match="--shuffle: they must be 0 or more"):
        Options(shuffle=-1)


def watched(study: Study, table: Any, options: Options) -> tuple[Any, ...]:
    """Everything that a result says but how long it took, and when."""
    found = run_backtest(study, table, options).to_dict()
    del found["seconds"], found["estimate"]["published_at"]
    return found


TIMED = Options(
    client_column="who", event_time="t", delay="exponential:40s", label_delay="90s", seed=3,
    freeze=1_000.0, bins=10,
)  # fmt: skip


@pytest.mark.parametrize("records", [pytest.param(1, marks=pytest.mark.slow), 37, 1_000])
@pytest.mark.parametrize(
    "options",
    [
        TIMED,
        pytest.param(dataclasses.replace(TIMED, label_delay="77 records"), marks=pytest.mark.slow),
        Options(client_column="who", delay="60 records", label_delay="100 records", bins=10),
    ],
)
def test_batches_change_nothing(
    records: int, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    # sums over the history are added batch by batch: the pooled fit is left out
    options = dataclasses.replace(options, pooled=False)
    expected = of_batches(options)
    monkeypatch.setattr("pipeline.backtest.history.RECORDS", records)
    close(of_batches.__wrapped__(options), expected)


@cache
def of_batches(options: Options) -> Any:
    """Return what a backtest of 300 records says, in batches of as many as there are now."""
    text = STUDIES["classes"].replace("records = 50", "records = 50\nseconds = 100")
    return watched(read_study(text), timed(history(read_study(text), 300)), options)


def close(found: Any, expected: Any) -> None:
    """The same, but for the rounding of sums over records."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            close(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    elif isinstance(expected, float):
        # sums of at most 300 logarithms of about 1, in any order
        assert found == pytest.approx(expected, rel=300 * 2**-53)
    else:
        assert found == expected


def timed(table: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Give records times: some at once, with gaps, about 5 s apart."""
    rng = np.random.default_rng(9)
    steps = rng.choice([0.0, 1.0, 5.0, 20.0], len(table["a"]), p=[0.3, 0.3, 0.3, 0.1])
    return table | {"t": np.cumsum(steps)}


@pytest.mark.parametrize("late", [0, pytest.param(1, marks=pytest.mark.slow), 130])
def test_each_record_is_predicted_before_its_label_is_learnt(late: int) -> None:
    """Record by record, with nothing of the engine: labels that have come are learnt first."""
    study = read_study(STUDIES["classes"])
    table = history(study, 900)
    task, encoder = task_of(study), Encoder(study)
    run, waiting, said = OfflineRun(task), list[Row | None](), list[tuple[float, float]]()
    coefficients: np.ndarray[Any, Any] | None = None
    rows: list[Row | None] = []
    for record in records_of(table):
        try:
            rows.append(encoder.encode(record))
        except RecordError:
            rows.append(None)

    def learn(row: Row | None) -> None:
        nonlocal coefficients
        waiting.append(row)
        if len(waiting) == task.slots:
            version = run.model.version
            run.add("client", [one for one in waiting if one is not None])
            waiting.clear()
            if run.model.version > version:
                coefficients = run.estimate(0.0)[0].coefficients

    for place, row in enumerate(rows):
        if late and place >= late:
            learn(rows[place - late])
        if coefficients is not None and row is not None:
            said.append((row.response, coefficients[0] + row.features @ coefficients[1:]))
        if not late:
            learn(row)
    result = backtest(study, table, label_delay=f"{late} records", pooled=False)
    truth, scores = np.array(said).T
    assert result.scores.records == len(said) > 500
    assert result.scores.accuracy == accuracy_score(truth, np.where(scores >= 0, 1, -1))
    assert result.scores.auc == pytest.approx(
        roc_auc_score(truth, scores.astype(np.float16)), rel=1e-12
    )
    chance = 1 / (1 + np.exp(-scores))
    assert result.scores.log_loss == pytest.approx(log_loss(truth > 0, chance), rel=1e-9)
    # ten groups of about as many records, those of equal predictors together
    group = (10 * (rankdata(scores.astype(np.float16)) - 0.5) / len(said)).astype(int)
    assert len(result.calibration) == 10
    for number, shown in enumerate(result.calibration):
        members = group == number
        assert shown.records == members.sum() > len(said) / 11
        assert shown.observed == np.mean(truth[members] > 0)
        assert shown.predicted == pytest.approx(chance[members].mean(), abs=1e-3)
    assert [g.predicted for g in result.calibration] == sorted(
        g.predicted for g in result.calibration
    )
    assert result.to_dict()["calibration"][0]["records"] == result.calibration[0].records


def test_releases_of_all_clients_overtake_each_other_and_those_of_one_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = read_study(STUDIES["classes"])
    made: list[tuple[str, int]] = []
    folded: list[tuple[str, int]] = []
    release, fold = OfflineRun.release, OfflineRun.fold

    def making(run: OfflineRun, client: str, rows: Any, model: Any) -> bytes:
        payload = release(run, client, rows, model)
        made.append((client, header_of(payload).seq))
        return payload

    def folding(run: OfflineRun, client: str, payload: bytes, milliseconds: int = 0) -> None:
        folded.append((client, header_of(payload).seq))
        fold(run, client, payload, milliseconds)

    monkeypatch.setattr(OfflineRun, "release", making)
    monkeypatch.setattr(OfflineRun, "fold", folding)
    options = {"client_column": "who", "delay": "exponential:400 records", "pooled": False}
    backtest(study, history(study), **options)
    assert sorted(folded) == sorted(made)
    assert folded != made
    for client in {client for client, _ in made}:
        mine = [seq for name, seq in folded if name == client]
        assert mine == sorted(mine)


def test_windows_close_by_event_time() -> None:
    study = read_study(STUDIES["classes"].replace("records = 50", "records = 50\nseconds = 30"))
    times = np.array([0.0, 10.0, 29.0, 30.0, 100.0, 300.0])
    table = {"a": np.zeros(6), "b": np.zeros(6), "y": np.array(["yes", "no"] * 3), "t": times}
    closed: list[tuple[float, int]] = []
    options = Options(event_time="t")
    reading = Reading(study, options, table, "csv")
    windows, opened = Windows(task_of(study).growth, 30.0), list[float]()
    for part in reading.parts():
        found = windows.cut(part)
        opened += [w.at.clock for w in found if isinstance(w, Opened)]
        closed += [(w.at.clock, len(w.rows.responses)) for w in found if isinstance(w, Closed)]
    last = list(windows.rest(Moment(300.0, 6)))
    opened += [w.at.clock for w in last if isinstance(w, Opened)]
    closed += [(w.at.clock, len(w.rows.responses)) for w in last if isinstance(w, Closed)]
    # none fills its first block
    assert opened == [30.0, 60.0, 130.0, 300.0]
    # 30 s after the first record of each; the last one at the end of the history
    assert closed == [(30.0, 3), (60.0, 1), (130.0, 1), (300.0, 1)]


def test_seconds_of_forgetting_are_event_time() -> None:
    text = CLASSES + 'forgetting = { half_life = 100, of = "seconds" }' + NOISED + WINDOW
    study, table = read_study(text), timed(history(read_study(text)))
    result = backtest(study, table, event_time="t")
    assert result.estimate.diagnostics.effective_records < 0.5 * result.estimate.records
    assert "forgets" in result.pooled.reason
    with pytest.raises(ConfigError, match="--event-time"):
        backtest(study, table)
    with pytest.raises(DataError, match="1970"):
        backtest(study, table | {"t": table["t"] - 10}, event_time="t")


def test_a_frozen_estimate_is_that_of_its_time() -> None:
    study = read_study(STUDIES["classes"])
    table = history(study)
    result = backtest(study, table, freeze=500, pooled=False)
    # the newest estimate of the records before alone, and its scores on those behind
    short = {name: column[:500] for name, column in table.items()}
    run = OfflineRun(task_of(study))
    encoder, window, coefficients = Encoder(study), list[Row | None](), np.zeros(3)
    for record in records_of(short):
        try:
            window.append(encoder.encode(record))
        except RecordError:
            window.append(None)
        if len(window) == 50:
            run.add("client", [row for row in window if row is not None])
            window.clear()
            if run.waiting == 0:
                coefficients = run.estimate(0.0)[0].coefficients
    right = count = 0
    for record in list(records_of(table))[500:]:
        with contextlib.suppress(RecordError):
            row = encoder.encode(record)
            said = coefficients @ np.append(1.0, row.features) >= 0
            count, right = count + 1, right + int(said == (row.response > 0))
    assert result.freeze is not None
    assert result.freeze.frozen.records == result.freeze.updating.records == count
    assert result.freeze.frozen.accuracy == right / count
    for wrong, said in ((100, "no estimate"), (5_000, "no record comes after")):
        with pytest.raises(ConfigError, match=said):
            backtest(study, table, freeze=wrong)


BATCH = [
    *("weighted", "by record, clipped", "numbers", "counts"),
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("classes", "by record", "counts, open")),
]


@pytest.mark.parametrize("name", BATCH)
def test_the_pooled_fit_is_a_batch_fit(name: str) -> None:
    study = read_study(STUDIES[name])
    table = history(study)
    result = backtest(study, table)
    encoder, rows = Encoder(study), []
    for record in records_of(table):
        with contextlib.suppress(RecordError):
            rows.append(encoder.encode(record))
    features, responses = stack(rows, 2)[:2]
    centre, unit = task_of(study).response_scale
    n, ridge = len(rows), study.estimator.ridge
    assert result.pooled.coefficients is not None
    found = np.array(result.pooled.coefficients)
    # ours ends with a step of 1e-7 at most, the others with scores of 1e-8 over curvatures of 1e-2
    if name == "numbers":
        # no residual passes the width of the range here, so the bounded loss is least squares
        design = np.column_stack([np.ones(n), features])
        penalty = n * ridge * np.diag([0.0, 1.0, 1.0])
        best = unit * np.linalg.solve(design.T @ design + penalty, design.T @ responses)
        np.testing.assert_allclose(found, best + np.array([centre, 0, 0]), atol=1e-6)
        return
    if name.startswith("counts"):
        other = PoissonRegressor(alpha=ridge, tol=1e-10, max_iter=10_000)
    else:
        penalty = 1 / (n * ridge) if ridge else np.inf
        other = LogisticRegression(C=penalty, tol=1e-10, max_iter=10_000)
    weights = np.ones(n)
    if name == "weighted":
        share = np.mean(responses > 0)
        weights = np.where(responses > 0, 0.5 / share, 0.5 / (1 - share))
    elif name == "by record, clipped":
        weights = np.minimum(1.0, 1.2**2 / (1 + np.sum(features**2, axis=1)))
        assert np.mean(weights < 1) > 0.3
    other.fit(features, responses, sample_weight=weights)
    best = np.append(other.intercept_, other.coef_)
    np.testing.assert_allclose(found, best, atol=1e-6)


def test_one_class_alone_has_no_pooled_fit_and_no_ranking() -> None:
    study = read_study(STUDIES["classes"])
    table = history(study) | {"y": np.full(1_200, "yes")}
    result = backtest(study, table)
    assert result.pooled.coefficients is None
    assert "pooled fit" in result.pooled.reason
    assert result.scores.auc is None
    assert result.scores.balanced_accuracy is None
    assert result.scores.accuracy is not None


def test_clipping_is_counted_by_feature() -> None:
    study = read_study(STUDIES["classes, open"])
    table = {
        "a": np.array([0.0, 3.0, -3.0, np.nan]),
        "b": np.array([0.0, 1.0, 5.0, 9.0]),
        "y": np.array(["yes", "no", "yes", "no"]),
    }
    # the last record has a fault: three are left
    assert backtest(study, table).clipped == {"a": 2 / 3, "b": 1 / 3}


@pytest.mark.parametrize(("sort", "shuffle"), [(False, None), (True, None), (True, 3)])
def test_it_says_that_a_history_is_sorted(sort: bool, shuffle: int | None) -> None:
    study, rng = read_study(STUDIES["classes, open"]), np.random.default_rng(4)
    columns = {"a": rng.uniform(-1, 1, 2_000), "b": rng.uniform(-1, 1, 2_000)}
    if sort:
        columns["b"] = np.sort(columns["b"])
    table = columns | {"y": np.where(rng.random(2_000) < 0.5, "yes", "no")}
    found = backtest(study, table, shuffle=shuffle)
    assert found.order == ({"b": pytest.approx(1.0)} if sort and shuffle is None else {})


@pytest.mark.slow
def test_a_long_history_that_is_sorted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.backtest.run.MOST_SEEN", 700)
    study, rng = read_study(STUDIES["classes, open"]), np.random.default_rng(4)
    table = {name: rng.uniform(-1, 1, 9_000) for name in ("a", "b")}
    table |= {"y": np.where(np.arange(9_000) < 4_500, "no", "yes")}
    assert list(backtest(study, table).order) == ["y"]


@pytest.mark.parametrize(("bound", "share"), [(1.1, 2 / 3), (1.7, 1 / 3), (1.75, 0.0)])
def test_it_says_how_many_records_are_shortened(bound: float, share: float) -> None:
    text = STUDIES["classes, open"].replace("[estimator]", f"[estimator]\nnorm_bound = {bound}", 1)
    # clipped and scaled: norms of 1, 1.25^(1/2) and 3^(1/2); the last record has a fault
    table = {
        "a": np.array([0.0, 0.0, -3.0, np.nan]),
        "b": np.array([0.0, 1.0, 5.0, 9.0]),
        "y": np.array(["yes", "no", "yes", "no"]),
    }
    assert backtest(read_study(text), table).shortened == pytest.approx(share)


def test_a_published_method_is_refused_by_name() -> None:
    text = STUDIES["classes, open"].replace("[estimator]", '[estimator]\nkind = "pooled"')
    with pytest.raises(ConfigError, match="pooled"):
        backtest(text, history(read_study(STUDIES["classes"])))


CLIENTS, RECORDS = 3, 60


def text(stream: str = "", **study: Any) -> str:
    made = study_text(p=2, records=RECORDS, epsilon=4, mechanism="insecure-simulation", **study)
    return f"{made}partitions = 1\n{stream}\n"


def run(monkeypatch: pytest.MonkeyPatch, study: str, **options: Any) -> tuple[Engine, Counter[int]]:
    """Return what became of a history, and how many releases had how many of their client unseen.

    At the moment at which their window began: what the model that they are made at had not read.
    """
    task, rng = task_of(parse_study(study)), np.random.default_rng(3)
    offsets: dict[str, list[int]] = defaultdict(list)
    models: dict[str, list[Model]] = defaultdict(list)
    release, fold = OfflineRun.release, OfflineRun.fold

    def released(
        self: OfflineRun, client: str, rows: Any, model: Model, noise: Any = None
    ) -> bytes:
        models[client].append(model)
        return release(self, client, rows, model, noise)

    def arrived(self: OfflineRun, client: str, payload: bytes, milliseconds: int = 0) -> None:
        assert header_of(payload).seq == len(offsets[client])
        offsets[client].append(self.releases)
        fold(self, client, payload, milliseconds)

    monkeypatch.setattr(OfflineRun, "release", released)
    monkeypatch.setattr(OfflineRun, "fold", arrived)
    count = 4500
    x = rng.uniform(-1, 1, (count, 2))
    table = {
        "x0": x[:, 0], "x1": x[:, 1], "t": np.arange(count) / 10.0,
        "y": np.where(rng.random(count) < 1 / (1 + np.exp(-x[:, 0])), "1", "0").astype(object),
        "who": np.array([f"c{n % CLIENTS}" for n in range(count)], dtype=object),
    }  # fmt: skip
    chosen = Options(client_column="who", **options)
    reading = Reading(task.study, chosen, table, "csv")
    engine = Engine(
        task, timed=chosen.event_time is not None, names=reading.names, network=chosen.network,
        labels=chosen.labels,
    )  # fmt: skip
    for part in reading.parts():
        engine.feed(part)
    engine.finish()
    # every record is in one release
    assert engine.run.partition.head.slots == count
    unseen = Counter[int]()
    for client, made in models.items():
        for number, model in enumerate(made):
            read = model.offsets[0] if model.version else 0
            unseen[sum(offset >= read for offset in offsets[client][:number])] += 1
    return engine, unseen


@pytest.mark.parametrize(
    ("delay", "timed"),
    [
        ("30", False), ("900", True),
        *(pytest.param(delay, timed, marks=pytest.mark.slow)
          for delay, timed in (("30", True), ("900", False),
                               ("exponential:200", False), ("exponential:200", True))),
    ],
)  # fmt: skip
def test_a_window_begins_at_a_model_that_lacks_no_more_of_its_client_than_live(
    monkeypatch: pytest.MonkeyPatch, *, timed: bool, delay: str
) -> None:
    options: dict[str, Any] = {"delay": f"{delay} records"}
    if timed:
        options = {"delay": delay.replace("exponential:200", "exponential:20") + "s"}
        options["event_time"] = "t"
    engine, unseen = run(monkeypatch, text("max_in_flight_windows = 2"), **options)
    assert max(unseen) == 1
    assert engine.run.model.version > 10


def test_without_a_bound_no_client_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    _, unseen = run(monkeypatch, text("max_in_flight_windows = 0"), delay="900 records")
    assert max(unseen) > 3


def test_windows_that_stand_by_themselves_are_released_at_the_model_of_their_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = text("max_in_flight_windows = 1", growth=0, noise_memory=0)
    _, unseen = run(monkeypatch, study, delay="900 records")
    assert max(unseen) > 3
