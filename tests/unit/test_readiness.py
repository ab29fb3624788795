"""Streams on which intervals would be wrong: they must not be given."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import known_curvature
from pipeline.methods.renewable.solution import (
    Directions,
    Solution,
    bread_of,
    hides,
    moves,
    shortened,
)
from pipeline.records.encoder import Encoder, Row
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from tests.builders import study_text


def streamed(text: str, features: np.ndarray, responses: np.ndarray, clients: int = 4) -> Estimate:
    """Return the estimate of records that are dealt to clients window by window."""
    task = task_of(parse_study(text))
    encoder, run = Encoder(task.study), OfflineRun(task)
    rows: list[Row] = encoder.rows(
        features, [encoder.response.of_label(value) for value in responses.tolist()]
    )
    for number, start in enumerate(range(0, len(rows), task.slots)):
        run.add(f"client-{number % clients}", rows[start : start + task.slots])
    return run.estimate(0.0)[0]


def solution_of(curvature: np.ndarray, task: RenewableTask, noise: float = 0.02) -> Solution:
    """Return what is known of coefficients of 1 where the curvature's noise has that size."""
    bread = bread_of(curvature, task.penalty, noise)
    own, nothing = bread.vectors.T @ np.ones(task.size), np.zeros(task.size)
    at = Directions(curvature, bread.values, bread.vectors, noise, own, nothing, nothing)
    unknown = hides(task, at) > 0.1
    return cast("Solution", SimpleNamespace(bread=bread, unknown=unknown))


