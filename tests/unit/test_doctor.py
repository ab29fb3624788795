"""The doctor: truth, streams, coverage of intervals, and what it says of a study."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy import stats

from pipeline.errors import ConfigError
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.population import Population, default_truth, target_of
from pipeline.methods import method_of
from pipeline.methods import task_of as make_task
from pipeline.methods.base import Exact, Plan
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.plan import records_to_mix
from pipeline.methods.ldp_sgd.step_rule import rule_of, slowest
from pipeline.methods.plan_words import holds_for
from pipeline.records.encoder import Row
from pipeline.release.task import Task
from pipeline.simulate.coverage import (
    LARGEST_ERROR,
    Size,
    StreamResult,
    judge,
    result_of,
    simulated,
    stream,
    sum_up,
)
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.merge import estimate_of
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study
from tests.builders import (
    population,
    population_target,
    regression_stream,
    stream_of,
    study_text,
    whole_stream,
)
from tests.builders import study_text as renewable
from tests.builders import task_of as plain_task
from tests.sgd import study_text as gradients
from tests.sgd import task_of_text as real_task


def task_of(text: str) -> Task:
    return simulated(parse_study(text))


def path_task(text: str) -> GradientTask:
    task = task_of(text)
    assert isinstance(task, GradientTask)
    return task


def plan_of(task: Task, records: int) -> Plan:
    return method_of(task.study).plan(task, records, 4)


LOGISTIC = task_of(gradients(loss="logistic"))
#: It is asked for verdicts whose numbers it does not decide: a ridge is enough at this size.
PLAN = Plan(latest=1_000, usual=1_000, remedies=("",))


@pytest.mark.parametrize("loss", ["linear", "logistic"])
@pytest.mark.parametrize("clipping_norm", ["", "clipping_norm = 1.2"])
def test_a_true_model_is_its_own_target_whatever_the_weights(loss: str, clipping_norm: str) -> None:
    task = task_of(gradients(loss=loss, path=clipping_norm))
    population = Population.of(task)
    target = target_of(population)
    # slopes have conditional mean zero in the sample, too: what is left is the minimiser's end
    assert np.abs(target.coefficients - population.truth).max() < 1e-6
    assert target.error < 1e-6


@pytest.mark.parametrize(
    "text",
    [
        gradients(
            loss="expectile", path="clipping_norm = 1.2", estimator="residual_bound = 1\ntau = 0.2"
        ),
        gradients(loss="linear", estimator="residual_bound = 40"),
        renewable(p=2, loss="gdwd"),
        renewable(p=2, loss="poisson", most=12),
    ],
)
def test_the_gradient_at_the_target_is_zero_over_drawn_records(text: str) -> None:
    task = task_of(text)
    # numbers reach beyond their range: they are cut, and weights move the target
    truth = np.array([2.0, 7.0, -7.0, 7.0]) if task.keeps_slots else None
    population = Population.of(task, truth)
    target = target_of(population).coefficients
    x, y = population.draw(np.random.default_rng(5), 200_000)
    design = np.column_stack([np.ones(len(y)), x])
    weights = 1.0
    if isinstance(task, GradientTask):
        weights = np.minimum(1, task.clipping_norm**2 / np.sum(design**2, axis=1))[:, None]
    each = weights * design * task.loss.slope(design @ target, y)[:, None]
    ridge = task.study.estimator.ridge * np.append(0.0, target[1:])
    z = (each.mean(axis=0) + ridge) / (each.std(axis=0) / math.sqrt(len(y)))
    # five Monte Carlo errors
    assert np.abs(z).max() < 5


def test_the_stream_of_gradients_is_the_offline_run_without_noise() -> None:
    task = task_of(gradients(mechanism="none", records=20, publish=1))
    population, size = Population.of(task), Size(2019, 1)
    found = stream(population, size, seed=3, number=4)
    rng, run = np.random.default_rng([3, 4]), OfflineRun(task)
    for _ in range(100):
        x, y = population.draw(rng, 20)
        run.add("a", [Row(x[i], float(y[i]), 0) for i in range(20)])
    assert np.array_equal(found.coefficients, run.estimate(0.0)[0].coefficients)
    assert found.records == 2000


@pytest.mark.parametrize("text", [gradients(records=20), renewable(p=2, records=20)])
def test_streams_repeat_and_differ(text: str) -> None:
    population, size = Population.of(task_of(text)), Size(1500, 3)
    one, again, other = (stream(population, size, 1, number).coefficients for number in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("mechanism", ["discrete-gaussian", "discrete-laplace"])
def test_the_noise_has_the_deviation_of_the_study(mechanism: str) -> None:
    """One window at the start: the first step shows its noise; 800 numbers know it to 3 %."""
    text = gradients(mechanism=mechanism, records=200, path="burn_in = 0")
    task = path_task(text)
    population = Population.of(task, residual=1e-9, truth=np.zeros(4))
    moved = stream(population, Size(200, 1), 1, 1)
    steps = rule_of(task).steps.steps(1, 200)
    many = [stream(population, Size(200, 1), 1, i).point for i in range(200)]
    assert moved.records == 200
    found = np.array(many).std() / math.sqrt(float(steps @ steps))
    wanted = real_task(text).channels.gradient.standard_deviation
    assert found == pytest.approx(wanted, rel=5 / math.sqrt(2 * 800))


def results(task: Task, streams: int, *, width: float, shift: float = 0.0) -> list[StreamResult]:
    """Return normal estimates of deviation 1 about `shift` with intervals of +-width."""
    rng = np.random.default_rng(8)
    name, found = "random-scaling", []
    for _ in range(streams):
        point = shift + rng.standard_normal(task.size)
        found.append(StreamResult("ready", "", point, {name: (point - width, point + width)}))
    return found


def hidden(streams: int, first: int, last: int, width: float = 1.96) -> list[StreamResult]:
    """Return 200 streams, of which those behind some give some coefficients no interval."""
    planted = results(LOGISTIC, 200, width=width)
    for one in planted[streams:]:
        for ends in one.ends["random-scaling"]:
            ends[first:last] = math.nan
    return planted


def few_of_one(covered: int, streams: int) -> list[StreamResult]:
    """Return 200 streams, of which some give the intercept an interval, that of a few covers."""
    planted = hidden(streams, 0, 1)
    for number, one in enumerate(planted[:streams]):
        for ends, side in zip(one.ends["random-scaling"], (-1.0, 1.0), strict=True):
            ends[0] = 9.0 * (number >= covered) + side
    return planted


def off_in_one() -> list[StreamResult]:
    planted = results(LOGISTIC, 200, width=2.3)
    for one in planted:
        for ends, move in zip(one.ends["random-scaling"], (1.6, -1.6), strict=True):
            ends[2] += move
    return planted


@pytest.mark.parametrize(
    ("planted", "trusted", "words"),
    [
        (lambda: results(LOGISTIC, 200, width=1.96), True, "yes: .*: nothing"),
        (lambda: results(LOGISTIC, 200, width=1.5), False, "miss"),
        (lambda: results(LOGISTIC, 200, width=3.0), True, "yes, but they are longer than necess"),
        (lambda: results(LOGISTIC, 200, width=2.6, shift=0.8), False, "no: estimates are biased"),
        # few that miss are wrong and not late
        (lambda: hidden(60, 0, 4, width=1.2), False, "miss"),
        (lambda: hidden(60, 0, 4), False, "most coefficients have no"),
        (off_in_one, False, "miss"),
        (lambda: few_of_one(9, 14), True,
         r"yes, but perhaps not for 'intercept': .*'intercept' 64.3% \(\+-12.8%\).*--replications"),
        (lambda: few_of_one(40, 40), True,
         "yes, but mostly not for 'intercept': .*'intercept' in 20% of the streams"),
        # every stream is ready, and of all four coefficients only the intercept has an interval
        (lambda: hidden(0, 1, 4), False, "no intervals yet"),
        # few streams decide nothing, and can show that intervals miss
        (lambda: results(LOGISTIC, 6, width=1.96), None, ""),
        (lambda: results(LOGISTIC, 40, width=1.0), False, "^no:"),
    ],
)  # fmt: skip
def test_planted_intervals_are_found_out(
    planted: Callable[[], list[StreamResult]], trusted: bool | None, words: str
) -> None:
    said = judge(LOGISTIC, sum_up(LOGISTIC, planted(), np.zeros(4)), PLAN, 10_000)
    assert said.trusted is trusted
    assert re.search(words, f"{said.verdict}: {said.reason}: {said.advice}")


def test_what_streams_show_is_summed_up_with_the_worst_and_the_rarest() -> None:
    [own] = sum_up(LOGISTIC, off_in_one(), np.zeros(4)).intervals
    assert own.worst == "x1"
    [own] = sum_up(LOGISTIC, few_of_one(9, 14), np.zeros(4)).intervals
    assert own.worst_coverage == pytest.approx(9 / 14)
    found = sum_up(LOGISTIC, hidden(0, 1, 4), np.zeros(4))
    assert (found.ready, found.given, found.rarest_given) == (1, 1 / 4, 0)
    assert found.rarest != "intercept"
    [own] = sum_up(LOGISTIC, results(LOGISTIC, 40, width=1.0), np.zeros(4)).intervals
    assert own.error > LARGEST_ERROR


@pytest.mark.parametrize(
    ("latest", "wanted", "told"),
    [
        (9_000, "yes", "enough for slopes after 9,000 records"),
        (20_000, "yes, for independent features as assumed", "enough after 20,000 records"),
        (None, "yes, for independent features as assumed", "no ridge is enough by itself"),
    ],
)
def test_a_yes_says_whether_it_needs_independent_features(
    latest: int | None, wanted: str, told: str
) -> None:
    found = sum_up(LOGISTIC, results(LOGISTIC, 200, width=1.96), np.zeros(LOGISTIC.size))
    outlook = Plan(latest=latest, usual=5_000, remedies=("",))
    said = judge(LOGISTIC, found, outlook, 10_000)
    assert (said.trusted, said.verdict) == (True, wanted)
    assert told in holds_for(outlook, 10_000)
    # a no is one for other records, too
    wrong = sum_up(LOGISTIC, results(LOGISTIC, 200, width=1.0), np.zeros(LOGISTIC.size))
    assert judge(LOGISTIC, wrong, outlook, 10_000) == judge(LOGISTIC, wrong, PLAN, 10_000)


def test_a_yes_of_single_records_speaks_of_ranges_and_of_no_ridge() -> None:
    told = holds_for(Plan(latest=None, usual=5_000, exact=Exact(0.3, 0.5, 5_000, 10_000)), 10_000)
    assert "ridge" not in told
    assert "only a part of their ranges, come later" in told


@pytest.mark.parametrize(("tau", "wanted"), [(0.8, "yes, for residuals as assumed"), (0.5, "yes")])
def test_a_yes_of_an_expectile_holds_for_residuals_of_the_assumed_size(
    tau: float, wanted: str
) -> None:
    task = task_of(gradients(loss="expectile", estimator=f"residual_bound = 1\ntau = {tau}"))
    found = sum_up(task, results(task, 200, width=1.96), np.zeros(task.size))
    said = judge(task, found, PLAN, 10_000)
    assert (said.trusted, said.verdict) == (True, wanted)
    assert ("--residual-scale" in said.advice) == (tau != 0.5)


def test_coverage_and_its_error_are_those_of_the_binomial_law() -> None:
    found = sum_up(LOGISTIC, results(LOGISTIC, 400, width=1.2815516), np.zeros(LOGISTIC.size))
    [own] = found.intervals
    # 80 % of 1,600 independent intervals, whose error is 1 point
    assert own.error == pytest.approx(0.01, rel=0.2)
    assert own.coverage == pytest.approx(0.8, abs=0.04)
    assert own.length == pytest.approx(2 * 1.2815516)
    assert found.bias_error == 0.05


def asked(study: Study, records: int, streams: int, clients: int = 10) -> tuple[bool | None, str]:
    task = simulated(study)
    population = Population.of(task)
    target = target_of(population).coefficients
    ends = [
        result_of(task, stream(population, Size(records, clients), 1, i)) for i in range(streams)
    ]
    found = sum_up(task, ends, target)
    said = judge(make_task(study), found, plan_of(make_task(study), records), records)
    return said.trusted, f"{said.verdict}: {said.reason}: {said.advice}"


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["linear", "logistic"])
def test_two_thousand_records_at_epsilon_one_cannot_be_trusted(loss: str) -> None:
    trusted, words = asked(parse_study(gradients(loss=loss, epsilon=1.0)), 2000, 8)
    assert trusted is False
    assert "records instead of 2,000" in words


def test_a_private_renewable_study_that_is_too_small_is_told_so() -> None:
    trusted, words = asked(parse_study(renewable(p=2, records=100)), 1000, 12)
    assert trusted is False, words
    assert "more" in words or "records instead" in words


def test_records_to_mix_is_where_the_sum_of_steps_reaches_fifty() -> None:
    for path in ("", "eta0 = 0.5, alpha = 0.6, kappa = 9", "burn_in = 90000"):
        task = path_task(gradients(path=path))
        rule, curvature = rule_of(task), slowest(task)
        count = records_to_mix(rule, curvature)
        steps = rule.steps.steps(1, count)
        left_out = max(rule.burn_in, count // 8)
        # the sum is taken as an integral, and found to a thousandth of the records
        assert curvature * steps[left_out:].sum() == pytest.approx(50, rel=0.01)
    slow = rule_of(path_task(gradients(path="eta0 = 1e-6, alpha = 0.99")))
    assert records_to_mix(slow, 0.1) >= 2**53


def test_the_slowest_direction_is_that_of_uniform_features() -> None:
    text = gradients(path="clipping_norm = 99").replace("x0 = { min = -1", "x0 = { min = 0.5")
    task = path_task(text.replace("[data]\n", '[data]\nscaling = "none"\n'))
    x, _ = Population.of(task).draw(np.random.default_rng(1), 400_000)
    design = np.column_stack([np.ones(len(x)), x])
    least = np.linalg.eigvalsh(design.T @ design / len(x))[0]
    # variances of 400,000 records are known to a fraction of a percent
    assert slowest(task) == pytest.approx(0.8 * least, rel=0.01)
    assert slowest(path_task(gradients())) == pytest.approx(0.8 / 3)


def test_nonsense_is_refused_by_name() -> None:
    task = task_of(gradients(records=20))
    for truth in (np.zeros(3), np.array([0, 1, 2, math.nan])):
        with pytest.raises(ConfigError, match="--truth"):
            Population.of(task, truth)
    for residual in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="--residual-scale"):
            Population.of(task, None, residual)
    with pytest.raises(ConfigError, match=r"window\.records is 20"):
        Size(19, 1).windows(task)
    forgetting = renewable(p=2, forgetting='half_life = 9000, of = "seconds"')
    with pytest.raises(ConfigError, match=r"estimator\.forgetting"):
        task_of(forgetting)


def test_the_default_truth_has_the_spread_that_is_documented() -> None:
    task = LOGISTIC
    x, y = Population.of(task).draw(np.random.default_rng(2), 100_000)
    truth = default_truth(task)
    # five Monte Carlo errors: of a variance and of a share
    assert np.var(truth[0] + x @ truth[1:]) == pytest.approx(1, rel=5 * math.sqrt(2 / 1e5))
    assert float((y > 0).mean()) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(1e5))


LEVEL = 0.95
#: Bounds hold with this probability of a false alarm, for the seeds as a fresh draw.
ALARM = 1e-6
SLOPES = np.array([0.3, -0.2, 0.1])


def counts(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw counts whose means are far below the public limit."""
    X = rng.uniform(-1, 1, (n, 3))
    return X, rng.poisson(np.exp(X @ SLOPES + 0.1)).astype(float)


