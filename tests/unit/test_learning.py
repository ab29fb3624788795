"""Learning in this process: the stream's own sums, and the conventions of two libraries."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from river import evaluate, metrics
from river.datasets import Phishing
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer, r2_score
from sklearn.model_selection import cross_val_predict, cross_val_score

from pipeline.errors import ConfigError, DataError, NumericError, RecordError
from pipeline.learning import StreamClassifier, StreamRegressor
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import read_model_file, write_model_file
from pipeline.methods import task_of as make_task
from pipeline.prediction.estimators import LinearClassifier, LinearRegressor, load_model
from pipeline.prediction.scores import Errors, predict_records
from pipeline.records.encoder import Encoder
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.stream.partition import differences
from pipeline.study_file.load import parse_study
from tests.builders import cut, rows_of, run_windows, simulate, study_text, task_of

# short streams and far values on purpose: test_warnings is about what is said of them
pytestmark = pytest.mark.filterwarnings("ignore::pipeline.errors.VeilstreamWarning")
OPEN = study_text(p=3, private=False, loss="logistic", records=50, releases=3)
PRIVATE = study_text(p=3, loss="logistic", records=50, epsilon=4.0)


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, signs = simulate(np.random.default_rng(seed), n, 3)
    return X, (signs > 0).astype(int)


def run_of(learner: StreamClassifier) -> OfflineRun:
    assert learner._stream is not None
    return learner._stream.run


def timeless(message: EstimateMessage) -> EstimateMessage:
    return msgspec.structs.replace(message, published_at="")


# --- the stream's own functions


@pytest.mark.parametrize("n", [500, 523])
def test_fit_is_what_an_offline_run_over_the_same_windows_gives(n: int) -> None:
    X, y = data(n)
    learner = StreamClassifier(OPEN).fit(X, y)
    task = task_of(p=3, private=False, loss="logistic", records=50, releases=3)
    windows = cut(rows_of(X, np.where(y == 1, 1.0, -1.0)), task.slots)
    run = run_windows(task, (("client", rows) for rows in windows))
    assert differences(run.partition, run_of(learner).partition) == []
    assert timeless(learner.estimate_) == timeless(run.estimate(0.0)[1])
    assert learner.estimate_.status == "ready"
    assert learner.to_model().file.coefficients == learner.estimate_.coefficients


@settings(max_examples=10)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_any_split_into_calls_gives_the_sums_of_one_fit_bit_by_bit(cuts: list[int]) -> None:
    X, y = data(200)
    once = StreamClassifier(OPEN).fit(X, y)
    ends = sorted({0, 200, *cuts})
    learner = StreamClassifier(OPEN)
    for start, end in pairwise(ends):
        learner.partial_fit(X[start:end], y[start:end])
    assert differences(run_of(once).partition, run_of(learner).partition) == []
    assert timeless(once.estimate_) == timeless(learner.estimate_)


def test_fit_forgets_what_was_before() -> None:
    X, y = data(200)
    learner = StreamClassifier(OPEN).fit(X[:100], y[:100]).fit(X, y)
    assert timeless(learner.estimate_) == timeless(StreamClassifier(OPEN).fit(X, y).estimate_)


def test_of_a_call_that_fails_no_record_is_taken() -> None:
    X, y = data(50)
    learner = StreamClassifier(OPEN)
    for bad_X, bad_y in [
        (np.vstack([X[:-1], [[0, np.inf, 0]]]), y),
        (X, [*y[:-1], 7]),
        (X, y[:-1]),
        (X[:, :2], y),
    ]:
        with pytest.raises(DataError):
            learner.partial_fit(bad_X, bad_y)
    with pytest.raises(RecordError, match="'x1'"):
        learner.learn_one({"x0": 1, "x1": "c4n4ry", "x2": 0}, 1)
    with pytest.raises(RecordError, match=r"column 'y': unknown class; allowed: '1', '0'"):
        learner.learn_one({"x0": 1, "x1": 1, "x2": 0}, "c4n4ry")
    learner.partial_fit(X, y)
    assert timeless(learner.estimate_) == timeless(StreamClassifier(OPEN).fit(X, y).estimate_)


def test_before_the_first_release_nothing_is_predicted() -> None:
    X, y = data(10)
    learner = StreamClassifier(OPEN)
    record = {"x0": 0, "x1": 0, "x2": 0}
    assert learner.predict_one(record) is None
    assert learner.predict_proba_one(record) == {}
    assert not hasattr(learner, "classes_")
    assert not hasattr(learner, "n_features_in_")
    learner.partial_fit(X, y)
    assert not hasattr(learner, "estimate_")
    assert learner.predict_one(record) is None
    for method in (learner.predict, learner.decision_function, learner.predict_proba):
        with pytest.raises(NumericError, match="no window has been released yet"):
            method(X)
    with pytest.raises(DataError, match="no records"):
        StreamClassifier(OPEN).fit(X[:0], y[:0])
    learner.close_windows()
    assert learner.predict(X).shape == (10,)


# --- privacy


def test_a_private_study_draws_fresh_noise_and_states_its_guarantee(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    X, y = data(400)
    first, second = (StreamClassifier(PRIVATE).fit(X, y) for _ in range(2))
    assert first.estimate_.privacy.epsilon == 4.0
    assert first.estimate_.privacy.mechanism == "discrete-gaussian"
    assert first.estimate_.coefficients != second.estimate_.coefficients
    assert first.to_model().file.privacy == first.estimate_.privacy
    assert list(tmp_path.iterdir()) == []  # no ledger, no spool
    assert "Nothing is charged to any ledger" in (StreamClassifier.__doc__ or "")


def test_an_incomplete_private_window_is_not_in_the_estimate() -> None:
    X, y = data(70)
    learner = StreamClassifier(PRIVATE).partial_fit(X, y)
    assert (learner.estimate_.releases, learner.estimate_.records) == (1, 50)


# --- labels


@pytest.mark.parametrize("kind", [bool, int, float, str, np.int8])
def test_labels_come_back_in_the_type_in_which_they_were_given(kind: Any) -> None:
    X, y = data(100)
    labels = [kind(label) for label in y.tolist()]
    learner = StreamClassifier(OPEN).fit(X, labels)
    said = learner.predict(X).tolist()
    plain = int if kind is np.int8 else kind
    assert {type(label) for label in said} == {plain}
    assert learner.classes_.tolist() == [plain(0), plain(1)]
    record = {"x0": 1, "x1": 1, "x2": 1}
    assert learner.predict_one(record) in learner.classes_
    chances = learner.predict_proba_one(record)
    assert list(chances) == learner.classes_.tolist()
    assert sum(chances.values()) == pytest.approx(1.0)
    assert learner.to_model().classes_.tolist() == ["0", "1"]


def test_classes_that_a_tool_expects_are_compared_with_the_study_s() -> None:
    X, y = data(20)
    learner = StreamClassifier(OPEN).partial_fit(X[:0], [], classes=[0, 1])
    assert learner.classes_.tolist() == [0, 1]
    with pytest.raises(DataError, match="unknown class"):
        learner.partial_fit(X, y, classes=[0, 1, 2])


# --- where the study comes from


def test_a_study_its_path_and_its_text_are_the_same(tmp_path: Path) -> None:
    X, y = data(100)
    path = tmp_path / "study.toml"
    path.write_text(OPEN)
    expected = timeless(StreamClassifier(OPEN).fit(X, y).estimate_)
    for study in (parse_study(OPEN), path, str(path)):
        assert timeless(StreamClassifier(study).fit(X, y).estimate_) == expected
    with pytest.raises(ConfigError, match="cannot read the study file"):
        StreamClassifier("none.toml").fit(X, y)


# --- scikit-learn


@pytest.mark.parametrize(
    "study", [pytest.param(OPEN, marks=pytest.mark.slow), parse_study(OPEN)], ids=["text", "study"]
)
def test_scikit_learn_clones_and_cross_validates(study: Any) -> None:
    X, y = data(400)
    learner = StreamClassifier(study)
    copied = clone(learner.fit(X, y))
    assert is_classifier(copied)
    assert not hasattr(copied, "estimate_")
    assert copied.get_params() == {"study": study}
    scores = cross_val_score(learner, X, y, cv=4)
    assert scores.shape == (4,)
    assert scores.mean() > 0.7
    assert cross_val_score(learner, X, y, cv=4, scoring="roc_auc").mean() > 0.75
    assert cross_val_score(learner, X, y, cv=4, scoring="neg_log_loss").mean() > -0.6
    assert cross_val_predict(learner, X, y, cv=4, method="predict_proba").shape == (400, 2)
    assert learner.score(X, y) == np.mean(learner.predict(X) == y)


# --- River


def phishing(loss: str) -> str:
    names = list(next(iter(Phishing()))[0])
    features = "\n".join(f"{name} = {{ min = 0, max = 1 }}" for name in names)
    return (
        '[study]\nname = "phishing"\n'
        '[data]\nresponse = { name = "is_phishing", positive = "1", negative = "0" }\n'
        f'[data.features]\n{features}\n[estimator]\nloss = "{loss}"\n'
        '[privacy]\nmechanism = "none"\n[window]\nrecords = 50\n'
    )


def test_river_evaluates_the_classifier_progressively() -> None:
    learner = StreamClassifier(phishing("logistic"))
    score = evaluate.progressive_val_score(Phishing(), learner, metrics.Accuracy())
    assert learner.estimate_.releases == 25
    assert score.get() > 0.85
    chances = evaluate.progressive_val_score(
        Phishing(), StreamClassifier(phishing("logistic")), metrics.LogLoss()
    )
    assert chances.get() < 0.4


WITHOUT = """
import sys
sys.modules["sklearn"] = sys.modules["river"] = None
from pipeline.learning import StreamClassifier
learner = StreamClassifier(sys.argv[1])
assert learner.get_params() == {"study": sys.argv[1]}
learner.fit([[0.5, 0.5, 0.1], [-0.5, 0.1, 0.2]] * 30, [1, 0] * 30)
assert learner.predict([[0.5, 0.5, 0.1]]).tolist() == [1]
assert learner.predict_one({"x0": -0.5, "x1": 0.1, "x2": 0.2}) == 0
"""


def test_neither_library_is_needed() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT, OPEN], check=True)


CANARY = "c4n4ry"
NUMBERS = study_text(
    p=3, private=False, loss="linear", least=0.0, most=200.0, records=50, ridge=0.0
)
COUNTS = study_text(p=3, private=False, loss="poisson", most=40.0, records=50)
CLASSES = study_text(p=3, private=False, loss="logistic", records=50)


def numbers(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw records in their own units: a power between 0 and 200."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    return X, 80 + X @ [20.0, -10.0, 5.0] + rng.normal(0, 5, n)


def visits(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    return X, rng.poisson(np.exp(1 + X @ [0.5, -0.3, 0.1]))


@pytest.fixture(scope="module")
def linear() -> LinearRegressor:
    return StreamRegressor(NUMBERS).fit(*numbers(600)).to_model()


@pytest.fixture(scope="module")
def poisson() -> LinearRegressor:
    return StreamRegressor(COUNTS).fit(*visits(600)).to_model()


# --- predictions


def test_predictions_are_in_the_unit_of_the_response(
    linear: LinearRegressor, poisson: LinearRegressor
) -> None:
    X, y = numbers(600)
    design = np.column_stack([np.ones(600), X])
    expected = design @ np.linalg.lstsq(design, y)[0]
    assert_allclose(linear.predict(X), expected, atol=1e-8)
    coefficients = np.array([c.value for c in poisson.file.coefficients])
    assert_allclose(poisson.predict(X), np.exp(coefficients[0] + X @ coefficients[1:]), rtol=1e-13)
    # beyond the public ranges everything is alike
    assert linear.predict([[9, 9, 9]]).tolist() == linear.predict([[1, 1, 1]]).tolist()
    assert linear.predict([]).tolist() == []


def test_the_score_is_that_of_scikit_learn_and_the_coefficients_are_in_own_units(
    linear: LinearRegressor, poisson: LinearRegressor
) -> None:
    for model, (X, y) in ((linear, numbers(300, 5)), (poisson, visits(300, 5))):
        weights = np.random.default_rng(6).uniform(0, 2, 300)
        assert model.score(X, y) == pytest.approx(r2_score(y, model.predict(X)))
        weighted = r2_score(y, model.predict(X), sample_weight=weights)
        assert model.score(X, y, weights) == pytest.approx(weighted)
        # here the mean of equal numbers is their own, so that scikit-learn sees that they are
        equal = np.full(300, 4.0)
        assert model.score(X, equal) == r2_score(equal, model.predict(X)) == 0.0
        assert model.coef_.shape == (3,)
        assert_allclose(model.intercept_ + X @ model.coef_, model.linear_predictor(X), rtol=1e-12)
    with pytest.raises(DataError, match="nothing to score"):
        linear.score([], [])
    learner = StreamRegressor(NUMBERS)
    with pytest.raises(AttributeError, match="coef_"):
        _ = learner.coef_
    X, y = numbers(600)
    learner.fit(X, y)
    assert learner.score(X, y) == linear.score(X, y) > 0.8
    assert learner.coef_.tolist() == linear.coef_.tolist()
    assert learner.intercept_ == linear.intercept_
    # the unit scale of [-5, 5] is a fifth of a unit
    wide = NUMBERS.replace("min = -1.0, max = 1.0", "min = -5.0, max = 5.0")
    assert_allclose(StreamRegressor(wide).fit(X, y).coef_, linear.coef_, rtol=1e-8)


def test_a_noised_count_is_never_expected_beyond_the_largest() -> None:
    private = study_text(p=3, loss="poisson", most=5.0, records=50)
    model = StreamRegressor(private).fit(*visits(200)).to_model()
    steep = write_model_file(model.file).replace(b'"value": ', b'"value": 9')
    assert np.max(LinearRegressor(read_model_file(steep)).predict(visits(50)[0])) <= 5


def test_a_file_comes_back_and_the_wrong_class_names_the_right_one(
    linear: LinearRegressor, tmp_path: Path
) -> None:
    path, other = tmp_path / "model.json", tmp_path / "classes.json"
    linear.save(path)
    X, y = numbers(50)
    assert LinearRegressor.load(path).predict(X).tolist() == linear.predict(X).tolist()
    StreamClassifier(CLASSES).fit(X, (y > 80).astype(int)).to_model().save(other)
    with pytest.raises(ConfigError, match=r"model\.json cannot be used: it explains a number.*must "
                       "use LinearRegressor"):  # fmt: skip
        LinearClassifier.load(path)
    with pytest.raises(ConfigError, match=r"it explains a class.*must use LinearClassifier"):
        LinearRegressor.load(other)
    assert isinstance(load_model(path), LinearRegressor)
    assert isinstance(load_model(other), LinearClassifier)
    with pytest.raises(ConfigError, match="cannot read the model file"):
        load_model(tmp_path / "none.json")
    linear.check_study(task_of_text(NUMBERS))
    with pytest.raises(ConfigError, match="belongs to revision"):
        linear.check_study(task_of_text(NUMBERS.replace("max = 200.0", "max = 201.0")))


def task_of_text(text: str) -> Task:
    return make_task(parse_study(text))


def test_a_bad_record_gets_a_reason_and_a_response_is_scored_as_written(
    linear: LinearRegressor,
) -> None:
    good = {"x0": "0.5", "x1": 0, "x2": 0}
    records = [{**good, "y": 500}, {**good, "x1": CANARY}, None, {**good, "y": CANARY}, good]
    far, bad, empty, odd, bare = predict_records(linear, records)
    assert far.response == 500.0
    assert far.value == odd.value == bare.value == linear.predict([good])[0]
    assert (odd.response, bare.response) == (None, None)
    assert (bad.value, bad.reason) == (None, "column 'x1': not a number")
    assert (empty.value, empty.reason) == (None, None)


def test_errors_are_those_computed_by_hand_and_never_overflow() -> None:
    errors = Errors()
    assert (errors.mean_absolute, errors.root_mean_square) == (None, None)
    for responses, predicted in (([1.0], [4.0]), ([], []), ([2.0], [-2.0])):
        errors.add_all(np.array(responses), np.array(predicted))
    assert errors.mean_absolute == 3.5
    assert errors.root_mean_square == pytest.approx(math.sqrt(12.5), rel=1e-15)
    errors.add_all(np.array([1e200]), np.zeros(1))
    assert errors.root_mean_square == pytest.approx(1e200 / math.sqrt(3))


# --- learning


def test_a_regression_is_what_an_offline_run_over_the_same_windows_gives() -> None:
    X, y = numbers(523)
    learner = StreamRegressor(NUMBERS).fit(X, y)
    task = task_of(p=3, private=False, loss="linear", least=0.0, most=200.0, records=50, ridge=0.0)
    encoder = Encoder(task.study)
    rows = encoder.rows(X, [encoder.response.of_label(value) for value in y])
    run = run_windows(task, (("client", window) for window in cut(rows, task.slots)))
    assert learner._stream is not None
    assert differences(run.partition, learner._stream.run.partition) == []
    steps = StreamRegressor(NUMBERS)
    for features, value in zip(X, y, strict=True):
        steps.learn_one({f"x{i}": v for i, v in enumerate(features)}, value)
    steps.close_windows()
    assert steps.estimate_.coefficients == learner.estimate_.coefficients
    parts = StreamRegressor(NUMBERS).partial_fit(X[:77], y[:77]).partial_fit(X[77:], y[77:])
    assert parts.close_windows().estimate_.coefficients == learner.estimate_.coefficients


@pytest.mark.parametrize("use", ["fit", "partial_fit", "learn_one", "close_windows"])
def test_each_learner_refuses_the_other_s_study_and_names_it(use: str) -> None:
    X, y = numbers(5)
    arguments = {"learn_one": ({"x0": 1}, 1), "close_windows": ()}.get(use, (X, y))
    with pytest.raises(ConfigError, match=r"explains a number.*must use StreamRegressor"):
        getattr(StreamClassifier(NUMBERS), use)(*arguments)
    with pytest.raises(ConfigError, match=r"explains a class.*must use StreamClassifier"):
        getattr(StreamRegressor(CLASSES), use)(*arguments)


@pytest.mark.parametrize(
    ("study", "bad", "words"),
    [
        (NUMBERS, math.inf, "row 2: column 'y': not a finite number"),
        (NUMBERS, CANARY, "row 2: column 'y': not a number"),
        (NUMBERS, [1.0], "row 2: column 'y': a value of type list"),
        (COUNTS, -1, "row 2: column 'y': not a count, a whole number from 0 on"),
        (COUNTS, 1.5, "row 2: column 'y': not a count, a whole number from 0 on"),
    ],
)
def test_a_bad_response_names_its_row_and_never_its_value(
    study: str, bad: object, words: str
) -> None:
    X, _ = numbers(4)
    learner = StreamRegressor(study)
    with pytest.raises(DataError) as caught:
        learner.partial_fit(X, [1, 2, bad, 3])
    assert words in str(caught.value)
    assert CANARY not in str(caught.value)
    with pytest.raises(RecordError):
        learner.learn_one({"x0": 0, "x1": 0, "x2": 0}, bad)
    with pytest.raises(DataError):
        learner.partial_fit(X, [1, 2])
    with pytest.raises(NumericError, match="no window has been released"):
        learner.close_windows().predict(X)


def test_responses_beyond_the_range_are_clipped_and_counted() -> None:
    for study, high, ends in ((NUMBERS, 1e300, (-1.0, 1.0)), (COUNTS, 1e9, (0.0, 40.0))):
        encoder = Encoder(parse_study(study))
        record = {"x0": 0, "x1": 0, "x2": 0}
        row = encoder.encode({**record, "y": high})
        assert (row.response, row.clipped) == (ends[1], 1)
        if study == NUMBERS:
            assert encoder.encode({**record, "y": -3}).response == ends[0]
    X, _ = numbers(300)
    assert_allclose(StreamRegressor(NUMBERS).fit(X, np.full(300, 1e6)).predict(X), 200.0)


# --- scikit-learn and River


def test_scikit_learn_clones_cross_validates_and_scores(linear: LinearRegressor) -> None:
    X, y = numbers(400)
    learner = StreamRegressor(NUMBERS)
    copied = clone(learner.fit(X, y))
    assert is_regressor(copied)
    assert not hasattr(copied, "estimate_")
    assert cross_val_score(learner, X, y, cv=4).mean() > 0.7
    assert learner.score(X, y) == pytest.approx(get_scorer("r2")(learner, X, y))
    assert cross_val_predict(learner, X, y, cv=4).shape == (400,)
    again = pickle.loads(pickle.dumps(learner))  # noqa: S301  the test's own bytes
    assert again.predict(X).tolist() == learner.predict(X).tolist()
    assert is_regressor(linear)
    frozen = FrozenEstimator(linear)
    assert get_scorer("neg_mean_absolute_error")(frozen.fit(X, y), X, y) > -6
    with pytest.raises(ConfigError, match=r"FrozenEstimator.*StreamRegressor"):
        linear.fit(X, y)
    with pytest.raises(ConfigError, match="StreamRegressor has no parameter 'epsilon'"):
        learner.set_params(epsilon=1)
