"""Studies of locally private gradients: estimates, what leaves, bad settings and bad clients."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr

from pipeline.api.table import information_line
from pipeline.errors import ConfigError, StateError
from pipeline.linalg import pack_upper
from pipeline.messages.estimate import read_estimate, write_estimate
from pipeline.messages.release import MAX_RELEASE_BYTES
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd.client import bounded_gradients, record_gradients
from pipeline.methods.ldp_sgd.plan import largest_move
from pipeline.methods.ldp_sgd.state import LARGEST, SgdPath, SgdState
from pipeline.methods.ldp_sgd.step_rule import allowed_lateness, rule_of
from pipeline.privacy.accounting import total_epsilon, total_mu
from pipeline.records.encoder import Row
from pipeline.release.model import COEFFICIENT_LIMIT, Model, round_model
from pipeline.release.task import Task, form_of
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, SeededStream, relogged
from tests.builders import study_text as renewable
from tests.sgd import TRUTH, drawn, folded, log_of, path_of, rows_of, streamed, study_text, task_of
from tests.wire import edited, numbers_of

LINEAR = task_of()


# --- the stream


def test_weights_of_a_small_radius_shrink_the_curvature_and_so_the_caps() -> None:
    """At a squared norm of 2 the cap is kappa H mu^2 / (2 d^2) too, but for the rounding."""
    for clipping_norm in (math.sqrt(2), math.sqrt(11)):
        path = f"clipping_norm = {clipping_norm}, kappa = 0.25, curvature = 0.8, behind = 0"
        task = task_of(p=10, path=path, records=1)
        wanted = 0.25 * 0.8 * 2**2 / (2 * 11**2)
        assert rule_of(task).steps.cap == pytest.approx(wanted, rel=0.02)


def test_a_stored_path_of_another_form_is_refused() -> None:
    task = task_of(path="burn_in = 0")
    fields = folded(task, log_of(task, 4), []).sums.encode()
    [name] = fields
    for damaged in (b"", fields[name][:-1], b"\x00" * 40, fields[name] + b"\x00"):
        with pytest.raises(StateError, match="rebuild"):
            SgdState.decode(rule_of(task), {"path": damaged})
    with pytest.raises(StateError, match="rebuild"):
        SgdState.decode(rule_of(task_of(p=2)), {"path": fields[name]})
    with pytest.raises(StateError, match="path"):
        SgdState.decode(rule_of(task), {"other": b""})
    # the rhythm of models may change while a study runs, and the cap of the steps with it
    other = task_of(path="burn_in = 0", publish=400)
    assert other.revision == task.revision
    assert rule_of(other).steps.cap < rule_of(task).steps.cap
    with pytest.raises(StateError, match="rebuild"):
        SgdState.decode(rule_of(other), {"path": fields[name]})


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "none"])
@pytest.mark.parametrize("releases", ["gradients", "gradients+curvature"])
def test_windows_whose_release_could_not_be_sent_are_refused(mechanism: str, releases: str) -> None:
    path = f'releases = "{releases}"'
    with pytest.raises(ConfigError, match=r"window\.records.* at most \d+$") as refused:
        task_of(p=99, mechanism=mechanism, path=path, records=20_000)
    most = int(str(refused.value).split()[-1])
    size = form_of(task_of(p=99, mechanism=mechanism, path=path, records=most)).dtype.itemsize
    # room for the longest key, and for headers; none for one more record and as much again
    assert size + 2000 < MAX_RELEASE_BYTES < size + 2 * 100 * 8 + 4096
    with pytest.raises(ConfigError, match=f"at most {most}$"):
        task_of(p=99, mechanism=mechanism, path=path, records=most + 1)


def test_staleness_is_how_many_records_came_since_the_model() -> None:
    task = task_of(path="burn_in = 0")
    found = streamed(task, 4000, 1).estimate(0.0)[0]
    assert found.staleness == 0.0
    late = task_of(path="burn_in = 0", publish=4)
    # models after every fourth release: 0, 1, 2, 3 releases late in turn
    assert streamed(late, 4000, 1).estimate(0.0)[0].staleness == pytest.approx(1.5 * 20)
    assert allowed_lateness(late) == 2 * 20 * 4


@pytest.mark.slow
def test_models_that_are_too_late_are_named() -> None:
    task = task_of(path="burn_in = 100, behind = 5, curvature = 0.3", publish=2, records=20)
    _, message = streamed(task, 12_000, 3).estimate(0.0)
    assert message.status == "ready"
    assert "late on average" in message.reason
    assert message.diagnostics.staleness == pytest.approx(10.0, rel=1e-2)


def test_an_estimate_shows_all_intervals_side_by_side() -> None:
    steps = "behind = 0"
    linear = task_of(path=steps, publish=5, epsilon=18.163, records=50)
    run = streamed(linear, 20_000, 4)
    _, message = run.estimate(0.0)
    assert message.status == "ready", message.reason
    assert set(message.intervals) == {"random-scaling", "plug-in"}
    assert message.interval_method == "random-scaling"
    assert [c.interval for c in message.coefficients] == message.intervals["random-scaling"]
    assert read_estimate(write_estimate(message)) == message
    widths = {name: [b - a for a, b in ends] for name, ends in message.intervals.items()}
    # the plug-in is the shorter one on average, by a factor of 1.30 in the limit
    assert np.mean(widths["plug-in"]) < 1.2 * np.mean(widths["random-scaling"])
    # which interval a study shows changes no release, and so no state
    other = task_of(path=f'{steps}, interval = "plug-in"', publish=5, epsilon=18.163, records=50)
    assert other.revision == linear.revision
    _, plug = combine(other, {0: run.partition}, topic=None, model_version=1, published_at=0.0)
    assert [c.interval for c in plug.coefficients] == plug.intervals["plug-in"]
    # of records that depend on each other random scaling knows, and the plug-in does not
    assert plug.details == {"design_effect": None}
    assert "(no design effect)" in information_line(plug)
    assert "design_effect" not in message.details
    assert "design effect" not in information_line(message)


def test_nothing_and_little_have_a_status_of_their_own() -> None:
    assert streamed(LINEAR, 0, 1).estimate(0.0)[1].status == "empty"
    early = streamed(LINEAR, 200, 1).estimate(0.0)[1]
    assert (early.status, early.intervals) == ("starting", {})
    assert "1000" in early.reason
    little = streamed(LINEAR, 1500, 1).estimate(0.0)[1]
    assert little.status == "warming"
    assert "relaxation times of its slowest coefficient" in little.reason
    assert all(c.interval is None for c in little.coefficients)


@pytest.mark.parametrize("loss", [pytest.param("linear", marks=pytest.mark.slow), "logistic"])
def test_the_estimate_is_close_to_the_truth(loss: str) -> None:
    held = {"linear": "alpha = 0.501, eta0 = 2", "logistic": 'releases = "gradients+curvature"'}
    task = task_of(loss=loss, epsilon=18.163, path=held[loss], records=50, publish=3)
    _, message = streamed(task, 25_000, 5).estimate(0.0)
    assert message.status == "ready", message.reason
    for row, truth in zip(message.coefficients, TRUTH, strict=True):
        assert row.standard_error is not None
        assert abs(row.value - truth) < 5 * row.standard_error


# --- what leaves


def test_exact_gradients_are_the_gradients() -> None:
    task = task_of(path="clipping_norm = 1.5")
    features, responses = drawn("linear", 20, 3)
    encoded = np.array([row.response for row in rows_of(task, features, responses)])
    model = round_model(1, np.array([0.1, 0.05, -0.04, 0.02]), (1.0, 1.0))
    wanted = record_gradients(task, features, encoded, model)
    sums = bounded_gradients(task, features, encoded, model).gradient
    found = np.ldexp(sums.integers.astype(float), sums.exponents).reshape(20, 4)
    assert_allclose(found, wanted, atol=2e-7)
    # weights: a record of norm 2 counts with 1.5^2 / 2^2
    full = task_of(path="clipping_norm = 2.0")
    assert_allclose(wanted, record_gradients(full, features, encoded, model) * 0.5625)


@pytest.mark.parametrize("records", [1, 7, 400])
def test_a_users_records_compose_to_the_budget_wherever_they_stand(records: int) -> None:
    """Noise of its own for each: the gradients of all of them together are root m times 2B apart.

    The formula of delta is that of one Gaussian mechanism with this distance, and no other.
    """
    user = f'neighbours = "replace-one"\nunit = "user"\nrecords = {records}'
    for records_of_a_window in (1, 20):
        text = study_text(epsilon=3.0, records=records_of_a_window)
        task = make_task(parse_study(text.replace('neighbours = "replace-one"', user)))
        apart = 2 * task.clipping_norm * task.loss.slope_bound * math.sqrt(records)
        mu = apart / task.channels.gradient.standard_deviation
        # rounding to the lattice costs up to a 256th of the sensitivity
        assert mu == pytest.approx(task.budget.guarantee.mu, rel=1 / 250)
        assert mu <= task.budget.guarantee.mu
        found = ndtr(mu / 2 - 3 / mu) - math.exp(3) * ndtr(-mu / 2 - 3 / mu)
        assert 0.9e-6 < found <= 1e-6
        assert total_mu([task.budget.of_unit(task.budget.event)]) == pytest.approx(
            task.budget.guarantee.mu
        )


@pytest.mark.parametrize("releases", ["gradients+curvature", "gradients+curvature+products"])
@pytest.mark.parametrize("records", [1, 4, 30])
def test_a_users_records_in_one_window_share_the_noise_of_its_matrices(
    records: int, releases: str
) -> None:
    """A window's sums have one noise for all of them: there the distance grows with their number.

    Gradients have a noise for each record, and their distance grows as the root; the delta is that
    of one Gaussian mechanism with all distances together.
    """
    user = f'neighbours = "replace-one"\nunit = "user"\nrecords = {records}'
    text = study_text(epsilon=3.0, path=f'clipping_norm = 1.5, releases = "{releases}"')
    task = make_task(parse_study(text.replace('neighbours = "replace-one"', user)))
    step, square = task.channels, 1.5**2
    apart = [(2 * 1.5 * task.loss.slope_bound * math.sqrt(records), step.gradient)]
    apart += [(math.sqrt(2) * square * task.loss.curvature_bound * records, step.curvature)]
    apart += [(math.sqrt(2) * square * task.loss.slope_bound**2 * records, step.products)]
    mu = math.hypot(*(far / part.standard_deviation for far, part in apart if part is not None))
    found = ndtr(mu / 2 - 3 / mu) - math.exp(3) * ndtr(-mu / 2 - 3 / mu)
    assert found <= 1e-6
    # the gradients could have a little less noise: the budget is split as if they shared theirs
    alone = [far * (records**0.5 if i == 0 else 1) for i, (far, _) in enumerate(apart)]
    whole = math.hypot(
        *(far / part.standard_deviation for far, (_, part) in zip(alone, apart, strict=True)
          if part is not None)
    )  # fmt: skip
    assert whole == pytest.approx(task.budget.guarantee.mu, rel=1 / 200)


def test_pure_epsilons_of_a_users_records_add_up() -> None:
    user = 'neighbours = "replace-one"\nunit = "user"\nrecords = 10'
    text = study_text(mechanism="discrete-laplace", epsilon=2.0)
    task = make_task(parse_study(text.replace('neighbours = "replace-one"', user)))
    assert task.budget.per_record == pytest.approx(0.2)
    assert total_epsilon([task.budget.of_unit(task.budget.event)], 0.0) == pytest.approx(2.0)


def test_a_record_that_cannot_be_used_moves_no_other_gradient() -> None:
    task = task_of(records=4, mechanism="insecure-simulation")
    rows = rows_of(task, *drawn("linear", 4, 3))

    def gradients(slots: list[Row | None]) -> np.ndarray:
        # the noise of the same release of a simulation is the same
        payload = release_of(task, slots, task.first_model, client="a", ledger="l", seq=0)
        return numbers_of(task, payload).reshape(4, -1)

    whole, holed = gradients([*rows]), gradients([rows[0], None, *rows[2:]])
    assert (whole[[0, 2, 3]] == holed[[0, 2, 3]]).all()
    assert (whole[1] != holed[1]).any()
    # and its own slot holds the noise alone
    assert (holed[1] == gradients([])[1]).all()


# --- bad input


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"estimator": ""}, "residual_bound"),
        ({"path": "steps = 3"}, "steps"),
        ({"path": 'interval = "t"'}, "interval"),
        ({"partitions": 2}, "partitions"),
        ({"estimator": "residual_bound = 1\nnorm_bound = 2.0"}, "norm_bound"),
        ({"estimator": 'residual_bound = 1\nforgetting = { half_life = 10, of = "records" }'},
         "forgetting"),
        ({"loss": "expectile", "estimator": "residual_bound = 1\ntau = 1.0"}, "tau"),
        ({"loss": "linear", "estimator": "residual_bound = 1\ntau = 0.5"}, "tau"),
        ({"loss": "logistic", "estimator": "class_weights = { maximum = 3 }"}, "class_weights"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_path_is_refused_by_name(
    settings: dict[str, object], key: str
) -> None:
    with pytest.raises(ConfigError, match=key):
        parse_study(study_text(**settings))  # type: ignore[arg-type]


def test_all_that_another_kind_has_is_refused_at_once() -> None:
    text = renewable(loss="logistic")
    assert parse_study(text).stream.partitions > 1
    text = text.replace("[estimator]", '[estimator]\nkind = "ldp-sgd"')
    with pytest.raises(ConfigError) as refused:
        parse_study(text)
    for key in ("estimator.ridge", "privacy.neighbours", "stream.partitions"):
        assert key in str(refused.value)
    # a ridge that the file has not is none, and is not spoken of
    lines = [line for line in text.splitlines() if not line.startswith("ridge")]
    with pytest.raises(ConfigError) as refused:
        parse_study("\n".join(lines))
    assert "ridge" not in str(refused.value)
    plain = study_text().replace("ridge = 0\n", "")
    assert parse_study(plain) == parse_study(study_text())
    assert parse_study(plain).estimator.ridge == 0


def test_the_revision_knows_the_steps_and_not_which_interval_is_shown() -> None:
    base = task_of(path="eta0 = 1.0").revision
    assert task_of(path='eta0 = 1.0, interval = "plug-in"').revision == base
    assert task_of(path="eta0 = 2.0").revision != base


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
        ({"path": "eta0 = 0"}, "estimator.path.eta0", "more than 0"),
        ({"path": "eta0 = 1e13"}, "estimator.path.eta0", "at most 1"),
        ({"path": "clipping_norm = 0"}, "estimator.path.clipping_norm", "more than 0"),
        ({"path": "kappa = 0.0"}, "estimator.path.kappa", "more than 0"),
        ({"epsilon": 0}, "privacy.epsilon", "at least 0.0001"),
        ({"epsilon": 21}, "privacy.epsilon", "at most 20"),
        ({"records": 0}, "window.records", "at least 1"),
        ({"estimator": "residual_bound = 1\nlevel = 0"}, "estimator.level", "at least 0.01"),
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
