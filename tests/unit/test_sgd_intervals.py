"""Intervals of locally private gradients by method: what they are read from, and what it costs."""

from __future__ import annotations

import dataclasses
import io
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from rich.console import Console
from scipy import stats

from benchmarks.limit_law import covariance, moments, standard_errors
from pipeline.api.table import intervals_table
from pipeline.errors import ConfigError, NumericError
from pipeline.linalg import pack_upper, unpack_upper
from pipeline.losses.regression import Linear
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.release import read
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd import plug_in
from pipeline.methods.ldp_sgd.client import (
    GradientTask,
    bounded_gradients,
    open_gradients,
    record_gradients,
)
from pipeline.methods.ldp_sgd.spec import INTERVALS
from pipeline.privacy import accounting as gdp
from pipeline.release.model import round_model
from pipeline.release.task import Task
from pipeline.stream.fold import Reducer
from pipeline.stream.merge import combine
from pipeline.stream.partition import Partition, differences
from pipeline.study_file.load import parse_study
from tests.builders import LogEntry, relogged
from tests.sgd import (
    TRUTH,
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
PACKED = 10


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
    for exact, matrix, bound in zip((sums.curvature, sums.products), wanted, bounds, strict=True):
        assert exact is not None
        found = np.ldexp(exact.integers.astype(float), exact.exponents)
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


def test_the_revision_knows_what_is_released_and_in_what_shares() -> None:
    base = task_of(path="eta0 = 1.0").revision
    assert task_of(path='eta0 = 1.0, releases = "gradients"').revision == base
    others = [base, task_of(path=f"eta0 = 1.0, {CURVED}").revision,
              task_of(path=f"eta0 = 1.0, {ALL}").revision]  # fmt: skip
    text = study_text(path=f"eta0 = 1.0, {CURVED}")
    for share in ("0.1", "0.25"):
        split = f"split = {{ gradient = 0.7, curvature = {share} }}\n[window]"
        others.append(make_task(parse_study(text.replace("[window]", split))).revision)
    assert len(set(others)) == 5


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


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "discrete-laplace", "none"])
@pytest.mark.parametrize("releases", [CURVED, ALL])
def test_sums_are_those_of_the_releases_in_any_batches_and_after_any_restart(
    mechanism: str, releases: str
) -> None:
    task = task_of(mechanism=mechanism, path=f"burn_in = 100, {releases}")
    log = log_of(task, 60)
    whole = folded(task, log, [])
    for sizes in ([1] * 60, [7, 3, 20], [59]):
        assert differences(folded(task, log, sizes), whole) == []
    half = folded(task, log[:31], [])
    again = Partition.decode(
        task, half.fields(everything=True), half.client_fields(everything=True)
    )
    assert Reducer(task).fold(again, log[31:]) == []
    assert differences(again, whole) == []
    # the burn-in of 100 records are five releases
    wanted = sum(np.concatenate(split_numbers(task, entry)[1:]) for entry in log[5:])
    assert_allclose(path_of(whole).sums.extra, wanted, rtol=1e-12, atol=1e-9)


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
@pytest.mark.parametrize("part", ["curvature", "products"])
def test_a_matrix_of_no_numbers_or_too_large_ones_is_set_aside(value: float, part: str) -> None:
    task = task_of(mechanism="none", records=5, path=f"burn_in = 0, {ALL}")
    log = log_of(task, 3)
    spoilt = valued(task, log[1].value or b"", part, value, 0)
    entries = relogged([log[0], LogEntry(1, b"a", spoilt, timestamp=1), log[2]])
    partition = Partition.empty(task)
    letters = Reducer(task).fold(partition, entries)
    assert [letter.fault.reason for letter in letters] == ["out-of-range"]
    assert np.isfinite(path_of(partition).sums.extra).all()


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


def test_all_intervals_of_a_study_stand_side_by_side_with_what_they_need() -> None:
    # steps that fall so slowly that the path mixes, too
    task = quick(f'{ALL}, interval = "plug-in-curvature", alpha = 0.501, eta0 = 20')
    _, message = streamed(task, 20_000, 4).estimate(0.0)
    assert message.status == "ready", message.reason
    assert set(message.intervals) == set(INTERVALS) == set(message.interval_needs)
    assert message.interval_method == "plug-in-curvature"
    assert [c.interval for c in message.coefficients] == message.intervals["plug-in-curvature"]
    lengths = {name: np.mean([b - a for a, b in ends]) for name, ends in message.intervals.items()}
    # three estimates of one covariance: their noise is a few percent here
    for name in ("plug-in-curvature", "plug-in-products"):
        assert lengths[name] == pytest.approx(lengths["plug-in"], rel=0.15)
    assert message.interval_needs["random-scaling"].endswith("costs nothing beyond gradients")
    assert "mu 1.73 and 1.73 of a record's 3" in message.interval_needs["plug-in-curvature"]
    assert message.interval_needs["plug-in-products"].startswith(
        "reads gradients, curvature and products, which cost mu 1.73, 1.73 and 1.73 of"
    )
    assert "sqrt(3) mu-GDP" in message.interval_needs["plug-in-products"]
    shown = printed(message, task)
    assert all(f"{name}: {needs}" in shown for name, needs in message.interval_needs.items())


