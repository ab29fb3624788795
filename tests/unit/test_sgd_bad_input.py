"""What a path does with bad settings, bad records and hostile clients, each with one answer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import ConfigError, RecordError
from pipeline.linalg import pack_upper
from pipeline.methods.ldp_sgd.client import bounded_gradients
from pipeline.methods.ldp_sgd.path import LARGEST, SgdPath
from pipeline.methods.ldp_sgd.plan import largest_move
from pipeline.methods.ldp_sgd.step_rule import rule_of
from pipeline.records.encoder import Encoder
from pipeline.release.model import COEFFICIENT_LIMIT, Model, round_model
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, SeededStream, relogged
from tests.sgd import TRUTH, drawn, folded, log_of, path_of, rows_of, study_text, task_of
from tests.wire import edited, numbers_of

ALL = 'releases = "gradients+curvature+products"'
REASONABLE = {
    "linear": {},
    "weak": {"epsilon": 0.1},
    "strong": {"epsilon": 20.0},
    "logistic": {"loss": "logistic"},
    "expectile": {"loss": "expectile", "estimator": "residual_bound = 1\ntau = 0.8"},
    "large-windows": {"records": 1000, "epsilon": 0.5},
    "many-features": {"p": 40},
    "laplace": {"mechanism": "discrete-laplace"},
    "open": {"mechanism": "none"},
}


# --- settings


@pytest.mark.parametrize(
    ("settings", "key", "bound"),
    [
        ({"path": "alpha = 0.5"}, "estimator.path.alpha", "more than 0.5"),
        ({"path": "alpha = 1.1"}, "estimator.path.alpha", "at most 1"),
        ({"path": "alpha = nan"}, "estimator.path.alpha", "more than 0.5"),
        ({"path": "eta0 = 0"}, "estimator.path.eta0", "more than 0"),
        ({"path": "eta0 = 1e13"}, "estimator.path.eta0", "at most 1"),
        ({"path": "burn_in = -1"}, "estimator.path.burn_in", "at least 0"),
        ({"path": "clipping_norm = 0"}, "estimator.path.clipping_norm", "more than 0"),
        ({"path": "curvature = -1"}, "estimator.path.curvature", "more than 0"),
        ({"path": "kappa = 0.0"}, "estimator.path.kappa", "more than 0"),
        ({"path": "behind = -1"}, "estimator.path.behind", "at least 0"),
        ({"epsilon": 0}, "privacy.epsilon", "at least 0.0001"),
        ({"epsilon": -1.0}, "privacy.epsilon", "at least 0.0001"),
        ({"epsilon": 21}, "privacy.epsilon", "at most 20"),
        ({"records": 0}, "window.records", "at least 1"),
        ({"estimator": "residual_bound = 0"}, "estimator.residual_bound", "more than 0"),
        ({"estimator": "residual_bound = 1\nlevel = 0"}, "estimator.level", "at least 0.01"),
        ({"estimator": "residual_bound = 1\nlevel = 1"}, "estimator.level", "less than 1"),
        (
            {"loss": "expectile", "estimator": "residual_bound = 1\ntau = 0"},
            "estimator.tau",
            "more than 0",
        ),
    ],
)
def test_a_number_out_of_range_is_refused_with_its_bound_and_an_example(
    settings: dict[str, object], key: str, bound: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_study(study_text(**settings))  # type: ignore[arg-type]
    message = str(refused.value)
    last = key.rsplit(".", maxsplit=1)[-1]
    assert message.startswith(f"study file: {key}: ")
    assert bound in message
    assert "; allowed: " in message
    assert f"; example: {last} = " in message


# --- records


@pytest.mark.parametrize("label", ["2", "-1", "", "yes", None, math.nan, 0.5])
def test_a_label_that_is_no_class_is_set_aside_at_the_client(label: object) -> None:
    encoder = Encoder(task_of(loss="logistic").study)
    good = encoder.encode({"x0": 0.1, "x1": 0.2, "x2": 0.3, "y": "1"})
    assert good.response == 1.0
    with pytest.raises(RecordError, match="y"):
        encoder.encode({"x0": 0.1, "x1": 0.2, "x2": 0.3, "y": label})


@pytest.mark.parametrize("clipping_norm", [0.5, 2.0])
def test_a_record_of_zeros_is_as_long_as_its_intercept(clipping_norm: float) -> None:
    """(1, 0) has the norm 1, so that no weight divides by zero."""
    task = task_of(path=f"clipping_norm = {clipping_norm}, {ALL}", records=1)
    sums = bounded_gradients(task, np.zeros((1, 3)), np.array([1.0]), task.first_model)
    found = np.ldexp(sums.gradient.integers.astype(float), sums.gradient.exponents)
    slope = task.loss.slope_bound * min(1.0, clipping_norm**2)
    # the slope is cut to 20 bits below a power of two
    assert found == pytest.approx([-slope, 0, 0, 0], abs=2.0**-20)


# --- releases


def fed(task: Task, entries: list[LogEntry]) -> tuple[Partition, list[str]]:
    partition = Partition.empty(task)
    letters = Reducer(task).fold(partition, relogged(entries))
    return partition, [letter.fault.reason for letter in letters]


def at_model(task: Task, model: Model, seq: int) -> LogEntry:
    rows = rows_of(task, *drawn("linear", task.slots, seq))
    payload = release_of(task, rows, model, SeededStream(seq), client="a", ledger="l", seq=seq)
    return LogEntry(seq, b"a", payload, timestamp=1000 + seq)


def test_a_release_carries_its_model_so_that_old_and_unknown_versions_are_folded() -> None:
    """What is late is measured and said; a version from nowhere is late by nothing."""
    task = task_of(path="burn_in = 0", records=5)
    point = np.full(4, 0.1)
    entries = [at_model(task, round_model(i, point, (1.0, 1.0), 5 * i), i) for i in range(10)]
    old = at_model(task, round_model(1, point, (1.0, 1.0), 5), 10)
    unknown = at_model(task, round_model(2**39, point, (1.0, 1.0), 2**50), 11)
    partition, reasons = fed(task, [*entries, old, unknown])
    assert reasons == []
    sums = path_of(partition).sums
    assert sums.records == 12 * 5
    # the old one is 50 - 5 records late, all others none
    assert sums.behind == 45
    far = Model(1, np.full(4, COEFFICIENT_LIMIT + 1), (1024, 1024))
    assert fed(task, [at_model(task, far, 0)])[1] == ["out-of-range"]


def test_releases_out_of_order_are_taken_once_in_the_order_of_the_log() -> None:
    task = task_of(path=f"burn_in = 0, {ALL}", records=5)
    log = log_of(task, 6)
    order = [0, 3, 1, 2, 3, 1, 5, 4]
    partition, reasons = fed(task, [log[i] for i in order])
    assert reasons == []
    assert partition.head.duplicates == 2
    assert partition.clients["a"].missing == 0
    once = fed(task, [log[i] for i in (0, 3, 1, 2, 5, 4)])[0]
    assert path_of(partition).theta.tobytes() == path_of(once).theta.tobytes()
    # another order is another path, and the same sums of what came beside it
    assert path_of(partition).theta.tobytes() != path_of(folded(task, log, [])).theta.tobytes()
    assert fed(task, [log[0], log[2]])[0].clients["a"].missing == 1


@pytest.mark.parametrize("settings", REASONABLE.values(), ids=REASONABLE.keys())
def test_no_single_release_can_stop_a_path_of_reasonable_settings(
    settings: dict[str, object],
) -> None:
    task = task_of(**settings)
    moved = largest_move(task, rule_of(task))
    # a hundred hostile releases in a row do not reach the end of the range either
    assert 0 < moved < LARGEST / 100


@pytest.mark.parametrize("name", ["logistic", "strong", "open"])
def test_no_forged_curvature_makes_a_release_move_the_path_further_than_stated(name: str) -> None:
    task = task_of(**{**REASONABLE[name], "path": 'releases = "gradients+curvature"'})
    rule, size, rng = rule_of(task), task.size, np.random.default_rng(1)
    stated, found = largest_move(task, rule), 0.0
    assert rule.scaling is not None
    values, vectors = np.linalg.eigh(rule.scaling.reference)
    root = (vectors * np.sqrt(values)) @ vectors.T
    for _ in range(60):
        # of the reference, some directions have nothing and the others far too much
        basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
        shares = np.where(rng.random(size) < 0.5, 0.0, 10 ** rng.uniform(0, 3, size))
        curvature = root @ (basis * shares) @ basis.T @ root
        found = max(found, moved_by(task, SgdPath(rule), curvature))
    assert 0.7 * stated < found <= stated


def moved_by(task: Task, path: SgdPath, curvature: np.ndarray) -> float:
    """Return how far the largest release moves a path for which this curvature was released."""
    size, slots, records, scaling = task.size, task.slots, path.rule.unit, path.rule.scaling
    assert scaling is not None
    while scaling.is_guess(records):
        records = 2 * records + path.rule.unit
    for stretch in (path.rule.burn_in, records):
        count = -(-stretch // slots)
        extra = np.tile(slots * pack_upper(curvature), (count, 1))
        path.fold(np.zeros((count, slots, size)), np.zeros((count, size)), extra=extra)
    before, matrix = path.theta, path.matrix
    assert matrix is not None
    worst = matrix[np.abs(matrix).sum(axis=1).argmax()]
    gradients = np.tile(np.sign(worst) * task.largest_gradient, (1, slots, 1))
    path.fold(gradients, np.zeros((1, size)), extra=np.zeros((1, path.rule.extra)))
    return float(np.abs(path.theta - before).max())


def test_few_records_have_no_interval_without_noise_either() -> None:
    task = task_of(
        mechanism="none", records=2, path='burn_in = 10, releases = "gradients+curvature"'
    )
    run, rows = OfflineRun(task), rows_of(task, *drawn("linear", 10 + 10 * task.size, 1))
    for start in range(0, len(rows) - 2, 2):
        run.add("honest", rows[start : start + 2])
    few = run.estimate(0.0)[0]
    assert few.status == "warming"
    assert f"need {10 * task.size} records behind the burn-in; {10 * task.size - 2}" in few.reason
    run.add("honest", rows[-2:])
    assert "behind the burn-in" not in run.estimate(0.0)[0].reason


def forged(task: Task, entry: LogEntry, seq: int) -> LogEntry:
    """Return a release of another client with the largest number in every place."""
    largest = math.floor(task.channels.gradient.largest(1))
    made = edited(task, entry.value or b"", client="evil", seq=seq, sums=largest)
    return LogEntry(0, b"evil", made, timestamp=1)


def test_the_largest_release_moves_the_path_as_far_as_stated_and_others_lead_it_back() -> None:
    task = task_of(path="burn_in = 0, behind = 0", records=50, epsilon=18.163)
    rows = rows_of(task, *drawn("linear", 10_000, 1))
    windows = [rows[start : start + 50] for start in range(0, 10_000, 50)]
    [entry] = log_of(task, 1)
    run, truth = OfflineRun(task), TRUTH / task.response_scale[1]
    for window in windows[:20]:
        run.add("honest", window)
    before = path_of(run.partition).theta
    evil = replace(forged(task, entry, 0), offset=20)
    assert Reducer(task).fold(run.partition, [evil]) == []
    hit = path_of(run.partition).theta
    stated = largest_move(task, rule_of(task))
    assert np.all(np.abs(hit - before) <= stated)
    # steps have not shrunk much by then
    assert np.all(np.abs(hit - before) > 0.3 * stated)
    for window in windows[20:]:
        run.add("honest", window)
    held = path_of(run.partition)
    assert held.diverged is None
    assert np.linalg.norm(held.theta - truth) < 0.1 * np.linalg.norm(hit - truth)
    # a number more, and the release is set aside
    numbers = numbers_of(task, evil.value or b"")
    beyond = edited(task, evil.value or b"", sums=numbers + 1)
    assert fed(task, [LogEntry(0, b"evil", beyond)])[1] == ["out-of-range"]


def test_a_path_that_a_hostile_client_has_stopped_goes_on_without_that_client() -> None:
    """Nothing bounds how many releases a client sends; erasing it folds the log without it."""
    task = task_of(mechanism="none", records=5, estimator="residual_bound = 20",
                   path="eta0 = 1e12, alpha = 0.51, curvature = 1e-9, behind = 0")  # fmt: skip
    log = log_of(task, 3)
    largest = task.largest_gradient
    evil = edited(task, log[0].value or b"", client="evil", seq=0, sums=largest)
    partition, reasons = fed(task, [LogEntry(0, b"evil", evil)])
    assert reasons == []
    assert path_of(partition).diverged == 0
    _, message = combine(task, {0: partition}, topic=None, model_version=None, published_at=0.0)
    assert (message.status, "state forget" in message.reason) == ("warming", True)
    rest = Partition.empty(task, frozenset({"evil"}))
    entry = LogEntry(0, b"evil", evil)
    assert Reducer(task).fold(rest, [entry]) == []
    assert rest.head.erased == 1
    assert not rest.sums.states
