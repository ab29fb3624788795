"""The exact fit without privacy: its point, its intervals, and who may have one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit

import veilstream as vs
from pipeline.errors import ConfigError, DataError
from pipeline.estimators.reference_fit import (
    INTERVAL,
    RECORDS_PER_COEFFICIENT,
    exact_fit,
    study_rows,
    target,
)
from pipeline.methods import task_of
from pipeline.records.encoder import Arrays
from pipeline.study_file.load import parse_study
from pipeline.types import Vector
from tests.builders import study_text

TRUTH = np.array([0.3, 6.0, -0.5, 0.2])


def draw(rng: np.random.Generator, records: int) -> Arrays:
    x = rng.uniform(-1, 1, (records, 3))
    y = np.where(rng.random(records) < expit(TRUTH[0] + x @ TRUTH[1:]), 1.0, -1.0)
    return Arrays(x, y, np.zeros(records, dtype=np.int64))


def test_of_least_squares_it_is_the_sandwich_of_the_books() -> None:
    task = task_of(parse_study(study_text(loss="linear", ridge=0.0, private=False)))
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


@pytest.mark.parametrize("loss", ["gdwd", "logistic"])
def test_its_intervals_hold_the_penalised_fit_of_the_population(loss: str) -> None:
    # a large ridge and a strong feature: scores without the ridge have thrice their variance
    task = task_of(parse_study(study_text(loss=loss, ridge=0.5, maximum=8.0)))
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
    task = task_of(parse_study(study_text()))
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
    task = task_of(study)
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
