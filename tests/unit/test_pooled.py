"""The reference solver: where it ends, against a general minimiser, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import expit

import veilstream as vs
from pipeline.errors import ConfigError, DataError, NumericError
from pipeline.estimators.reference_fit import (
    INTERVAL,
    RECORDS_PER_COEFFICIENT,
    TOLERANCE,
    Rows,
    exact_fit,
    pooled_fit,
    study_rows,
    target,
)
from pipeline.losses import GeneralisedDWD, Linear, Logistic
from pipeline.methods import task_of as make_task
from pipeline.methods.ldp_sgd.client import weighted as record_weights
from pipeline.records.encoder import Arrays, stack
from pipeline.study_file.load import parse_study
from pipeline.types import Vector
from tests.builders import simulate, study_text
from tests.sgd import drawn, rows_of, task_of


def rows(n: int = 300, seed: int = 0) -> Rows:
    x, y = simulate(np.random.default_rng(seed), n, 2)
    return Rows(np.column_stack([np.ones(n), x]), y)


@pytest.mark.parametrize("loss", [GeneralisedDWD(1.0), GeneralisedDWD(100.0), Logistic()])
@pytest.mark.parametrize("start", [np.zeros(3), np.array([40.0, -300.0, 300.0])])
def test_it_ends_at_a_gradient_of_zero_wherever_it_starts(
    loss: GeneralisedDWD | Logistic, start: np.ndarray
) -> None:
    every, penalty = rows(), np.array([0.0, 1e-3, 1e-3])
    fit = pooled_fit(loss, lambda: [every], penalty, start=start)
    slope = loss.slope(every.design @ fit.coefficients, every.responses)
    gradient = every.design.T @ slope / len(slope) + penalty * fit.coefficients
    assert np.abs(gradient).max() <= TOLERANCE
    assert fit.score <= TOLERANCE


def test_a_weight_is_as_many_rows_and_parts_are_as_one() -> None:
    every, penalty = rows(), np.array([0.0, 0.01, 0.01])
    times = np.where(np.arange(300) % 3, 1, 3)
    n = times.sum()
    # the mean is over rows, so that weights must sum to as many
    weighted = Rows(every.design, every.responses, times * (300 / n))
    parts = [
        Rows(weighted.design[cut], weighted.responses[cut], weighted.weights[cut])  # type: ignore[index]
        for cut in (slice(0, 7), slice(7, 7), slice(7, 300))
    ]
    repeated = Rows(np.repeat(every.design, times, axis=0), np.repeat(every.responses, times))
    one, two, three = (
        pooled_fit(Logistic(), read, penalty).coefficients
        for read in (lambda: [weighted], lambda: parts, lambda: [repeated])
    )
    # scores of 1e-10 over curvatures of at least 0.02
    assert two == pytest.approx(one, abs=1e-8)
    assert three == pytest.approx(one, abs=1e-8)


def test_a_quadratic_takes_two_passes() -> None:
    every, passes = rows(), 0

    def read() -> Iterable[Rows]:
        nonlocal passes
        passes += 1
        yield every

    fit = pooled_fit(Linear(), read, np.zeros(3), share=0.0)
    assert (passes, fit.steps) == (2, 1)


@pytest.mark.parametrize("loss", [GeneralisedDWD(1.0), Logistic()])
def test_what_has_no_best_fit_is_refused_with_the_reason(loss: GeneralisedDWD | Logistic) -> None:
    every, free = rows(), np.zeros(3)
    cases = {
        "separable": Rows(every.design, np.where(every.design[:, 1] > 0, 1.0, -1.0)),
        "one class only": Rows(every.design, np.ones(300)),
        "collinear": Rows(every.design[:, [0, 1, 1]], every.responses),
    }
    for words, part in cases.items():
        with pytest.raises(NumericError, match=words):
            pooled_fit(loss, lambda part=part: [part], free)  # type: ignore[misc]
    with pytest.raises(NumericError, match="did not converge in 2 passes"):
        pooled_fit(loss, lambda: [every], free, passes=2)
    with pytest.raises(DataError, match="no records"):
        pooled_fit(loss, list, free)


@pytest.mark.parametrize("loss", ["linear", "logistic", "expectile"])
def test_a_path_aims_at_the_minimum_of_the_weighted_loss(loss: str) -> None:
    estimator = {"expectile": "residual_bound = 0.6725\ntau = 0.8"}.get(loss)
    # a clipping_norm below the length of every record: all weights count
    task = task_of(loss=loss, path="clipping_norm = 1.3", estimator=estimator)
    features, responses = drawn(loss, 2000, seed=5)
    # features of other lengths, so that weights differ, too
    features = features * np.random.default_rng(6).uniform(0.1, 1, (2000, 1))
    x, y = stack(rows_of(task, features, responses), task.size - 1)[:2]
    design = np.hstack([np.ones((len(x), 1)), x])
    weights = record_weights(task, design)[:, 0]
    assert weights.min() < 0.7
    assert weights.max() > 0.9

    def mean_loss(theta: Vector) -> float:
        return float(np.mean(weights * task.loss.value(design @ theta, y)))

    def gradient(theta: Vector) -> Vector:
        found: Vector = design.T @ (weights * task.loss.slope(design @ theta, y)) / len(y)
        return found

    found = target(task, lambda: [study_rows(task, x, y)]).coefficients
    reference = minimize(mean_loss, np.zeros(task.size), jac=gradient, tol=1e-12).x
    # a minimiser knows its point to the root of the machine precision of the value
    assert_allclose(found, reference, atol=1e-6)
    # columns have a mean square of at most one
    assert np.abs(gradient(found)).max() <= TOLERANCE


TRUTH = np.array([0.3, 6.0, -0.5, 0.2])


def draw(rng: np.random.Generator, records: int) -> Arrays:
    x = rng.uniform(-1, 1, (records, 3))
    y = np.where(rng.random(records) < expit(TRUTH[0] + x @ TRUTH[1:]), 1.0, -1.0)
    return Arrays(x, y, np.zeros(records, dtype=np.int64))


def test_of_least_squares_it_is_the_sandwich_of_the_books() -> None:
    task = make_task(parse_study(study_text(loss="linear", ridge=0.0, private=False)))
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (500, 3))
    y = 0.2 + x @ [0.3, -0.2, 0.1] + rng.normal(size=500) * 0.1 * (1 + x[:, 0])
    whole = Arrays(x, y, np.zeros(500, dtype=np.int64))
    parts = [Arrays(x[i::7], y[i::7], whole.levels[i::7]) for i in range(7)]
    found = exact_fit(task, lambda: parts)
    design = np.c_[np.ones(500), x]
    inverse = np.linalg.inv(design.T @ design)
    point = inverse @ design.T @ y
    residuals = y - design @ point
    assert_allclose(found.coefficients, point, atol=1e-9)
    assert found.covariance is not None
    white = inverse @ (design.T * residuals**2) @ design @ inverse
    assert_allclose(found.covariance, white, rtol=1e-8)
    assert found.dispersion == pytest.approx(np.mean(residuals**2))
    assert (found.status, found.interval, found.records) == ("ready", INTERVAL, 500)


@pytest.mark.parametrize("loss", ["gdwd", pytest.param("logistic", marks=pytest.mark.slow)])
def test_its_intervals_hold_the_penalised_fit_of_the_population(loss: str) -> None:
    # a large ridge and a strong feature: scores without the ridge have thrice their variance
    task = make_task(parse_study(study_text(loss=loss, ridge=0.5, maximum=8.0)))
    rng = np.random.default_rng(5)
    many = draw(rng, 200_000)
    share = np.mean(many.responses > 0)
    weights = (0.5 / (1 - share), 0.5 / share)
    rows = study_rows(task, many.features, many.responses, weights)
    aim = target(task, lambda: [rows]).coefficients
    held = []
    for _ in range(200):
        part = [draw(rng, 600)]
        estimate = exact_fit(task, lambda part=part: part)
        low, high = estimate.intervals(0.95) or (np.nan, np.nan)
        held.append((low <= aim) & (aim <= high))
    # 200 streams: a share of .95 has a Monte Carlo error of .0154 for one coefficient; the
    # weights of the classes are estimated, too, and move the intercept alone
    assert np.all(np.mean(held, axis=0)[1:] > 0.95 - 4 * 0.0154)
    assert np.all(np.mean(held, axis=0)[1:] < 0.95 + 3 * 0.0154)


def test_few_records_have_no_intervals_and_none_have_no_fit() -> None:
    task = make_task(parse_study(study_text()))
    needed = RECORDS_PER_COEFFICIENT * task.size
    few = exact_fit(task, lambda: [draw(np.random.default_rng(1), needed - 1)])
    assert (few.status, few.covariance) == ("warming", None)
    assert str(needed) in few.reason
    with pytest.raises(DataError, match="no records"):
        exact_fit(task, list)


def columns(records: int) -> dict[str, Vector | list[str]]:
    drawn = draw(np.random.default_rng(2), records)
    said = ["1" if response > 0 else "0" for response in drawn.responses]
    return {**{f"x{i}": drawn.features[:, i] for i in range(3)}, "y": said}


def test_a_program_gets_it_from_fit() -> None:
    study = parse_study(study_text(ridge=0.01))
    result = vs.fit(study, columns(1000), exact=True)
    assert (result.status, result.study.name) == ("ready", "test-open")
    assert result.study.privacy.mechanism == "none"
    # it has no releases, and does not speak of any
    assert "1000 record slots, one fit to all of them, 1 client" in result.summary()
    assert result.guarantee.startswith("none: ")
    assert "release" not in result.summary()
    task = make_task(study)
    drawn = draw(np.random.default_rng(2), 1000)
    aim = target(task, lambda: [study_rows(task, drawn.features, drawn.responses)]).coefficients
    assert_allclose(list(result.coefficients.values()), aim, atol=1e-12)
    # the order of records, and how many clients they have, change nothing
    turned = {name: column[::-1] for name, column in columns(1000).items()}
    again = vs.fit(study, turned, exact=True)
    assert_allclose(list(again.coefficients.values()), aim, atol=1e-9)


def test_a_study_that_forgets_and_a_published_method_have_none() -> None:
    study = parse_study(study_text(forgetting='half_life = 500, of = "records"'))
    with pytest.raises(ConfigError, match="forgets"):
        vs.fit(study, columns(100), exact=True)
    pooled = study_text(private=False).replace("[estimator]", '[estimator]\nkind = "pooled"')
    with pytest.raises(ConfigError, match="keeps no guarantee anyway"):
        vs.fit(parse_study(pooled), columns(100), exact=True)
