"""The reference solver: where it ends, against a general minimiser, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from pipeline.errors import DataError, NumericError
from pipeline.estimators.reference_fit import TOLERANCE, Rows, pooled_fit, study_rows, target
from pipeline.losses import GeneralisedDWD, Linear, Logistic
from pipeline.methods.ldp_sgd.client import weighted as record_weights
from pipeline.records.encoder import stack
from pipeline.types import Vector
from tests.builders import simulate
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