@pytest.mark.parametrize("taken", [1.0, 10.0])
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


def test_the_exact_sandwich_is_that_of_the_population() -> None:
    """Signs are orthonormal features, and normal errors cut at c have known moments."""
    rng, c, sd, n = np.random.default_rng(2), 0.6725, 0.5, 10**6
    features = rng.choice([-1.0, 1.0], (n, 3))
    design = np.column_stack([np.ones(n), features])
    responses = design @ TRUTH + rng.normal(0, sd, n)
    curvature, products = moments(Linear(c), design, responses, TRUTH, math.sqrt(2))
    inside = 1 - 2 * stats.norm.cdf(-c / sd)
    square = inside * stats.truncnorm(-c / sd, c / sd, scale=sd).var() + (1 - inside) * c * c
    # weights are 2 / |x|^2 = 1 / 2; the mean of products of signs errs by 1 / sqrt n
    error = 5 / math.sqrt(n)
    assert_allclose(curvature, inside / 2 * np.eye(4), rtol=0, atol=error)
    assert_allclose(products, square / 4 * np.eye(4), rtol=0, atol=error)
    found = covariance(curvature, products, 0.3, 100)
    wanted = (square / 4 + 0.09) / (inside / 2) ** 2 / 100
    assert_allclose(np.diag(found), wanted, rtol=0.02)
    with pytest.raises(NumericError, match="positive definite"):
        covariance(0 * curvature, products, 0.3, 100)


@pytest.mark.parametrize("mechanism", ["none", "discrete-gaussian"])
def test_exact_standard_errors_of_a_study_are_near_those_that_it_estimates(mechanism: str) -> None:
    task = quick(f'{CURVED}, interval = "plug-in-curvature"', mechanism=mechanism)
    features, said = drawn("linear", 100_000, 9)
    encoded = np.array([row.response for row in rows_of(task, features, said)])
    found = streamed(task, 15_000, 6).estimate(0.0)[0]
    assert found.covariance is not None, found.reason
    wanted = standard_errors(
        task, features, encoded, TRUTH / task.response_scale[1], int(found.effective_records or 0)
    )
    # the curvature's noise is 1.2 % of it, sampling and the jitter of the iterate take as much
    assert_allclose(np.sqrt(np.diag(found.covariance)), wanted, rtol=0.1)


def test_exact_standard_errors_have_the_mean_noise_of_personal_levels() -> None:
    """The mean of (2B / mu)^2 over equal shares of both levels, not that of the looser one."""
    levels = 'personal = { column = "consent", levels = { strict = 2.0, normal = 18.0 } }'
    text = study_text(epsilon=18.0).replace("[window]", f"{levels}\n[window]")
    task = make_task(parse_study(text))
    features, said = drawn("linear", 2000, 9)
    responses = np.array([row.response for row in rows_of(task, features, said)])
    truth = TRUTH / task.response_scale[1]
    deviations = [2 * task.clipping_norm * task.loss.slope_bound / gdp.mu_of(e, 1e-6)
                  for e in (2.0, 18.0)]  # fmt: skip
    noise = math.sqrt(np.mean(np.square(deviations)))
    design = np.column_stack([np.ones(2000), features])
    exact = moments(task.loss, design, responses, truth, task.clipping_norm)
    wanted = np.sqrt(np.diag(covariance(*exact, noise, 500)))
    # rounding of a channel takes at most one part in 256
    assert_allclose(standard_errors(task, features, responses, truth, 500), wanted, rtol=1 / 256)


def covered(seeds: range, path: str, *, shrink: float = 1.0) -> dict[str, float]:
    """Return the share of intervals that hold the truth, by method, over streams."""
    hits: dict[str, list[np.ndarray]] = {}
    for seed in seeds:
        task = task_of(
            mechanism="insecure-simulation", seed=seed, records=50, epsilon=18.163, publish=2,
            path=f"behind = 25, {path}",
        )  # fmt: skip
        found = streamed(task, 30_000, seed).estimate(0.0)[0]
        assert found.status == "ready", found.reason
        for name, width in (found.widths or {}).items():
            half = width(0.95) * task.response_scale[1] * shrink
            error = np.abs(found.coefficients * task.response_scale[1] - TRUTH)
            hits.setdefault(name, []).append(error <= half)
    return {name: float(np.mean(found)) for name, found in hits.items()}


@pytest.mark.slow
def test_plug_ins_that_are_released_cover_as_stated_and_broken_ones_do_not() -> None:
    seeds = range(300, 340)
    # coefficients of one stream are nearly independent: the features are
    reach = 4 * math.sqrt(0.95 * 0.05 / (4 * len(seeds)))
    found = covered(seeds, ALL)
    for name in ("plug-in-curvature", "plug-in-products"):
        assert abs(found[name] - 0.95) < reach + 0.005, found
    broken = covered(range(300, 310), ALL, shrink=0.5)
    assert broken["plug-in-curvature"] < 0.95 - reach
