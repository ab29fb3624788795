"""The reference solver: where it ends, what it refuses, and that it finds what others found."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.backtest import backtest
from pipeline.errors import DataError, NumericError
from pipeline.estimators.population import Population, target_of
from pipeline.estimators.reference_fit import TOLERANCE, Rows, pooled_fit, study_rows, target
from pipeline.losses import GeneralisedDWD, Linear, Logistic
from pipeline.records.encoder import stack
from pipeline.simulate.coverage import simulated
from pipeline.study_file.edit import with_keys
from pipeline.study_file.load import parse_study, read_study
from tests.builders import simulate
from tests.builders import study_text as renewable
from tests.sgd import drawn, rows_of, task_of
from tests.sgd import study_text as gradients
from tests.unit.test_backtest import BATCH, STUDIES, history

#: What four solvers of their own gave before they became one.
GOLDEN = Path(__file__).parent.parent / "golden" / "pooled.json"
WIDE = {
    "expectile": gradients(
        loss="expectile", path="clipping_norm = 1.2", estimator="residual_bound = 1\ntau = 0.2"
    ),
    "linear": gradients(loss="linear", estimator="residual_bound = 40"),
    "logistic": gradients(loss="logistic", path="clipping_norm = 1.2"),
    "gdwd": renewable(p=2, loss="gdwd"),
    "gdwd, weighted": renewable(p=2, loss="gdwd", maximum=8.0, norm_bound=1.3),
    "poisson": renewable(p=2, loss="poisson", most=12),
}
TRUTHS = {
    **dict.fromkeys(("expectile", "linear"), np.array([2.0, 7.0, -7.0, 7.0])),
    "gdwd, weighted": np.array([0.7, 1.0, -0.5]),
}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", [*BATCH, "gdwd"])
def test_a_backtest_finds_what_it_found(name: str, golden: dict[str, Any]) -> None:
    text = STUDIES["classes"].replace("logistic", "gdwd") if name == "gdwd" else STUDIES[name]
    study = read_study(text)
    if study.estimator.kind == "renewable":
        # the ridge that was the default then; it follows the noise now
        study = with_keys(study, {"estimator.ridge": 1e-3}, name=name)
    found = backtest(study, history(study, 2_000)).pooled.coefficients
    # its last step was 1e-7 at most, and responses are up to 40 wide
    assert found == pytest.approx(golden["backtest"][name], abs=4e-6)


@pytest.mark.parametrize("name", WIDE)
def test_the_doctor_finds_what_it_found(name: str, golden: dict[str, Any]) -> None:
    task = simulated(parse_study(WIDE[name]))
    found = target_of(Population.of(task, TRUTHS.get(name))).coefficients
    # its gradient was 1e-8 at most, over curvatures of at least 1e-2
    assert found == pytest.approx(golden["doctor"][name], abs=2e-6)


@pytest.mark.parametrize("loss", ["linear", "logistic", "expectile"])
def test_a_path_aims_at_what_it_aimed_at(loss: str, golden: dict[str, Any]) -> None:
    estimator = {"expectile": "residual_bound = 0.6725\ntau = 0.8"}.get(loss)
    task = task_of(loss=loss, path="clipping_norm = 1.3", estimator=estimator)
    rows = study_rows(task, *stack(rows_of(task, *drawn(loss, 500, seed=5)), task.size - 1)[:2])
    found = target(task, lambda: [rows]).coefficients
    # its last step was 1e-9 at most, and steps shrank slowly
    assert found == pytest.approx(golden["records"][loss], abs=1e-7)


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