def of_classes(task: Task, **size: int) -> Estimate:
    return estimate_of(task, [whole_stream(task, **size)])


CLASSES = population_target(3, q=1.0, ridge=0.01)
OF_COUNTS = study_text(p=3, loss="poisson", records=200, most=12.0, ridge=0.0, private=False)
#: Study, stream, what it estimates, and a run that tells an interval from one half as wide: its
#: streams, rounds and clients. Other losses: `doctor coverage`.
CASES: dict[str, tuple[str, Callable[..., Estimate], np.ndarray, tuple[int, int, int]]] = {
    "open": (study_text(p=3, private=False, records=200), of_classes, CLASSES, (30, 12, 4)),
    "private": (study_text(p=3, epsilon=2.0, records=200), of_classes, CLASSES, (14, 12, 8)),
    "counts": (
        OF_COUNTS, partial(regression_stream, draw=counts), np.append(0.1, SLOPES), (16, 20, 6),
    ),
}  # fmt: skip


def check_coverage(ends: list[Estimate], target: np.ndarray, shrink: float = 1.0) -> None:
    """Fail where the coverage is below what `LEVEL` allows, with allowance for the simulation.

    Conservative intervals pass. Whether the coefficients of one stream are covered depends on each
    other; the variance of their share is taken as twice that of independent ones.

    shrink: What covariances are divided by first.
    """
    shares = []
    for estimate in ends:
        assert estimate.status == "ready"
        assert estimate.covariance is not None
        assert estimate.privacy_covariance is not None
        held = replace(
            estimate,
            covariance=estimate.covariance / shrink,
            privacy_covariance=estimate.privacy_covariance / shrink,
        ).intervals(LEVEL)
        assert held is not None
        shares.append(np.mean((held[0] <= target) & (target <= held[1])))
    spread = math.sqrt(2 * LEVEL * (1 - LEVEL) / len(target))
    reach = float(stats.norm.isf(ALARM)) * spread / math.sqrt(len(shares))
    found = float(np.mean(shares))
    # 0.01: the intervals are asymptotic, and the spec measured .94 to .98 for such streams
    assert found >= LEVEL - 0.01 - reach, f"coverage {found:.3f}, reach {reach:.3f}"


