"""What learners say of values that do not fit the ranges, and of models that are not ready."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import veilstream as vs
from tests.builders import simulate, study_text

TEXT = study_text(p=2, private=False, loss="logistic", records=50, low=0.0, high=1000.0)


def data(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    X, signs = simulate(np.random.default_rng(1), n, 2)
    return 500.0 + 500.0 * X, (signs > 0).astype(int)


def test_what_fits_its_ranges_is_learnt_in_silence() -> None:
    X, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = vs.StreamClassifier(TEXT).fit(X, y)
        learner.predict(X)
    assert learner.outside_ == {}


def test_a_scaler_in_front_is_noticed_where_values_leave_the_range() -> None:
    X, y = data()
    both = make_pipeline(StandardScaler(), vs.StreamClassifier(TEXT))
    with pytest.warns(vs.RangeWarning, match=r"of 'x0', 'x1' lie outside.*a scaler in front"):
        both.fit(X, y)
    outside = both[-1].outside_
    assert 50 < outside["x0"] < 150


def test_a_scaler_in_front_is_noticed_where_values_use_a_sliver_of_the_range() -> None:
    X, y = data()
    wide = vs.PrivateClassifier(ranges=(-1000, 1000), epsilon=math.inf)
    with pytest.warns(vs.RangeWarning, match="of 'x0', 'x1' use less than 5% of the public range"):
        make_pipeline(StandardScaler(), wide).fit(X, y)
    assert wide.outside_ == {}


def test_each_column_is_named_once_and_never_with_its_values() -> None:
    X, y = data()
    X[7, 0] = 123456.0
    learner = vs.StreamClassifier(TEXT)
    with pytest.warns(vs.RangeWarning) as told:
        learner.partial_fit(X, y)
    [first] = told
    assert "'x0'" in str(first.message)
    assert not {"x1", "123456", "1 of"} & set(str(first.message).replace("'", " ").split())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.partial_fit(X, y)
        learner.learn_one({"x0": -1.0, "x1": 2.0}, 1)
    assert learner.outside_ == {"x0": 3}
    with pytest.warns(vs.RangeWarning, match="'x1' lie outside"):
        learner.learn_one({"x0": 1.0, "x1": -2.0}, 1)


def test_responses_beyond_their_range_are_noticed() -> None:
    text = study_text(p=2, private=False, loss="linear", records=50, low=0.0, high=1000.0)
    X, _ = data()
    with pytest.warns(vs.RangeWarning, match="'y' lie outside"):
        vs.StreamRegressor(text).fit(X, X[:, 0])


def test_a_model_that_is_not_ready_says_so_once_when_it_predicts() -> None:
    X, y = data(60)
    private = TEXT.replace('mechanism = "none"', 'mechanism = "discrete-gaussian"\nepsilon = 1.0\n'
                           "delta = 1e-6")  # fmt: skip
    learner = vs.StreamClassifier(private).fit(X, y)
    with pytest.warns(vs.NotReadyWarning, match=r"predicts is (starting|warming): "):
        learner.predict(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.predict(X)
        learner.decision_function(X)
        _ = learner.coef_
    with pytest.warns(vs.NotReadyWarning):
        learner.fit(X, y).score(X, y)


def test_a_warning_points_at_the_line_that_called() -> None:
    X, y = data()
    with pytest.warns(vs.RangeWarning) as told:
        vs.StreamClassifier(TEXT).fit(X * 10, y)
    assert told[0].filename == __file__
    private = vs.PrivateClassifier(ranges=(0, 1000), epsilon=1.0)
    with pytest.warns(vs.NotReadyWarning) as unready:
        vs.StreamClassifier(TEXT).fit(X[:10], y[:10]).predict(X)
    assert unready[0].filename == __file__
    with pytest.warns(vs.NotReadyWarning) as unready:
        private.fit(X, y).predict(X)
    assert unready[0].filename == __file__
