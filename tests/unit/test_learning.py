"""Learning in this process: the stream's own sums, and the conventions of two libraries."""

from __future__ import annotations

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
from river import evaluate, metrics
from river.datasets import Phishing
from sklearn.base import clone, is_classifier
from sklearn.model_selection import cross_val_predict, cross_val_score

from pipeline.errors import ConfigError, DataError, NumericError, RecordError
from pipeline.learning import StreamClassifier
from pipeline.messages.estimate import EstimateMessage
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


@settings(max_examples=25)
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


def test_learning_one_by_one_gives_the_same_sums() -> None:
    X, y = data(160)
    learner = StreamClassifier(OPEN)
    for features, label in zip(X, y, strict=True):
        assert learner.learn_one({f"x{i}": v for i, v in enumerate(features)}, label) is None
    assert learner.estimate_.records == 150
    learner.close_windows().close_windows()
    once = StreamClassifier(OPEN).fit(X, y)
    assert differences(run_of(once).partition, run_of(learner).partition) == []


def test_windows_belong_to_clients() -> None:
    X, y = data(120)
    learner = StreamClassifier(OPEN)
    learner.partial_fit(X[:60], y[:60], client="a").partial_fit(X[60:], y[60:], client="b")
    assert (learner.estimate_.clients, learner.estimate_.releases) == (2, 2)
    learner.close_windows()
    assert (learner.estimate_.clients, learner.estimate_.releases) == (2, 4)
    assert learner.estimate_.records == 120


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


@pytest.mark.parametrize("study", [OPEN, parse_study(OPEN)], ids=["text", "study"])
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


def test_a_fitted_classifier_can_be_sent_to_another_process() -> None:
    X, y = data(120)
    learner = StreamClassifier(OPEN).fit(X, y)
    copied = pickle.loads(pickle.dumps(learner))  # noqa: S301  the test's own bytes
    assert copied.predict_proba(X).tolist() == learner.predict_proba(X).tolist()
    assert copied.partial_fit(X, y).estimate_.releases == 5


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
