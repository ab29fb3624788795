"""What a plan says of locally private gradients before there are records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import plans
from benchmarks.limit_law import standard_errors
from benchmarks.sgd_designs import Row
from pipeline.api.check import check_study
from pipeline.api.planning import proposed, verdict
from pipeline.errors import NumericError
from pipeline.estimators.population import Population, target_of
from pipeline.methods import method_of, task_of
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.plan import due, exact, of_residuals, records_needed, slope_error
from pipeline.methods.ldp_sgd.step_rule import mean_products, rule_of
from pipeline.records.blocks import with_intercept
from pipeline.simulate.coverage import simulated
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.sgd import study_text

RELEASED = 'releases = "gradients+curvature"'


def task_for(loss: str) -> GradientTask:
    text = study_text(loss=loss, path=RELEASED)
    if loss == "expectile":
        text = text.replace("residual_bound", "tau = 0.8\nresidual_bound")
    task = task_of(parse_study(text))
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


def test_plan_and_check_say_it_before_there_are_records() -> None:
    study = parse_study(study_text(loss="logistic", epsilon=2.0, path=RELEASED))
    few = proposed(study, 40_000, 8)
    assert few.own.outlook.exact is not None
    assert f"where even an exact one is +-{few.own.outlook.exact.half:.2g}" in verdict(few)
    said = check_study(study)["intervals"]
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
    [("sgd-many", 0.3), ("sgd-wide", 0.3), ("sgd-numbers", 0.3), ("sgd-late", 0.4)],
)
def test_intervals_come_when_a_plan_says(name: str, far: float) -> None:
    """Whether noise, a curvature that it hides, or models that are late keep them away.

    Late models are near their start, where losses of classes are steeper: it counts as further.
    """
    planned = plans.DESIGNS[name]
    study = planned.study
    found = method_of(study).plan(task_of(study), planned.records, planned.clients)
    short = dataclasses.replace(planned, records=round(1.5 * found.usual))
    first = np.median([plans.stream(short, number)[0] for number in range(12)])
    assert (found.first or found.usual) == pytest.approx(first, rel=far)