def hidden_by_hand(task: RenewableTask, at: Directions) -> list[float]:
    """Return the variances by the formulas of docs/methods/renewable.md, one after the other."""
    loss, d, s, a, v = task.loss.name, len(at.own), at.size, at.values, at.vectors
    w = [min(max(1 - x / (1.75 * s), 0), 1) for x in a]
    u = w if loss == "gdwd" else [min(max((2.5 - x / s) / 0.75, 0), 1) for x in a]
    r = [s * x for x in w]
    own = [math.sqrt(x * x + y) for x, y in zip(at.own, at.spread, strict=True)]
    known = [x * x for x, part in zip(own, u, strict=True) if part < 0.5]
    least = {"gdwd": 0.5, "logistic": 1, "linear": task.loss.slope_bound / 4, "poisson": 0.3}
    tau = max(sum(known) / len(known) if known else 1.0, least[loss] ** 2)
    along = []
    for i in range(d):
        rho = r[i] / (max(a[i], 0) + r[i]) if r[i] else 0.0
        taken = rho / (1 - rho) * own[i] if rho < 0.7 else 0.0
        along.append(max(u[i] ** 2 * tau, taken**2))
    m = [max(max(x, 0) + y, s / 2) for x, y in zip(a, r, strict=True)]
    moved = [s * s / (2 * d * y * y) * sum(along) for y in m]
    found = [max(sum(v[j] ** 2 * along), sum(v[j] ** 2 * moved)) for j in range(d)]
    if loss == "linear":
        return found
    weight, most = at.curvature[0, 0], {"gdwd": 1, "logistic": 3, "poisson": 0.25}[loss]
    loads, unseen = [], []
    for j, name in enumerate(task.study.coefficient_names):
        c = at.curvature[j, j] - (at.curvature[0, j] ** 2 / weight if j else 0) - s
        c = max(c, weight / 4 if name in ("c=v", "c=w", "m_missing") else 1e-12)
        loads.append([v[j, i] ** 2 * u[i] * (max(a[i], 0) + s) / c for i in range(d)])
        unseen.append(c <= s)
    shares = [min(sum(row[i] for row in loads), 1) for i in range(d)]
    mean = 0.0
    for i in range(d):
        held = 4 * sum(v[j, i] ** 2 * task.penalty[j] for j in range(d))
        score = (abs(r[i] * own[i]) + 2 * math.sqrt(at.chance[i])) ** 2
        mean += shares[i] * score / max(a[i] - s, s / 100, held) / weight
    mean = min(mean / sum(shares), 1) if sum(shares) else 0
    each = [min(most, min(most, 1) * sum(row)) * mean for row in loads]
    square = sum(each)
    if loss == "poisson":
        return [found[0] + (square / 2) ** 2, *found[1:]]
    chance = [sum(v[j, i] ** 2 * at.chance[i] / m[i] ** 2 for i in range(d)) for j in range(d)]
    theta = [math.hypot(x, 1.5 * math.sqrt(y)) for x, y in zip(v @ at.own, chance, strict=True)]
    lost = [x * (1 - 1 / math.sqrt(1 + 0.346 * square)) for x in theta]
    lost[0] = math.hypot(lost[0], math.sqrt(sum(np.array(each)[unseen])) / 2)
    return [x + y * y for x, y in zip(found, lost, strict=True)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loss", ["gdwd", "logistic", "linear", "poisson"])
def test_what_is_hidden_is_as_documented(loss: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    levels = """c = { kind = "category", levels = ["u", "v", "w"] }
m = { min = 0, max = 1, missing = 0, indicator = true }"""
    text = study_text(p=3, loss=loss, mechanism="insecure-simulation", seed=1, epsilon=1.0,
                      delta=1e-6, ridge=0.002 * (seed % 2))  # fmt: skip
    task = task_of(parse_study(text.replace("[data.features]", f"[data.features]\n{levels}")))
    assert isinstance(task, RenewableTask)
    d = task.size
    assert d == 8
    # from directions that are all known to ones that are not, and features in slivers
    root = rng.normal(size=(d, d)) * 10.0 ** rng.uniform(-1.5, 0, d)
    noise = rng.normal(size=(d, d)) / 8
    curvature = root @ root.T / d + (noise + noise.T) / 2 + np.diag(np.eye(d)[0])
    values, vectors = np.linalg.eigh(curvature + np.diag(task.penalty))
    at = Directions(
        curvature, values, vectors, float(rng.uniform(0.05, 0.6)), rng.normal(size=d),
        rng.uniform(0, 0.2, d), rng.uniform(0, 1e-3, d),
    )  # fmt: skip
    np.testing.assert_allclose(hides(task, at), hidden_by_hand(task, at), rtol=1e-9, atol=1e-15)


def classes(rng: np.random.Generator, n: int, intercept: float) -> tuple[np.ndarray, np.ndarray]:
    features = rng.uniform(-1, 1, (n, 2))
    chance = 1 / (1 + np.exp(-(intercept + features @ [1.0, -1.0])))
    return features, np.where(rng.random(n) < chance, "1", "0")


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
def test_a_rare_class_has_no_interval_while_models_are_far_from_it(seed: int) -> None:
    features, responses = classes(np.random.default_rng(seed), 25_000, -4.0)
    private = study_text(
        p=2, loss="logistic", mechanism="insecure-simulation", seed=seed, epsilon=8.0, delta=1e-6,
        ridge=0.0, records=500,
    )  # fmt: skip
    found = streamed(private, features[:10_000], responses[:10_000])
    assert found.status == "warming", found.intervals(0.95)
    plain = study_text(p=2, loss="logistic", private=False, ridge=1e-4, records=50)
    rare_features, rare = classes(np.random.default_rng(seed), 20_000, -5.0)
    found = streamed(plain, rare_features, rare)
    assert found.status == "warming", found.intervals(0.95)


def test_windows_of_zero_counts_do_not_drive_a_stream_away() -> None:
    rng = np.random.default_rng(4)
    features = rng.uniform(-1, 1, (20_000, 2))
    counts = rng.poisson(np.exp(-4.0 + features @ [0.3, -0.3])).astype(float)
    text = study_text(p=2, loss="poisson", most=5, private=False, ridge=1e-4, records=20)
    found = streamed(text, features, counts)
    assert abs(found.coefficients[0] + 4.0) < 2.0
    nothing = streamed(text, features[:2000], np.zeros(2000))
    assert nothing.status == "warming"
    assert np.all(np.isfinite(nothing.coefficients))


def test_collinear_coefficients_have_no_short_interval_and_the_others_do() -> None:
    rng = np.random.default_rng(5)
    features, responses = classes(rng, 50_000, 0.3)
    features[:, 1] = features[:, 0]
    text = study_text(
        p=2, loss="logistic", mechanism="insecure-simulation", epsilon=8.0, delta=1e-6,
        ridge=0.0, records=500,
    )  # fmt: skip
    found = streamed(text, features, responses)
    ends = found.intervals(0.95)
    assert found.status == "ready"
    assert ends is not None
    lengths = ends[1] - ends[0]
    # the noise along their difference stays as large as what it may hide
    assert lengths[0] < 0.1
    assert np.all(np.isnan(lengths[1:]) | (lengths[1:] > 2))


@pytest.mark.parametrize(
    ("seed", "bound"),
    [(1, 0.2), *(pytest.param(*more, marks=pytest.mark.slow) for more in ((2, 2.0), (3, 4.0)))],
)
def test_of_a_number_too_a_copy_and_a_sliver_of_a_range_have_no_interval(
    seed: int, bound: float
) -> None:
    """What the noise hides is held for no smaller because residuals count in full further out."""
    rng = np.random.default_rng(seed)
    text = study_text(
        p=2, loss="linear", mechanism="insecure-simulation", seed=seed, epsilon=4.0, delta=1e-6,
        ridge=0.0, records=100, residual_bound=bound,
    )  # fmt: skip
    features = rng.uniform(-1, 1, (20_000, 2))
    noise = rng.normal(0, 0.05, len(features))
    # a copy: nobody can tell the two apart; a sliver: its slope of 4 is hidden
    for width, slope in ((None, 0.0), (0.02, 4.0)):
        features[:, 1] = features[:, 0] if width is None else rng.uniform(-width, width, 20_000)
        found = streamed(text, features, 0.16 * features[:, 0] + slope * features[:, 1] + noise)
        ends = found.intervals(0.95)
        if ends is not None:
            assert np.isnan(ends[0][2]), ends


def test_features_at_an_end_of_their_range_are_named_when_they_hide_the_intercept() -> None:
    rng = np.random.default_rng(6)
    features, responses = classes(rng, 25_000, 0.3)
    features[:, 1] = 0.02 * features[:, 1] - 0.95
    text = study_text(
        p=2, loss="logistic", mechanism="insecure-simulation", epsilon=1.0, delta=1e-6,
        ridge=0.003, records=250,
    )  # fmt: skip
    found = streamed(text, features, responses)
    assert "The records hardly tell the intercept from x1, " in found.reason
    assert "more records, or estimator.ridge = " in found.reason
    assert found.progress is not None
    assert 0 < found.progress.share < 1


@pytest.mark.parametrize("loss", ["logistic", pytest.param("linear", marks=pytest.mark.slow)])
def test_a_strong_feature_in_a_sliver_takes_intervals_of_classes_from_all(loss: str) -> None:
    """Once none of the intervals held: without it all slopes of classes are smaller by a third."""
    rng = np.random.default_rng(8)
    features = rng.uniform(-1, 1, (40_000, 3))
    features[:, 2] *= 0.03
    at = features @ [1.0, -1.0, 80.0]
    answers = np.where(rng.random(len(at)) < 1 / (1 + np.exp(-at)), "1", "0")
    if loss == "linear":
        answers = features @ [0.2, -0.2, 1.0] + rng.normal(0, 0.1, len(at))
    text = study_text(
        p=3, loss=loss, mechanism="insecure-simulation", epsilon=2.0, delta=1e-6, ridge=0,
        records=500, **({"residual_bound": 0.5} if loss == "linear" else {}),
    )  # fmt: skip
    found = streamed(text, features, answers)
    ends = found.intervals(0.95)
    assert "The values of x2 seem to fill little of its range" in found.reason
    assert "give a transform or a narrower range, or" in found.reason
    if loss == "linear":
        assert ends is not None
        assert np.isnan(ends[0]).tolist() == [False, False, False, True]
        assert ends[0][1] < 0.2 < ends[1][1]
    else:
        assert ends is None or np.isnan(ends[0][1:]).all()


def test_a_threshold_below_nearly_all_residuals_has_no_interval() -> None:
    rng = np.random.default_rng(6)
    features = rng.uniform(-1, 1, (4000, 2))
    responses = 0.2 * features[:, 0] + rng.normal(0, 0.2, 4000)
    text = study_text(p=2, loss="linear", private=False, records=50, residual_bound=1e-4)
    assert streamed(text, features, responses).status == "warming"


def test_a_step_goes_as_far_as_the_longer_of_two_bounds() -> None:
    task = task_of(parse_study(study_text(p=3, loss="logistic", private=True, norm_bound=2.0)))
    assert isinstance(task, RenewableTask)
    whole = np.array([0.0, 3.0, 0.0, 4.0])
    # 5 long, where a record's predictor moves by twice that: up to 2
    assert shortened(task, whole) == pytest.approx(whole / 5)
    # by 1.25 in the mean of records: up to a half
    assert shortened(task, whole, 1.25**2) == pytest.approx(whole / 2.5)
    assert shortened(task, whole, 0.49**2) == pytest.approx(whole)
    assert shortened(task, whole, 100.0) == pytest.approx(whole / 5)
    assert shortened(task, whole / 6, 100.0) == pytest.approx(whole / 6)


def test_a_level_that_most_records_have_is_to_be_the_base() -> None:
    region = 'kind = "category", levels = ["n", "s"]'
    text = study_text(p=2, loss="logistic", private=True, ridge=0.003, records=250)
    task = task_of(parse_study(re.sub(r"x1 = \{[^}]*\}", f"x1 = {{ {region} }}", text)))
    assert isinstance(task, RenewableTask)
    # the level has the value 1 in every record, as the intercept has
    products = np.array([[1.0, 0.0, 1.0], [0.0, 0.3, 0.0], [1.0, 0.0, 1.0]])
    told = "The records hardly tell the intercept from x1=s, which nearly all records seem to have"
    assert told in known_curvature(task, solution_of(0.2 * products, task, 0.009), 25_000).reason
    # a level of half the records has 0.05 along that direction, which noise could hide as well
    maybe = known_curvature(task, solution_of(0.2 * products, task, 0.011), 25_000).reason
    assert "seem" not in maybe
    assert "if nearly all records have x1=s, make it the base level, and if hardly any" in maybe


def test_what_a_new_study_should_declare_is_named_for_each_coefficient() -> None:
    """Two features near an end of their range: noise says not which of the directions is whose."""
    text = study_text(p=3, loss="logistic", private=True, ridge=1e-4, records=250)
    task = task_of(parse_study(text))
    assert isinstance(task, RenewableTask)
    products = np.outer([1.0, 0.0, -0.95, -0.95], [1.0, 0.0, -0.95, -0.95])
    products += np.diag([0.0, 0.3, 0.001, 0.001])
    found = solution_of(0.2 * products, task)
    assert found.unknown.tolist() == [True, True, True, True]
    assert found.bread.hidden == 2
    said = "if values of x1 or of x2 fill little of its range, a transform or a narrower range"
    assert said in known_curvature(task, found, 25_000).reason


def test_an_estimate_moves_while_a_shortened_step_lacks_what_intervals_do_not_know() -> None:
    errors = np.full(3, 0.04)
    whole = np.array([0.5, 0.5, 1.1])
    # near, cut by 1.2 deviations, and more than five deviations from the models
    assert moves(whole, whole * [1.0, 0.52, 1.0], errors).tolist() == [False, True, True]
    # half of the variance is what intervals allow for
    assert not moves(whole, whole - 0.99 * np.sqrt(errors / 2), errors)[:2].any()
    assert moves(whole, whole - 1.01 * np.sqrt(errors / 2), errors).all()
