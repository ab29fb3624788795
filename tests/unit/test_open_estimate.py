from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pipeline.errors import NumericError
from pipeline.estimators.estimate import Estimate, class_weights
from pipeline.linalg import floor_eigenvalues, pack_upper, sandwich, solve_positive
from pipeline.methods import method_of
from pipeline.methods.renewable import open as open_side
from pipeline.methods.renewable.client import local_fit, summarise
from pipeline.methods.renewable.open import OpenRow, OpenState, estimate_open
from pipeline.records.encoder import Arrays
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from tests.builders import oracle, simulate, task_of

RIDGE = 0.01


@pytest.fixture(autouse=True)
def no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points here are drawn at random, for the formulas alone: none is too far."""
    monkeypatch.setattr(open_side, "is_far", lambda *_: False)


def row_of(
    task: Task,
    features: np.ndarray,
    responses: np.ndarray,
    at: np.ndarray,
    weights: tuple[float, float] = (1.0, 1.0),
) -> OpenRow:
    s = summarise(task, features, responses, at, weights)
    return OpenRow(
        s.records, at, s.gradient, pack_upper(s.curvature), pack_upper(s.scores),
        np.array(s.counts, dtype=float),
    )  # fmt: skip


def state_of(task: Task, rows: list[OpenRow]) -> OpenState:
    state = OpenState(task.size)
    state.fold(rows)
    return state


def start_at(task: Task, window: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return local_fit(task.loss, *window, task.study.estimator.ridge)


def test_the_additive_form_equals_the_recursion_where_nothing_is_stale() -> None:
    """Equation (37), with the same ridge in gradient and curvature, as the spec demands."""
    task = task_of(p=3, private=False, ridge=RIDGE)
    rng = np.random.default_rng(0)
    penalty = np.diag([0.0, RIDGE, RIDGE, RIDGE])
    batches = [[simulate(rng, 40, 3) for _ in range(5)] for _ in range(40)]
    theta = start_at(task, batches[0][0])
    bread, state = np.zeros((4, 4)), OpenState(task.size)
    for number, batch in enumerate(batches):
        gradient = np.zeros(4)
        for features, responses in batch:
            s = summarise(task, features, responses, theta, (1.0, 1.0))
            bread += s.curvature + 40 * penalty
            gradient += s.gradient + 40 * penalty @ theta
        state.fold([row_of(task, *window, theta) for window in batch])
        theta = theta - np.linalg.solve(bread, gradient)
        found = estimate_open(task, state).coefficients
        assert_allclose(found, theta, atol=1e-12, err_msg=str(number))
        theta = found


def test_one_more_linearisation_at_the_pooled_fit_stays_there() -> None:
    """At the minimiser itself, with the released curvature, a Newton step has nothing to do."""
    task = task_of(p=3, private=False, ridge=RIDGE)
    features, responses = simulate(np.random.default_rng(3), 5000, 3)
    pooled = oracle(features, responses, np.ones(5000), q=1.0, ridge=RIDGE)
    state = state_of(task, [row_of(task, features, responses, pooled)])
    assert_allclose(estimate_open(task, state).coefficients, pooled, atol=1e-7)


def test_an_open_study_gives_no_interval_before_it_has_records_enough() -> None:
    task = task_of(p=3, private=False)
    rng = np.random.default_rng(5)
    empty = estimate_open(task, OpenState(task.size))
    assert (empty.status, empty.covariance) == ("empty", None)
    assert empty.intervals(0.95) is None
    few = estimate_open(task, state_of(task, [row_of(task, *simulate(rng, 39, 3), np.ones(4))]))
    assert few.status == "warming"
    assert "40 records" in few.reason
    assert few.standard_errors() is None
    ready = estimate_open(task, state_of(task, [row_of(task, *simulate(rng, 40, 3), np.ones(4))]))
    assert ready.status == "ready"
    assert ready.details == {"design_effect": None}
    errors = ready.standard_errors()
    assert errors is not None
    assert np.all(errors[2] == 0)


def test_no_curvature_gives_a_reason_and_no_made_up_number() -> None:
    task = task_of(p=3, private=False, ridge=0.0)
    features, responses = simulate(np.random.default_rng(6), 50, 3)
    # far on the wrong side, where the loss is a straight line
    far = np.array([-9.0 * responses[0], 0.0, 0.0, 0.0])
    one_class = np.full_like(responses, responses[0])
    found = estimate_open(task, state_of(task, [row_of(task, features, one_class, far)]))
    assert found.status == "warming"
    assert "do not determine intercept, x0, x1, x2: " in found.reason
    assert found.covariance is None


def test_what_records_do_not_determine_is_drawn_to_0_named_and_comes_back() -> None:
    """A column that hardly moves, and whose few other values all go with one class.

    Its coefficient has no finite fit, nor has the intercept; models must stay near, or all sums to
    come are taken where the loss is flat.
    """
    task = task_of(p=3, private=False, ridge=0.0, loss="logistic", records=250)
    rng = np.random.default_rng(1)
    run, found = OfflineRun(task), list[Estimate]()
    for number in range(40):
        features = rng.uniform(-1, 1, (250, 3))
        chance = 1 / (1 + np.exp(1 - features[:, 0] + features[:, 1] / 2))
        responses = np.where(rng.random(250) < chance, 1.0, -1.0)
        features[:, 2] = -1.0
        if number % 4 == 0:
            features[np.flatnonzero(responses < 0)[:2], 2] = -0.9
        if number >= 16:
            features[:, 2] = np.where(rng.random(250) < 0.1, 0.5, -1.0)
        client = f"c{number % 6}"
        run.fold(client, run.release(client, Arrays(features, responses), run.model))
        found.append(run.publish())
    for early in found[:16]:
        assert early.status == "warming"
        assert early.reason.startswith("the records so far do not determine intercept, x2:")
        assert np.abs(early.coefficients).max() < open_side.LARGE
    assert_allclose(found[-1].coefficients, [-1.0, 1.0, -0.5, 0.0], atol=0.2)


@pytest.mark.parametrize("loss", ["logistic", "linear", "poisson"])
def test_windows_without_a_usable_record_leave_the_start(loss: str) -> None:
    task = task_of(p=3, private=False, ridge=0.0, loss=loss)
    nothing = row_of(task, np.empty((0, 3)), np.empty(0), np.zeros(4))
    found = estimate_open(task, state_of(task, [nothing]))
    assert found.status == "warming"
    assert not found.coefficients.any()


def test_units_do_not_decide_what_records_determine() -> None:
    """Of a column in grams or in tons the same records tell the same."""
    features, responses = simulate(np.random.default_rng(8), 400, 3)
    steps = np.array([1e-3, 1.0, 1e4])
    found = []
    for unit in (np.ones(3), steps):
        declared = [f"x{i} = {{ min = {-u}, max = {u} }}" for i, u in enumerate(unit)]
        task = task_of(declared=declared, private=False, ridge=0.0, loss="logistic", scaling="none")
        at = np.array([0.1, 0.2, -0.1, 0.0]) / np.append(1.0, unit)
        rows = [row_of(task, features * unit, responses, at)]
        found.append(estimate_open(task, state_of(task, rows)))
        assert found[-1].status == "ready"
    assert_allclose(found[1].coefficients[1:] * steps, found[0].coefficients[1:], rtol=1e-6)


def test_weights_count_a_record_as_often_as_they_say() -> None:
    task = task_of(p=2, private=False, maximum=4.0)
    features, responses = simulate(np.random.default_rng(7), 300, 2)
    at = np.array([0.2, 0.5, -0.5])
    heavy = row_of(task, features, responses, at, (1.0, 3.0))
    again = np.concatenate([np.flatnonzero(responses < 0), *[np.flatnonzero(responses > 0)] * 3])
    plain = row_of(task, features[again], responses[again], at)
    assert_allclose(heavy.gradient, plain.gradient, atol=1e-10)
    assert_allclose(heavy.curvature, plain.curvature, atol=1e-10)


@pytest.mark.parametrize(
    ("negative", "positive", "largest", "wanted"),
    [
        (80.0, 20.0, 8.0, (0.625, 2.5)),
        (99.0, 1.0, 8.0, (100 / 198, 8.0)),
        (100.0, -5.0, 8.0, (0.5, 8.0)),
        (0.0, 0.0, 8.0, (1.0, 1.0)),
        (-3.0, -4.0, 8.0, (1.0, 1.0)),
        (80.0, 20.0, 1.0, (1.0, 1.0)),
    ],
)
def test_class_weights_balance_the_classes_up_to_their_maximum(
    negative: float, positive: float, largest: float, wanted: tuple[float, float]
) -> None:
    assert class_weights(negative, positive, largest) == pytest.approx(wanted)


def test_intervals_are_symmetric_and_as_wide_as_their_level() -> None:
    estimate = Estimate(
        coefficients=np.array([1.0, 2.0]),
        covariance=np.diag([0.04, 0.01]),
        privacy_covariance=np.diag([0.01, 0.09]),
        weights=(1.0, 1.0), status="ready", reason="", records=1, releases=1, condition=1.0,
        floored=0,
    )  # fmt: skip
    errors, ends = estimate.standard_errors(), estimate.intervals(0.95)
    assert errors is not None
    assert ends is not None
    # the second total is below its known privacy part: it is raised to it
    assert_allclose(errors[0], [0.2, 0.3])
    assert_allclose(errors[1], [np.sqrt(0.03), 0.0])
    assert_allclose(errors[2], [0.1, 0.3])
    assert_allclose(ends[1] - estimate.coefficients, 1.959964 * errors[0], rtol=1e-6)
    assert_allclose(ends[0] + ends[1], 2 * estimate.coefficients)


def test_the_floor_raises_what_is_low_and_leaves_the_rest() -> None:
    rng = np.random.default_rng(8)
    basis, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    matrix = (basis * [-3.0, 0.1, 2.0, 5.0]) @ basis.T
    repaired, raised, values = floor_eigenvalues(matrix, 1.0)
    assert raised == 2
    assert values is not None
    assert_allclose(np.sort(values), [1, 1, 2, 5])
    assert_allclose(np.linalg.eigvalsh(repaired), [1, 1, 2, 5])
    assert_allclose(repaired, (basis * [1.0, 1.0, 2.0, 5.0]) @ basis.T, atol=1e-12)
    same, none, _ = floor_eigenvalues(repaired, 0.5)
    assert none == 0
    assert same is repaired


def test_a_singular_or_broken_matrix_is_refused() -> None:
    for matrix in (np.zeros((2, 2)), -np.eye(2), np.full((2, 2), np.nan), np.full((2, 2), np.inf)):
        with pytest.raises(NumericError):
            solve_positive(matrix, np.ones(2))
    half = np.array([[2.0, 0.5], [0.5, 1.0]])
    inverse = np.linalg.inv(half)
    assert_allclose(sandwich(half, np.eye(2)), inverse @ inverse)


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_the_bread_of_an_open_study_is_the_derivative_of_the_mean_score(q: float) -> None:
    """A curvature that is too small on average makes every standard error too large.

    No noise is added to it here, so nothing is gained by a ramp that loses a third of it.
    """
    task = task_of(p=3, private=False, q=q)
    rng = np.random.default_rng(9)
    features = rng.uniform(-1, 1, (200_000, 3))
    at = np.array([0.25, 1.2, -0.75, 0.4])
    chance = 1 / (1 + np.exp(-(features @ [1.5, -1.0, 0.5] + 0.3)))
    responses = np.where(rng.random(len(features)) < chance, 1.0, -1.0)

    def score(theta: np.ndarray) -> np.ndarray:
        return summarise(task, features, responses, theta, (1.0, 1.0)).gradient

    wanted = [(score(at + s) - score(at - s))[i] / 0.04 for i, s in enumerate(0.02 * np.eye(4))]
    found = summarise(task, features, responses, at, (1.0, 1.0)).curvature
    assert_allclose(np.diag(found), wanted, rtol=0.1)


@pytest.mark.parametrize(("loss", "levels", "warned"), [
    ("gdwd", [-1.0, 1.0], True), ("gdwd", [0.0, 1.0], True), ("gdwd", [-1.0, 0.3, 1.0], False),
    ("logistic", [-1.0, 1.0], False),
])  # fmt: skip
def test_two_values_of_every_feature_are_a_warning_where_curvature_jumps(
    loss: str, levels: list[float], *, warned: bool
) -> None:
    task, rng = task_of(p=3, private=False, ridge=RIDGE, loss=loss), np.random.default_rng(6)
    rows = []
    for _ in range(40):
        features = rng.choice(levels, (50, 3))
        responses = np.where(rng.random(50) < 0.5 + 0.3 * features[:, 0], 1.0, -1.0)
        rows.append(row_of(task, features, responses, np.array([0.1, 0.8, 0.0, 0.0])))
    found = estimate_open(task, state_of(task, rows))
    assert found.status == "ready"
    assert (found.reason == open_side.AT_THE_KINK) is warned


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"private": False}, True),
        ({"private": False, "loss": "logistic"}, False),
        ({"private": True}, False),
    ],
)
def test_an_open_study_hears_of_sums_that_keep_early_curvatures(
    settings: dict[str, object], *, told: bool
) -> None:
    task = task_of(**settings)  # type: ignore[arg-type]
    words = " ".join(method_of(task.study).plan(task, 10_000, 4).warnings)
    assert ("early models" in words) == told
