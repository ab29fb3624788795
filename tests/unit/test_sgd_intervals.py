"""Intervals of locally private gradients: what they are read from and hold, and what plans say."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from numpy.testing import assert_allclose
from rich.console import Console
from scipy.special import expit
from scipy.stats import norm

from benchmarks import plans
from benchmarks.limit_law import standard_errors
from benchmarks.sgd_intervals import ROWS, Design, GradientStream, Row, design_of
from pipeline.api.check import check_study
from pipeline.api.planning import proposed, verdict
from pipeline.api.table import intervals_table
from pipeline.errors import ConfigError, NumericError
from pipeline.estimators.population import Population, target_of
from pipeline.linalg import pack_upper, sandwich, unpack_upper
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.release import read
from pipeline.methods import method_of
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd import plug_in
from pipeline.methods.ldp_sgd.client import (
    GradientTask,
    bounded_gradients,
    open_gradients,
    record_gradients,
)
from pipeline.methods.ldp_sgd.intervals import mean_point, straightened
from pipeline.methods.ldp_sgd.plan import due, exact, of_residuals, records_needed, slope_error
from pipeline.methods.ldp_sgd.plug_in import PlugIn, PooledPlugIn, moved, width_errors
from pipeline.methods.ldp_sgd.readiness import bend, distance, relaxations
from pipeline.methods.ldp_sgd.spec import INTERVALS
from pipeline.methods.ldp_sgd.state import Sums
from pipeline.methods.ldp_sgd.step_rule import Scaling, mean_products, rule_of
from pipeline.records.blocks import with_intercept
from pipeline.release.model import round_model
from pipeline.release.task import Task
from pipeline.simulate.coverage import simulated
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.builders import LogEntry, relogged
from tests.sgd import (
    drawn,
    folded,
    log_of,
    path_of,
    rows_of,
    streamed,
    study_text,
    task_of,
    task_of_text,
)
from tests.wire import valued

ALL = 'releases = "gradients+curvature+products"'
CURVED = 'releases = "gradients+curvature"'


def split_numbers(task: GradientTask, entry: LogEntry) -> list[np.ndarray]:
    """Return gradients, curvature and products of a release in real units, from its bytes."""
    parts = read(task, entry.value or b"").parts
    return [2.0**field.exponent * parts[field.name] for field in task.layout.later]


def quick(path: str, mechanism: str = "discrete-gaussian") -> GradientTask:
    """Return a study of mu = 3 whose path mixes within some hundred releases."""
    return task_of(path=f"{path}, behind = 0", mechanism=mechanism, epsilon=18.163, records=50)


def printed(message: EstimateMessage, task: Task) -> str:
    """Return the table of all intervals as text."""
    console = Console(width=400, file=io.StringIO(), record=True)
    console.print(intervals_table(message, task.study))
    return console.export_text()


# --- what is released


@pytest.mark.parametrize("loss", ["linear", "logistic", "expectile"])
def test_exact_matrices_are_the_sums_over_the_window(loss: str) -> None:
    extra = {"expectile": "residual_bound = 0.5\ntau = 0.8"}.get(loss)
    task = task_of(loss=loss, path=f"clipping_norm = 1.5, {ALL}", estimator=extra, records=30)
    features, said = drawn(loss, 20, 3)
    features = features * np.random.default_rng(1).uniform(0, 1, features.shape)
    responses = np.array([row.response for row in rows_of(task, features, said)])
    model = round_model(1, np.array([0.1, 0.05, -0.04, 0.02]), (1.0, 1.0))
    design = np.column_stack([np.ones(20), features])
    weights = np.minimum(1, 1.5**2 / (design**2).sum(axis=1))
    bend = weights * task.loss.curvature(design @ model.coefficients, responses)
    gradients = record_gradients(task, features, responses, model)
    wanted = ((design * bend[:, None]).T @ design, gradients.T @ gradients)
    sums = bounded_gradients(task, features, responses, model)
    bounds = (task.loss.curvature_bound, task.loss.slope_bound**2)
    for whole, matrix, bound in zip((sums.curvature, sums.products), wanted, bounds, strict=True):
        assert whole is not None
        found = np.ldexp(whole.integers.astype(float), whole.exponents)
        # each record loses 2^-12 of both entries and 2^-14 of a factor, whose bound is rounded up
        assert_allclose(found, pack_upper(matrix), rtol=0, atol=20 * 2 * bound * 2.25 * 2**-11)
    shown = open_gradients(task, features, responses, model)
    # weights stay 2^-40 below the bound; entries are sums of 20 numbers of at most 2.25
    assert_allclose(shown.curvature, wanted[0], rtol=0, atol=20 * 2.25 * 2**-40)
    assert_allclose(shown.products, wanted[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("releases", [CURVED, ALL])
def test_the_noise_is_that_of_the_formula_and_costs_add_up_to_the_budget(releases: str) -> None:
    """Diagonal sqrt 2 B_H / mu_h, beside it B_H / mu_h; the same of B^2 for products."""
    task = task_of(epsilon=4.887, path=f"clipping_norm = 1.5, {releases}")
    step, parts = task.channels, task.budget.allocation
    square = task.clipping_norm**2
    wanted = {
        "gradients": 2 * task.clipping_norm * task.loss.slope_bound,
        "curvature": math.sqrt(2) * square,
        "products": math.sqrt(2) * square * task.loss.slope_bound**2,
    }
    found = {"gradients": step.gradient, "curvature": step.curvature, "products": step.products}
    for name, part in found.items():
        if name not in parts:
            assert part is None
            continue
        assert part is not None
        # rounding takes at most one part in 256
        ratio = part.standard_deviation * parts[name] / wanted[name]
        assert 1 <= ratio < 1 + 1 / 256 + 1e-6
    assert step.curvature is not None
    assert step.off_diagonal is not None
    assert step.off_diagonal.standard_deviation == pytest.approx(
        step.curvature.standard_deviation / math.sqrt(2), rel=1e-6
    )
    # mu = 1 at (4.887, 1e-6), all parts of a record together
    assert math.hypot(*parts.values()) == pytest.approx(task.budget.event.mu, rel=1e-12)
    assert task.budget.event.mu == pytest.approx(1.0, abs=2e-4)
    assert task.budget.guarantee.mu == task.budget.event.mu


def test_a_curvature_takes_what_its_noise_needs_unless_the_study_says_more() -> None:
    few = {"gradients": 0.843, "curvature": 0.157}
    assert task_of(path=CURVED).shares == pytest.approx(few)
    many = task_of(path=CURVED, records=100, loss="logistic").shares
    assert many == pytest.approx({"gradients": 0.95, "curvature": 0.05})
    text = study_text(path=CURVED).replace(
        "[window]", "split = { gradient = 0.6, curvature = 0.2 }\n[window]"
    )
    assert task_of_text(text).shares == pytest.approx({"gradients": 0.75, "curvature": 0.25})
    third = pytest.approx(1 / 3)
    assert task_of(path=ALL).shares == {"gradients": third, "curvature": third, "products": third}
    laplace = task_of(path=ALL, mechanism="discrete-laplace", epsilon=3.0)
    assert sum(laplace.budget.allocation.values()) == pytest.approx(3.0)


def test_the_guarantee_says_what_each_part_costs_and_what_the_published_method_omits() -> None:
    assert "parts" not in task_of().budget.guarantee.guarantee
    assert "gradients 1.84, curvature 0.792" in task_of(path=CURVED).budget.guarantee.guarantee
    said = task_of(path=ALL).budget.guarantee.guarantee
    assert "gradients 1.15, curvature 1.15, products 1.15" in said
    assert "sqrt(3) mu-GDP" in said
    assert (
        "in epsilon" in task_of(path=ALL, mechanism="discrete-laplace").budget.guarantee.guarantee
    )


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("releases", ["gradients", "gradients+curvature"])
def test_an_interval_without_its_release_is_refused_with_the_way_out(
    interval: str, releases: str
) -> None:
    text = study_text(path=f'interval = "{interval}", releases = "{releases}"')
    if releases.startswith(INTERVALS[interval]):
        assert interval in task_of_text(text).path.intervals
        return
    with pytest.raises(ConfigError, match=r"estimator\.path\.interval") as refused:
        parse_study(text)
    assert f'releases = "{INTERVALS[interval]}"' in str(refused.value).replace("\\", "")
    assert "random-scaling" in str(refused.value)


def test_shares_of_three_equal_releases_cannot_be_chosen() -> None:
    text = study_text(path=ALL).replace("[window]", "split = { gradient = 0.7 }\n[window]")
    with pytest.raises(ConfigError, match=r"privacy\.split.*a third of the budget"):
        parse_study(text)


@pytest.mark.parametrize("gone", ["batch-means", "online-batch-means"])
def test_an_interval_that_there_is_not_is_refused_with_those_that_there_are(gone: str) -> None:
    allowed = r"estimator\.path\.interval: .*\"random-scaling\" or \"plug-in\""
    with pytest.raises(ConfigError, match=allowed):
        task_of(path=f'interval = "{gone}"')


# --- what is folded


def test_the_interval_of_a_released_curvature_is_its_sandwich_from_the_log() -> None:
    task = task_of(path=f"burn_in = 0, {ALL}", epsilon=18.163)
    log = log_of(task, 80)
    sums = path_of(folded(task, log, [])).sums
    parts = [split_numbers(task, entry) for entry in log]
    g = np.concatenate([part[0] for part in parts]).reshape(-1, task.size)
    n = len(g)
    a, s = (unpack_upper(sum(part[i] for part in parts) / n, task.size) for i in (1, 2))
    bread = np.linalg.inv(a)
    assert np.linalg.eigvalsh(a)[0] > plug_in.FLOOR * np.trace(a) / task.size
    one = plug_in.with_curvature([sums])
    assert one.floored == 0
    assert_allclose(one.covariance, bread @ (g.T @ g / n) @ bread / n, rtol=1e-8)
    values, vectors = np.linalg.eigh(s)
    noise = task.channels.gradient.standard_deviation**2
    middle = (vectors * np.maximum(values, 0)) @ vectors.T + noise * np.eye(task.size)
    beside = plug_in.published_middle(plug_in.released_mean([sums], 1), noise)
    three = plug_in.plug_in(plug_in.released_mean([sums], 0), beside, n)
    assert_allclose(three.covariance, bread @ middle @ bread / n, rtol=1e-8)


def test_without_noise_the_released_curvature_is_the_mean_over_the_stretch_that_counts() -> None:
    """Subtraction of the sums at a mark leaves what came after it."""
    task = task_of(mechanism="none", path=f"burn_in = 100, {ALL}", records=20)
    log = log_of(task, 450)
    path = path_of(folded(task, log, []))
    part = path.stretch()
    assert part.records < path.sums.records
    kept = [split_numbers(task, entry) for entry in log[-part.records // task.slots :]]
    for number in (0, 1):
        mean = sum(numbers[1 + number] for numbers in kept) / part.records
        found = plug_in.released_mean([part], number)
        assert_allclose(found, unpack_upper(mean, task.size), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e9])
@pytest.mark.parametrize("part", ["gradient", "curvature", "products"])
def test_a_matrix_of_no_numbers_or_too_large_ones_is_set_aside(value: float, part: str) -> None:
    task = task_of(mechanism="none", records=5, path=f"burn_in = 0, {ALL}")
    log = log_of(task, 3)
    spoilt = valued(task, log[1].value or b"", part, value, 0)
    entries = relogged([log[0], LogEntry(1, b"a", spoilt, timestamp=1), log[2]])
    partition = Partition.empty(task)
    letters = Reducer(task).fold(partition, entries)
    assert [letter.fault.reason for letter in letters] == ["out-of-range"]
    assert np.isfinite(path_of(partition).sums.extra).all()
    assert np.isfinite(path_of(partition).theta).all()


def test_a_noised_matrix_beyond_its_bound_is_set_aside_and_the_bound_is_not() -> None:
    task = task_of(records=5, path=ALL)
    [entry] = log_of(task, 1)
    for name in ("curvature", "products"):
        part = getattr(task.channels, name)
        bound = math.floor(part.largest(task.slots))
        for number, reasons in ((bound, []), (bound + 1, ["out-of-range"])):
            forged = valued(task, entry.value or b"", name, -number, 0)
            letters = Reducer(task).fold(Partition.empty(task), [LogEntry(0, b"a", forged)])
            assert [letter.fault.reason for letter in letters] == reasons


# --- what is shown


@pytest.mark.parametrize("taken", [1.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_a_curvature_below_its_noise_gives_no_interval_and_says_so(taken: float) -> None:
    """The mean curvature is 0.8 in all directions, and loses that of the intercept."""
    path = f"burn_in = 500, alpha = 0.501, eta0 = 20, {CURVED}"
    run = streamed(quick(path), 15_000, 2)
    held = path_of(run.partition)
    off = taken * held.sums.records * pack_upper(np.diag([1.0, 0.0, 0.0, 0.0]))
    held.sums = dataclasses.replace(held.sums, extra=held.sums.extra - off)
    for interval in ("random-scaling", "plug-in-curvature"):
        task = quick(f'{path}, interval = "{interval}"')
        _, message = combine(
            task, {0: run.partition}, topic=None, model_version=None, published_at=0.0
        )
        assert message.status == "ready", message.reason
        # not all coefficients have it
        assert "plug-in-curvature" not in message.intervals
        intercept, *others = message.coefficients
        assert all(row.interval for row in others)
        if interval == "plug-in-curvature":
            assert intercept.interval is None
            assert "no interval yet for 'intercept'" in message.reason
            assert "privacy.split.curvature" in message.reason
        else:
            assert intercept.interval is not None
            assert "plug-in-curvature: not known yet" in printed(message, task)


# --- the exact sandwich


GUESS = np.diag([1.0, 0.25])
CURVATURE = np.array([[0.9, 0.2], [0.2, 0.5]])


def test_the_matrix_is_the_inverse_of_what_is_known_and_of_the_guess_before() -> None:
    clear = Scaling(GUESS, 1.0, noise=0.01)
    assert_allclose(clear.matrix(CURVATURE, 1000), np.linalg.inv(CURVATURE), rtol=1e-8)
    assert_allclose(clear.first(), np.linalg.inv(GUESS), rtol=1e-8)
    drowned = Scaling(GUESS, 1.0, noise=100.0)
    assert_allclose(drowned.matrix(CURVATURE, 1000), drowned.first(), rtol=0)
    # a direction below the noise is raised to it, and no other
    low = Scaling(GUESS, 1.0, noise=1.0).known(np.diag([1.0, -0.1]), 1000)
    assert low.floored == 1
    assert low.curvature[0, 0] == pytest.approx(1.0)
    assert 0 < low.curvature[1, 1] < 0.25 * 0.5


def test_the_average_is_moved_to_where_a_path_would_come_to_rest() -> None:
    """Gradients are linear in their points: the minimum is found from points anywhere."""
    rng, minimum = np.random.default_rng(1), np.array([0.7, -0.4])
    u = rng.normal(5.0, 1.0, (400, 2))
    g = (u - minimum) @ CURVATURE
    sums = dataclasses.replace(
        Sums.zero(2, full=False, extra=3), records=400, g=g.sum(axis=0), u=u.sum(axis=0),
        extra=pack_upper(400 * CURVATURE),
    )  # fmt: skip
    found = moved([sums], np.eye(2), Scaling(GUESS, 1.0, noise=0.01))
    assert found.centre is not None
    assert_allclose(found.centre, minimum, rtol=1e-9)


def test_the_error_of_standard_errors_is_that_of_drawn_noise() -> None:
    rng, noise, middle = np.random.default_rng(2), 0.01, np.diag([1.0, 3.0])
    drawn = []
    for _ in range(4000):
        beside = rng.normal(0, noise / np.sqrt(2))
        error = np.array([[rng.normal(0, noise), beside], [beside, rng.normal(0, noise)]])
        bread = np.linalg.inv(CURVATURE + error)
        drawn.append(np.sqrt(np.diag(bread @ middle @ bread)))
    found = np.std(drawn, axis=0) / np.mean(drawn, axis=0)
    wanted = width_errors(np.linalg.inv(CURVATURE), middle, noise)
    # 4,000 draws know a deviation to 1.1 %: four errors, and the bend of the inverse
    assert_allclose(found, wanted, rtol=0.05)


def test_relaxation_times_are_those_of_each_coefficient() -> None:
    assert_allclose(relaxations(np.diag([2.0, 0.1]), None, 30.0), [60.0, 3.0], rtol=1e-9)
    # scaled by the inverse, all directions are alike, however they are correlated
    scaled = relaxations(CURVATURE, np.linalg.inv(CURVATURE), 30.0)
    assert_allclose(scaled, [30.0, 30.0], rtol=1e-9)


def off_by(design: Design, records: float, streams: int) -> np.ndarray:
    """Return by how much the intercepts of streams of so many records miss the target."""
    found = []
    for number in range(streams):
        rng = np.random.default_rng([3, number])
        run = GradientStream(design.task, rng)
        for _ in range(math.ceil(records / design.task.slots)):
            run.fold(*design.row.records(rng, design.task.slots, design.truth), 1)
            run.publish()
        found.append(run.estimate().coefficients[0] - design.target[0])
    return np.array(found)


def test_what_noise_bends_is_taken_off_and_counts_as_known_to_a_half() -> None:
    plain = PlugIn(CURVATURE, np.diag([0.04, 0.09]), 0, 100, np.array([1.0, 2.0]))
    bent = PooledPlugIn((plain,), np.array([0.4, -0.2]))
    assert bent.centre is not None
    assert_allclose(bent.centre, [0.6, 2.2])
    assert_allclose(bent.covariance, np.diag([0.04 + 0.2**2, 0.09 + 0.1**2]))
    # an expectile above the mean is bent upwards, one below it downwards, and a class outwards
    high, low = (bend_at(study_text(loss="expectile"), f"tau = {tau}") for tau in (0.8, 0.2))
    assert high[0] == -low[0] > 0
    assert not high[1:].any()
    assert_allclose(bend_at(study_text(loss="logistic")), 0.25 * 0.1 * POINT)


POINT = np.array([0.5, -1.0, 0.3, 0.0])


def bend_at(text: str, more: str = "") -> np.ndarray:
    task = make_task(parse_study(text.replace("residual_bound", f"{more}\nresidual_bound")))
    assert isinstance(task, GradientTask)
    return bend(task, 0.1, POINT, np.eye(4))


@pytest.mark.slow
def test_many_coefficients_bend_no_expectile() -> None:
    """Without what is taken off, the intercept is off by 1.2 of its deviations here."""
    design = design_of(Row("expectile", 10, 2), 50_000)
    off = off_by(design, design.twice, 40)
    # three Monte Carlo errors of the mean of 40 streams
    assert abs(off.mean()) < 3 / np.sqrt(40) * off.std(ddof=1)


RELEASED = 'releases = "gradients+curvature"'


def task_for(loss: str) -> GradientTask:
    text = study_text(loss=loss, path=RELEASED)
    if loss == "expectile":
        text = text.replace("residual_bound", "tau = 0.8\nresidual_bound")
    task = make_task(parse_study(text))
    assert isinstance(task, GradientTask)
    return task


def test_normal_residuals_have_the_moments_of_huber_s_slope() -> None:
    curved, square = of_residuals(0.5)
    inside = 2 * norm.cdf(1.345) - 1
    # E min(z^2, c^2) = inside - 2 c phi(c) + 2 c^2 (1 - Phi(c))
    cut = inside - 2 * 1.345 * norm.pdf(1.345) + 2 * 1.345**2 * norm.sf(1.345)
    assert curved == pytest.approx(inside, abs=1e-3)
    assert square == pytest.approx(cut / 1.345**2, abs=1e-3)


@pytest.mark.parametrize("loss", ["logistic", "linear", "expectile"])
def test_an_exact_interval_is_that_of_the_simulated_population(loss: str) -> None:
    """Where records are as a plan supposes, the exact sandwich has the length that it says."""
    task = task_for(loss)
    population = Population.of(simulated(task.study))
    target = target_of(population).coefficients
    features, responses = population.draw(np.random.default_rng(1), 40_000)
    errors = standard_errors(task, features, responses, target, 10_000)
    found = exact(task, 10_000)
    # guesses of the mean curvature and of the weights: a few percent
    assert found.half == pytest.approx(1.96 * task.response_scale[1] * errors.max(), rel=0.1)
    assert found.records == pytest.approx(10_000 * (found.half / found.wanted) ** 2, abs=2)
    assert found.ready >= 2 * found.records


def test_half_of_a_range_takes_sixteen_times_as_many_records_and_rare_classes_four_times() -> None:
    row = Row("logistic", 4, 1)
    task = row.task(100)
    narrow = mean_products(task).copy()
    narrow[1:, 1:] /= 4
    whole = exact(task, 1000).records
    assert exact(task, 1000, narrow).records == pytest.approx(16 * whole, rel=0.02)
    rare = Row("logistic", 4, 1, path=f"curvature = {0.8 * 0.15 * 0.85}").task(100)
    assert exact(rare, 1000).records == pytest.approx(4 * whole, rel=0.05)
    # the same from the study's guess of the share, which changes no step of the path
    response = {**msgspec.to_builtins(task.study.data.response), "typical": 0.15}
    guessed = GradientTask(with_keys(task.study, {"data.response": response}, name="guessed"))
    assert exact(guessed, 1000).records == pytest.approx(exact(rare, 1000).records, rel=1e-6)
    assert slope_error(guessed, 1000) == pytest.approx(slope_error(rare, 1000))
    assert rule_of(guessed).steps == rule_of(task).steps
    assert records_needed(guessed) > 1.5 * records_needed(task)


def test_ten_coefficients_are_ready_when_models_are_near_enough() -> None:
    """Models wander the further the more coefficients there are: then twice is too early."""
    task = Row("logistic", 10, 2).task(100)
    found = exact(task, 1000)
    assert found.ready == due(task)[-1] > 2 * found.records
    assert due(task)[-1] > method_of(task.study).plan(task, 1000, 4).usual


@pytest.mark.slow
def test_plan_and_check_say_it_before_there_are_records() -> None:
    study = parse_study(study_text(loss="logistic", epsilon=2.0, path=RELEASED))
    few = proposed(study, 40_000, 8)
    assert few.own.outlook.exact is not None
    assert f"where even an exact one is +-{few.own.outlook.exact.half:.2g}" in verdict(few)
    said = check_study(study, records=40_000, clients=8)["intervals"]
    assert isinstance(said, dict)
    assert "(half a logit) after about" in said["exact"]
    assert "and classes are as even as assumed" in said["exact"]
    assert "16 times" in said["but"]


@pytest.mark.parametrize("third", [lambda x: x[:, 0] / 3 + x[:, 1] / 3, lambda x: 1e-160 * x[:, 2]])
def test_features_that_rounding_alone_tells_apart_have_no_intervals(
    third: Callable[[Matrix], Vector],
) -> None:
    features = np.random.default_rng(3).uniform(-1, 1, (300, 3))
    features[:, 2] = third(features)
    design = with_intercept(features)
    with pytest.raises(NumericError, match="follows from the others"):
        exact(task_for("logistic"), 300, design.T @ design / 300)


@pytest.mark.takes("streams of a dozen thousand records each")
@pytest.mark.parametrize(
    ("name", "far"),
    [
        *(pytest.param(name, 0.3, marks=pytest.mark.slow)
          for name in ("sgd-many", "sgd-wide", "sgd-numbers")),
        ("sgd-late", 0.4),
    ],
)  # fmt: skip
def test_intervals_come_when_a_plan_says(name: str, far: float) -> None:
    """Whether noise, a curvature that it hides, or models that are late keep them away.

    Late models are near their start, where losses of classes are steeper: it counts as further.
    """
    planned = plans.DESIGNS[name]
    study = planned.study
    found = method_of(study).plan(make_task(study), planned.records, planned.clients)
    short = dataclasses.replace(planned, records=round(1.5 * found.usual))
    first = np.median([plans.stream(short, number)[0] for number in range(12)])
    assert (found.first or found.usual) == pytest.approx(first, rel=far)


#: One class in seven, as in the designs of the benchmark.
RARE = np.array([-2.0, 1.0, -1.0])
RECORDS = 1000
ROWS_OF = np.column_stack([np.ones(20_000), np.random.default_rng(2).uniform(-1, 1, (20_000, 2))])


def task() -> GradientTask:
    found = make_task(parse_study(study_text(p=2, loss="logistic")))
    assert isinstance(found, GradientTask)
    return found


def at(points: Matrix) -> tuple[Sums, Matrix]:
    """Return exact sums of gradients at models, as often each, and their mean curvature."""
    chances = [expit(ROWS_OF @ point) for point in points]
    gradient = np.mean([ROWS_OF.T @ (p - expit(ROWS_OF @ RARE)) for p in chances], axis=0)
    curvature = np.mean([ROWS_OF.T @ (ROWS_OF * (p * (1 - p))[:, None]) for p in chances], axis=0)
    curvature /= len(ROWS_OF)
    zero = Sums.zero(3, full=False, extra=6)
    return replace(
        zero, records=RECORDS, u=RECORDS * points.mean(axis=0),
        g=RECORDS * gradient / len(ROWS_OF), uu=RECORDS * points.T @ points / len(points),
        extra=RECORDS * pack_upper(curvature),
    ), curvature  # fmt: skip


def plug_of(sums: Sums, curvature: Matrix) -> PlugIn:
    move = np.linalg.solve(curvature, sums.g / RECORDS)
    covariance = sandwich(curvature, np.eye(3)) / RECORDS
    return PlugIn(curvature, covariance, 0, RECORDS, mean_point([sums]) - move, np.zeros(3))


def told(points: Matrix) -> tuple[PlugIn, PooledPlugIn, Vector]:
    """Return the plug-in of models before and after, with the estimate."""
    sums, curvature = at(points)
    plug = plug_of(sums, curvature)
    found = straightened(task(), [[sums]], [plug])
    assert found.centre is not None
    return plug, found, found.centre


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9])
def test_models_between_zero_and_the_minimum_leave_the_estimate_where_it_is(share: float) -> None:
    plug, _, centre = told(share * RARE[None, :])
    assert plug.centre is not None
    # Newton's step from where the loss is more curved is too short
    assert plug.centre[0] > RARE[0]
    # the second order, without the shape of features: most of it
    assert abs(centre[0] - RARE[0]) < 0.5 * abs(plug.centre[0] - RARE[0])


def test_models_to_both_sides_of_the_minimum_bend_the_estimate_the_other_way() -> None:
    away = 0.5 * np.eye(3)
    plug, _, centre = told(np.vstack([RARE + away, RARE - away]))
    assert plug.centre is not None
    assert plug.centre[0] < RARE[0]
    assert abs(centre[0] - RARE[0]) < 0.5 * abs(plug.centre[0] - RARE[0])


@pytest.mark.parametrize("share", [0.7, 0.8, 0.9, 1.2])
def test_standard_errors_are_by_the_curvature_at_the_estimate(share: float) -> None:
    plug, found, _ = told(share * RARE[None, :])
    flat = at(RARE[None, :])[1]
    true = np.diag(sandwich(flat, np.eye(3))) / RECORDS
    [path] = found.paths
    assert path.there is not None
    # the estimate stands for the truth, and features count as normal that are uniform
    assert_allclose(np.diag(path.covariance), true, rtol=0.15)
    assert_allclose(path.there, flat, atol=0.03 * flat[0, 0])
    assert abs(plug.covariance[0, 0] / true[0] - 1) > 0.3
    # of which the noise has its own part, by the same curvature
    assert_allclose(path.privacy_covariance(1.0), path.covariance)


def test_where_models_are_at_the_estimate_nothing_changes() -> None:
    plug, found, centre = told(RARE[None, :])
    assert_allclose(centre, RARE, atol=1e-9)
    assert_allclose(found.covariance, plug.covariance, rtol=1e-9)
    # not even where they are at the start, whose predictors do not vary
    _, begun, _ = told(np.zeros((1, 3)))
    assert np.isfinite(begun.covariance).all()
    # nor where no predictor varies at all
    plug = PlugIn(np.eye(3), np.eye(3), 0, RECORDS, np.array([-2.0, 0.0, 0.0]), np.zeros(3))
    sums = replace(Sums.zero(3, full=False, extra=6), records=RECORDS)
    assert straightened(task(), [[sums]], [plug]).covariance[0, 0] > 1


def test_models_are_not_near_because_chance_has_moved_the_estimate_to_them() -> None:
    sums, curvature = at(RARE[None, :])
    for noise in (0.0, 0.3):
        plug = replace(plug_of(sums, curvature), covariance=noise * np.eye(3))
        found = distance(task(), [sums], RARE, PooledPlugIn((plug,)))
        own = noise * float(np.trace(curvature)) / float(curvature[0, 0])
        assert found == pytest.approx(own, abs=1e-9)


@pytest.mark.slow
def test_early_estimates_of_rare_classes_are_not_off_towards_zero() -> None:
    [row] = [row for row in ROWS if row.label == "logistic d=4 mu=2 uniform"]
    design = design_of(row)
    # a mean error is known from a hundred streams; that of given models is exact, above
    off = off_by(design, 0.4 * design.exact, 100)
    # half a standard error with the other sign, which is 2.4 times what chance does to the mean
    assert abs(off.mean()) < 2 * off.std() / math.sqrt(len(off))