@pytest.mark.takes("some twenty streams")
@pytest.mark.parametrize(
    "case", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("private", "open")), "counts"]
)
def test_intervals_cover_and_those_half_as_wide_do_not(case: str) -> None:
    text, of_stream, target, (streams, rounds, clients) = CASES[case]
    task = make_task(parse_study(text))
    ends = [
        of_stream(task, seed=seed, rounds=rounds, clients=clients)
        for seed in range(1000, 1000 + streams)
    ]
    check_coverage(ends, target)
    with pytest.raises(AssertionError, match="coverage"):
        check_coverage(ends, target, shrink=4.0)


FLIP, AFTER, OF_DRIFT, SLOTS = 24, 12, 8, 200
#: Five rounds.
HALF_LIFE = f'half_life = {5 * OF_DRIFT * SLOTS}, of = "records"'


FEATURES, RESPONSES, CHANCE = population(3)


def accuracy(coefficients: np.ndarray) -> float:
    """Return the accuracy on the population with its classes exchanged."""
    positive = coefficients[0] + FEATURES @ coefficients[1:] >= 0
    return float(CHANCE[positive == (RESPONSES < 0)].sum())


def after_the_flip(**settings: object) -> tuple[float, list[float]]:
    """Return the best accuracy that there is, and those of the rounds after a sudden drift."""
    task = plain_task(p=3, records=SLOTS, **settings)
    best = accuracy(-population_target(3, q=1.0, ridge=0.01))
    stream = stream_of(task, seed=0, rounds=FLIP + AFTER, clients=OF_DRIFT, flip=FLIP)
    found = [accuracy(estimate.coefficients) for _, estimate in stream]
    assert max(found[10:FLIP]) < 0.3
    return best, found[FLIP:]


@pytest.mark.parametrize(
    "kind",
    [pytest.param({"epsilon": 2.0}, marks=pytest.mark.slow), {"private": False}],
    ids=["private", "open"],
)
def test_forgetting_follows_a_sudden_drift_within_two_half_lives(kind: dict[str, object]) -> None:
    best, kept = after_the_flip(**kind)
    _, faded = after_the_flip(**kind, forgetting=HALF_LIFE)
    assert min(faded[9:]) > best - 0.02
    # most releases are still from before: without forgetting nothing has moved
    assert max(kept[:10]) < 0.4
