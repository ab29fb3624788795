"""What a path aims at: against a general minimiser, and where there is no such point."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from pipeline.errors import DataError, NumericError
from pipeline.estimators.reference_fit import TOLERANCE, study_rows, target
from pipeline.methods.ldp_sgd.client import weighted
from pipeline.records.encoder import stack
from pipeline.types import Vector
from tests.sgd import drawn, rows_of, task_of


@pytest.mark.parametrize("loss", ["linear", "logistic", "expectile"])
def test_it_is_the_minimum_of_the_weighted_loss(loss: str) -> None:
    estimator = {"expectile": "residual_bound = 0.6725\ntau = 0.8"}.get(loss)
    # a clipping_norm below the length of every record: all weights count
    task = task_of(loss=loss, path="clipping_norm = 1.3", estimator=estimator)
    features, responses = drawn(loss, 2000, seed=5)
    # features of other lengths, so that weights differ, too
    features = features * np.random.default_rng(6).uniform(0.1, 1, (2000, 1))
    x, y = stack(rows_of(task, features, responses), task.size - 1)[:2]
    design = np.hstack([np.ones((len(x), 1)), x])
    weights = weighted(task, design)[:, 0]
    assert weights.min() < 0.7
    assert weights.max() > 0.9

    def mean_loss(theta: Vector) -> float:
        return float(np.mean(weights * task.loss.value(design @ theta, y)))

    def gradient(theta: Vector) -> Vector:
        found: Vector = design.T @ (weights * task.loss.slope(design @ theta, y)) / len(y)
        return found

    rows = study_rows(task, x, y)
    found = target(task, lambda: [rows]).coefficients
    reference = minimize(mean_loss, np.zeros(task.size), jac=gradient, tol=1e-12).x
    # a minimiser knows its point to the root of the machine precision of the value
    assert_allclose(found, reference, atol=1e-6)
    # columns have a mean square of at most one
    assert np.abs(gradient(found)).max() <= TOLERANCE


def test_records_that_do_not_determine_it_are_an_error() -> None:
    task = task_of()
    rows = study_rows(task, np.zeros((5, 3)), np.ones(5))
    with pytest.raises(NumericError, match="collinear"):
        target(task, lambda: [rows])
    with pytest.raises(DataError, match="no records"):
        target(task, list)
