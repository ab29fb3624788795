"""Studies of kind "ldp-sgd" from file to estimate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.special import ndtr

from pipeline.api.table import information_line
from pipeline.errors import ConfigError, PayloadError, PrivacyError, StateError
from pipeline.messages.estimate import read_estimate, write_estimate
from pipeline.messages.release import MAX_RELEASE_BYTES
from pipeline.methods import server_of
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd.client import bounded_gradients, record_gradients
from pipeline.methods.ldp_sgd.state import SgdState
from pipeline.methods.ldp_sgd.step_rule import allowed_lateness, rule_of
from pipeline.privacy.accounting import total_epsilon, total_mu
from pipeline.records.encoder import Row
from pipeline.release.model import Model, round_model
from pipeline.release.task import form_of
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, relogged
from tests.builders import study_text as renewable
from tests.sgd import TRUTH, drawn, folded, log_of, rows_of, streamed, study_text, task_of
from tests.wire import as_rows, numbers_of, valued

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


def test_the_path_is_that_of_the_formula() -> None:
    """theta_i = theta_{i-1} - eta_i g_i, release by release, from the bytes on the log."""
    task = task_of(path="burn_in = 0, eta0 = 0.5, alpha = 0.6, behind = 0")
    log = log_of(task, 10)
    state = folded(task, log, [])
    rows = server_of(task)
    batch = rows.batch(as_rows(task, [entry.value for entry in log]))  # type: ignore[attr-defined]
    steps, theta = rule_of(task).steps, np.zeros(task.size)
    for i, gradient in enumerate(batch.gradients.reshape(-1, task.size), start=1):
        theta = theta - min(0.5 * i**-0.6, steps.cap) * gradient
    [path] = next(iter(state.sums.states.values())).paths  # type: ignore[union-attr]
    assert_allclose(path.theta, theta, rtol=1e-12)


def test_staleness_is_how_many_records_came_since_the_model() -> None:
    task = task_of(path="burn_in = 0")
    found = streamed(task, 4000, 1).estimate(0.0)[0]
    assert found.staleness == 0.0
    late = task_of(path="burn_in = 0", publish=4)
    # models after every fourth release: 0, 1, 2, 3 releases late in turn
    assert streamed(late, 4000, 1).estimate(0.0)[0].staleness == pytest.approx(1.5 * 20)
    assert allowed_lateness(late) == 2 * 20 * 4


def test_models_that_are_too_late_are_named() -> None:
    task = task_of(path="burn_in = 100, behind = 5, curvature = 0.3", publish=2, records=20)
    _, message = streamed(task, 30_000, 3).estimate(0.0)
    assert message.status == "ready"
    assert "late on average" in message.reason
    assert message.diagnostics.staleness == pytest.approx(10.0, rel=1e-2)


def test_an_estimate_shows_all_intervals_side_by_side() -> None:
    linear = task_of(publish=5)
    run = streamed(linear, 60_000, 4)
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
    other = task_of(path='interval = "plug-in"', publish=5)
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
    count = 60_000
    _, message = streamed(task, count, 5).estimate(0.0)
    assert message.status == "ready", message.reason
    for row, truth in zip(message.coefficients, TRUTH, strict=True):
        assert row.standard_error is not None
        assert abs(row.value - truth) < 5 * row.standard_error


@pytest.mark.slow
def test_without_privacy_the_plug_in_is_that_of_the_sandwich() -> None:
    task = task_of(mechanism="none", path="behind = 0", records=20, publish=5)
    found = streamed(task, 60_000, 6).estimate(0.0)[0]
    errors = found.standard_errors()
    assert errors is not None
    c, sd, n = 0.06725, 0.05, found.effective_records or 0.0
    kept = stats.norm.cdf(c / sd) - stats.norm.cdf(-c / sd)
    z = stats.truncnorm(-c / sd, c / sd, scale=sd)
    second = kept * z.var() + (1 - kept) * c**2
    assert_allclose(errors[0], math.sqrt(second / n) / kept, rtol=0.25)
    assert np.all(errors[2] == 0)


def covered(seeds: range, *, shrink: float = 1.0) -> float:
    """Return the share of intervals that hold the truth, over streams and coefficients."""
    hits = []
    for seed in seeds:
        task = task_of(mechanism="insecure-simulation", seed=seed, records=25, path="behind = 25")
        found = streamed(task, 25_000, seed).estimate(0.0)[0]
        assert found.status == "ready", found.reason
        half = found.widths["random-scaling"](0.95) * 10 * shrink  # type: ignore[index]
        hits.append(np.abs(found.coefficients * 10 - TRUTH) <= half)
    return float(np.mean(hits))


@pytest.mark.slow
def test_random_scaling_covers_as_stated_and_a_broken_one_does_not() -> None:
    seeds = range(100, 200)
    # coefficients of one stream are nearly independent: the features are
    reach = 4 * math.sqrt(0.95 * 0.05 / (4 * len(seeds)))
    assert abs(covered(seeds) - 0.95) < reach + 0.005
    assert covered(seeds, shrink=0.5) < 0.95 - reach


# --- what leaves


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "discrete-laplace"])
@pytest.mark.parametrize("clipping_norm", ["", "clipping_norm = 1.2"])
@pytest.mark.parametrize("loss", ["linear", "logistic", "expectile"])
def test_no_two_records_are_further_apart_than_stated(
    loss: str, clipping_norm: str, mechanism: str
) -> None:
    extra = {"expectile": "residual_bound = 0.5\ntau = 0.8"}.get(loss)
    task = task_of(loss=loss, path=clipping_norm, mechanism=mechanism, records=2, estimator=extra)
    part, rng, most = task.channels.gradient, np.random.default_rng(1), 0.0
    for _ in range(400):
        features = rng.uniform(-1.5, 1.5, (2, 3))
        if rng.random() < 0.5:
            features = np.sign(features)
        if rng.random() < 0.5:
            features[1] = features[0]
        responses = rng.choice([-1.0, 1.0], 2)
        lattice = np.rint(rng.normal(0, 10.0 ** rng.uniform(0, 7), 4)).astype(np.int64)
        model = Model(1, np.clip(lattice, -(2**24), 2**24), (1024, 1024))
        sums = bounded_gradients(task, features, responses, model)
        one, two = part.round(sums.gradient.integers, sums.gradient.exponents).reshape(2, 4)
        apart = (
            np.linalg.norm(one - two, task.budget.mechanism.order) * part.unit / part.sensitivity
        )
        most = max(most, float(apart))
    assert 0.5 < most <= 1.0


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


def test_a_window_with_empty_slots_has_the_same_length_and_no_number_of_records() -> None:
    task = task_of(records=5)
    features, responses = drawn("linear", 3, 1)
    rows = rows_of(task, features, responses)
    for count in (0, 1, 3):
        payload = release_of(task, rows[:count], task.first_model, client="a", ledger="l", seq=0)
        assert Reducer(task).fold(Partition.empty(task), [LogEntry(0, b"a", payload)]) == []
        assert len(payload) == len(
            release_of(task, [], task.first_model, client="a", ledger="l", seq=0)
        )
    with pytest.raises(PrivacyError, match="window"):
        bounded_gradients(task, np.zeros((6, 3)), np.zeros(6), task.first_model)


def test_the_noise_is_that_of_one_record() -> None:
    task = task_of(epsilon=4.887)
    # mu = 1 at (4.887, 1e-6): twice the largest norm, less what rounding takes
    largest = task.clipping_norm * task.loss.slope_bound
    assert task.channels.gradient.standard_deviation == pytest.approx(2 * largest, rel=2e-3)


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


def test_releases_out_of_range_or_of_another_form_are_dead_letters() -> None:
    task = task_of(records=5)
    [entry] = log_of(task, 1)
    other = task_of(records=4, name="path")
    [wrong] = log_of(other, 1)
    letters = Reducer(task).fold(Partition.empty(task), [wrong])
    assert [letter.fault.reason for letter in letters] == ["wrong-revision"]
    assert isinstance(letters[0].fault, PayloadError)
    assert Reducer(task).fold(Partition.empty(task), [entry]) == []


def test_a_client_that_sends_no_number_is_set_aside_and_changes_nothing() -> None:
    task = task_of(mechanism="none", records=5, path="burn_in = 0")
    log = log_of(task, 3)
    spoilt = valued(task, log[1].value or b"", "gradient", np.nan, 7)
    entries = relogged([log[0], LogEntry(1, b"a", spoilt, timestamp=1), log[2]])
    partition = Partition.empty(task)
    letters = Reducer(task).fold(partition, entries)
    assert [letter.fault.reason for letter in letters] == ["out-of-range"]
    [path] = next(iter(partition.sums.states.values())).paths  # type: ignore[union-attr]
    assert path.releases == 2
    assert np.isfinite(path.theta).all()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"estimator": ""}, "residual_bound"),
        ({"path": "alpha = 0.5"}, "alpha"),
        ({"path": "alpha = 1.1"}, "alpha"),
        ({"path": "eta0 = 0"}, "eta0"),
        ({"path": "eta0 = -1"}, "eta0"),
        ({"path": "burn_in = -1"}, "burn_in"),
        ({"path": "steps = 3"}, "steps"),
        ({"path": 'interval = "t"'}, "interval"),
        ({"partitions": 2}, "partitions"),
        ({"estimator": "residual_bound = 1\nlevel = 1.0"}, "level"),
        ({"estimator": "residual_bound = 1\nlevel = 0.0"}, "level"),
        ({"estimator": "residual_bound = 1\nnorm_bound = 2.0"}, "norm_bound"),
        ({"estimator": 'residual_bound = 1\nforgetting = { half_life = 10, of = "records" }'},
         "forgetting"),
        ({"loss": "expectile", "estimator": "residual_bound = 1\ntau = 1.0"}, "tau"),
        ({"loss": "linear", "estimator": "residual_bound = 1\ntau = 0.5"}, "tau"),
        ({"loss": "logistic", "estimator": "class_weights = { maximum = 3 }"}, "class_weights"),
        ({"epsilon": 0}, "epsilon"),
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


def test_keys_of_a_path_belong_to_its_kind_alone() -> None:
    text = study_text()
    for old, new, key in (
        ('kind = "ldp-sgd"', 'kind = "renewable"', "estimator.path"),
        ("ridge = 0", "ridge = 0.1", "estimator.ridge"),
        ('neighbours = "replace-one"', 'neighbours = "zero-out"', "privacy.neighbours"),
        ('loss = "linear"', 'loss = "poisson"', "estimator.loss"),
    ):
        with pytest.raises(ConfigError, match=key):
            parse_study(text.replace(old, new))
    allowed = 'estimator.loss: kind = "renewable" has gdwd, logistic, linear, poisson'
    with pytest.raises(ConfigError, match=allowed):
        parse_study(
            text.replace('kind = "ldp-sgd"\nloss = "linear"', 'loss = "expectile"').replace(
                'path = { releases = "gradients" }\n', ""
            )
        )


def test_a_path_that_leaves_its_range_is_named_and_kept() -> None:
    task = task_of(mechanism="none", path="eta0 = 1e12, alpha = 0.51, curvature = 1e-9, behind = 0",
                   estimator="residual_bound = 20", records=5)  # fmt: skip
    run = streamed(task, 2000, 1)
    _, message = run.estimate(0.0)
    assert message.status == "warming"
    assert "eta0" in message.reason
    assert all(math.isfinite(c.value) for c in message.coefficients)
