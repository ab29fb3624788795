"""Predictions: the encoder's own scaling, probabilities by hand, files, and scikit-learn."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, balanced_accuracy_score, get_scorer
from sklearn.model_selection import cross_val_predict

from pipeline.cli.demo import Shuttle
from pipeline.errors import ConfigError, DataError, NumericError
from pipeline.learning import StreamClassifier
from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.model_file import write_model_file
from pipeline.messages.schemas import schema
from pipeline.methods import task_of as make_task
from pipeline.prediction.estimators import LinearClassifier
from pipeline.prediction.scores import Confusion, predict_records
from pipeline.records.features import ClassResponse
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import load_study, parse_study
from producers.sources.samples import heldout
from tests.builders import rows_of, simulate, study_text, task_of

CANARY = "c4n4ry"
STUDY = """\
[study]
name = "heating"
[data]
response = { name = "failed", positive = "yes", negative = "no" }
[data.features]
heat = { min = 0, max = 100 }
load = { min = -1, max = 3 }
[estimator]
loss = "logistic"
[privacy]
mechanism = "none"
[window]
records = 20
"""


def message_of(task: Task, values: list[float], **changes: Any) -> EstimateMessage:
    """Return an estimate with coefficients of the test's own."""
    run = OfflineRun(task)
    run.add("a", rows_of(*simulate(np.random.default_rng(0), task.slots, task.size - 1)))
    message = run.estimate(0.0)[1]
    named = [
        msgspec.structs.replace(coefficient, value=value)
        for coefficient, value in zip(message.coefficients, values, strict=True)
    ]
    return msgspec.structs.replace(message, coefficients=named, **changes)


def heating(text: str = STUDY) -> LinearClassifier:
    """Return the rule -0.5 + 2 heat - load on the unit scale."""
    task = make_task(parse_study(text))
    return LinearClassifier.of(task, message_of(task, [-0.5, 2.0, -1.0]))


class Frame:
    """What a data frame of any library has: columns by name."""

    def __init__(self, **columns: Any) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]


# --- scaling


def test_coefficients_in_own_units_give_the_decision_and_the_score_is_the_accuracy() -> None:
    rng = np.random.default_rng(4)
    X = rng.uniform([0, -1], [100, 3], (200, 2))
    for labels in (("no", "yes"), ("z", "a")):
        # the positive class is the second one of `classes_`, or the first
        text = STUDY.replace('"yes"', f'"{labels[1]}"').replace('"no"', f'"{labels[0]}"')
        model = heating(text)
        assert model.coef_.shape == (1, 2)
        assert_allclose(
            X @ model.coef_[0] + model.intercept_[0], model.decision_function(X), atol=1e-12
        )
        y = np.where(rng.random(200) < 0.5, *labels)
        assert model.score(X, y) == pytest.approx(float(np.mean(model.predict(X) == y)))
        weights = rng.uniform(0, 1, 200)
        hit = np.average(model.predict(X) == y, weights=weights)
        assert model.score(X, y, weights) == pytest.approx(float(hit))


def test_a_record_s_prediction_does_not_depend_on_the_records_beside_it() -> None:
    task = task_of(p=33, private=False, records=400)
    rng = np.random.default_rng(3)
    model = LinearClassifier.of(task, message_of(task, rng.normal(size=34).tolist()))
    X = rng.normal(size=(257, 33))
    whole = model.decision_function(X)
    assert np.concatenate([model.decision_function(X[i : i + 1]) for i in range(257)]).tolist() == (
        whole.tolist()
    )
    assert model.decision_function(np.asfortranarray(X)).tolist() == whole.tolist()


@pytest.mark.filterwarnings("ignore::pipeline.errors.RangeWarning")
def test_on_shuttle_the_model_scores_what_the_demonstration_s_scoring_says() -> None:
    task = make_task(load_study(Path(str(files("pipeline.study") / "examples" / "shuttle.toml"))))
    text = msgspec.to_builtins(task.study) | {"privacy": {"mechanism": "none"}}
    # the ridge of the study is for its noise; so few records without any need next to none
    text["estimator"] |= {"ridge": 1e-3}
    records = list(heldout())
    y = np.array([record["anomaly"] for record in records])
    learner = StreamClassifier(msgspec.convert(text, type(task.study)))
    model = learner.fit(records[:2000], y[:2000]).to_model()
    values = [coefficient.value for coefficient in model.file.coefficients]
    expected = Shuttle(task, 8).score(values)
    assert balanced_accuracy_score(y, model.predict(records)) == pytest.approx(expected, abs=1e-12)
    confusion = Confusion()
    said = np.array([(one.response, one.value) for one in predict_records(model, records)])
    confusion.add_all(said[:, 0], np.where(said[:, 1] >= 0, 1.0, -1.0))
    assert confusion.balanced_accuracy == expected > 0.9
    assert confusion.accuracy == accuracy_score(y, model.predict(records))


# --- predictions


def test_probabilities_are_those_computed_by_hand() -> None:
    model = heating()
    # heat 75 is 0.5 on the unit scale, load 0 is -0.5; beyond the ranges: 1 and -1
    X = [[75.0, 0.0], [1e6, -1e6], [0.0, 3.0]]
    scores = [-0.5 + 1.0 + 0.5, -0.5 + 2.0 + 1.0, -0.5 - 2.0 - 1.0]
    assert model.decision_function(X).tolist() == scores
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.predict(X).tolist() == ["yes", "yes", "no"]
    by_hand = [[1 / (1 + math.exp(s)), 1 / (1 + math.exp(-s))] for s in scores]
    assert_allclose(model.predict_proba(X), by_hand, rtol=1e-14)


def test_a_tiny_probability_keeps_its_digits() -> None:
    task = make_task(parse_study(STUDY))
    model = LinearClassifier.of(task, message_of(task, [0.0, 60.0, 0.0]))
    [[negative, positive]] = model.predict_proba([[100.0, 0.0]])
    assert negative == pytest.approx(math.exp(-60), rel=1e-12)
    assert positive == 1.0


def test_generalised_dwd_gives_no_probabilities() -> None:
    model = heating(STUDY.replace('"logistic"', '"gdwd"'))
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match="gives no probabilities; use decision_function"):
        _ = model.predict_proba
    assert model.predict([[75.0, 0.0]]).tolist() == ["yes"]
    [said] = predict_records(model, [{"heat": 75, "load": 0}])
    assert (said.value, said.label, said.probability, said.response) == (1.0, "yes", None, None)


def test_a_predictor_of_zero_means_the_positive_class_as_in_the_demonstration() -> None:
    task = make_task(parse_study(STUDY))
    model = LinearClassifier.of(task, message_of(task, [0.0, 0.0, 0.0]))
    assert model.predict([[1.0, 1.0]]).tolist() == ["yes"]
    assert [model.score([[1.0, 1.0]], [label]) for label in ("yes", "no")] == [1.0, 0.0]
    flipped = LinearClassifier(model.file, labels=(2, 1))
    assert flipped.predict([[1.0, 1.0]]).tolist() == [1]


def test_where_the_positive_class_sorts_first_scores_still_favour_the_second_class() -> None:
    text = STUDY.replace('positive = "yes"', 'positive = "broken"').replace(
        'negative = "no"', 'negative = "fine"'
    )
    model = heating(text)
    X = [[75.0, 0.0], [0.0, 3.0]]
    assert model.classes_.tolist() == ["broken", "fine"]
    assert model.predict(X).tolist() == ["broken", "fine"]
    assert model.linear_predictor(X).tolist() == [1.0, -3.5]
    assert model.decision_function(X).tolist() == [-1.0, 3.5]
    assert model.predict_proba(X)[0, 0] == pytest.approx(1 / (1 + math.exp(-1.0)))
    y = np.array(["broken", "fine"])
    # scikit-learn takes the label that sorts last for the positive one
    assert get_scorer("roc_auc")(model, X, y) == 1.0
    assert get_scorer("neg_log_loss")(model, X, y) > -0.35


# --- forms of X


def forms() -> dict[str, Any]:
    rows = [[75.0, 0.0], [1e6, -1e6], [0.0, 3.0]]
    heat, load = [list(column) for column in zip(*rows, strict=True)]
    return {
        "lists": rows,
        "array": np.array(rows),
        "integers": np.array(rows, dtype=np.int64),
        "single": np.array(rows, dtype=np.float32),
        "columns first": np.asfortranarray(rows),
        "objects": np.array(rows, dtype=object),
        "text": np.array(rows).astype(str),
        "frame": Frame(load=np.array(load), other=["a"] * 3, heat=np.array(heat)),
        "frame of text": Frame(heat=[str(h) for h in heat], load=np.array(load, dtype=object)),
        "records": [{"heat": h, "load": v, "more": None} for h, v in rows],
        "records of text": [{"heat": f" {h}", "load": str(v)} for h, v in rows],
        "records of NumPy": [{"heat": np.float32(h), "load": np.int64(v)} for h, v in rows],
    }


@pytest.mark.parametrize("form", forms())
def test_every_form_of_x_gives_the_same_predictions(form: str) -> None:
    assert heating().decision_function(forms()[form]).tolist() == [1.0, 2.5, -3.5]


@pytest.mark.parametrize("empty", [[], np.zeros((0, 2)), Frame(heat=[], load=[])])
def test_no_records_give_no_predictions(empty: Any) -> None:
    model = heating()
    assert model.predict(empty).tolist() == []
    assert model.predict_proba(empty).shape == (0, 2)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([[1.0, np.nan]], "row 0: column 'load': not a finite number (NaN or infinite in 1 of 1"),
        ([[1.0, 0.0], [np.inf, 0.0]], "row 1: column 'heat'"),
        ([[1.0, CANARY]], "row 0: column 'load': not a number"),
        ([[1.0, None]], "row 0: column 'load': missing"),
        ([1.0, 2.0], "shape (2,); the model needs shape (n, 2) with the features in this order: "),
        ([[1.0, 2.0], [1.0]], "rows of different lengths"),
        ({"heat": 1, "load": 1}, "a single record"),
        (CANARY, "a single record"),
        ([{"heat": 1}], "row 0: column 'load': missing"),
        ([{"heat": 1, "load": 1}, {"heat": CANARY, "load": 1}], "row 1: column 'heat': not a num"),
        ([{"heat": 1, "load": 1}, [1, 1]], "mixes records"),
        (Frame(heat=[1.0]), "no column 'load'; the study needs heat, load"),
        (Frame(heat=[[1.0, 2.0]], load=[1.0]), "column 'heat': there is more than one"),
        (Frame(heat=[1.0], load=np.array(["2020-01-01"], "M8[ns]")), "'load': its type datetime64"),
        (
            [{"heat": 1, "load": np.timedelta64(5, "ns")}],
            "row 0: column 'load': a value of type timedelta64",
        ),
        (np.array([[1.0, 1j]]), "column 'heat': its type complex"),
        (np.ma.masked_array([[1.0, 2.0]], [[False, True]]), "masked values"),
    ],
)
def test_bad_input_names_the_column_and_never_the_value(bad: Any, words: str) -> None:
    with pytest.raises(DataError) as caught:
        heating().predict(bad)
    assert words in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_sparse_matrix_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match="toarray"):
        heating().predict(csr_array([[1.0, 0.0]]))


def test_a_bad_record_gets_a_reason_and_the_others_their_prediction() -> None:
    model = heating()
    good, bad = {"heat": "75", "load": 0, "failed": "yes"}, {"heat": CANARY, "load": 0}
    odd = {**good, "failed": "perhaps"}
    first, second, third, fourth = predict_records(model, [bad, good, None, odd])
    assert (first.value, first.label, first.probability) == (None, None, None)
    assert first.reason == "column 'heat': not a number"
    assert (second.value, second.label, second.response) == (1.0, "yes", 1.0)
    assert second.probability == pytest.approx(1 / (1 + math.exp(-1.0)))
    assert (third.value, third.reason) == (None, None)
    assert (fourth.value, fourth.response) == (1.0, None)
    assert predict_records(model, []) == []


def test_confusion_counts() -> None:
    confusion = Confusion()
    assert (confusion.accuracy, confusion.balanced_accuracy) == (None, None)
    confusion.add_all(np.array([1.0, 1.0, 1.0]), np.array([1.0, -1.0, 1.0]))
    assert confusion.accuracy == 2 / 3
    assert confusion.balanced_accuracy is None
    confusion.add_all(np.array([-1.0]), np.array([-1.0]))
    assert (confusion.accuracy, confusion.balanced_accuracy) == (0.75, (1 + 2 / 3) / 2)


# --- labels


def test_labels_are_matched_by_text_or_by_number() -> None:
    numbers = ClassResponse("y", "1", "0")
    for label in ("1", " 1 ", 1, 1.0, True, np.int64(1), np.float32(1), np.True_, np.str_("1")):
        assert numbers.of_label(label) == (1.0, False)
    for label in ("0", 0, 0.0, False, np.False_):
        assert numbers.of_label(label) == (-1.0, False)
    assert numbers.labels(like=np.int8(1)) == (0, 1)
    assert numbers.labels(like=True) == (False, True)
    assert [type(label) for label in numbers.labels(like=0.0)] == [float, float]
    assert numbers.labels(like="1") == ("0", "1")
    words = ClassResponse("y", "yes", "no")
    assert words.labels(like=1) == ("no", "yes")
    assert ClassResponse("y", "1", "0.5").labels(like=1) == (0.5, 1)
    for unknown in (1, True, None, "maybe", np.datetime64(1, "ns")):
        with pytest.raises(Exception, match="'y'"):
            words.of_label(unknown)
    # alike as numbers: only the text tells them apart
    assert ClassResponse("y", "1", "1.0").of_label("1.0") == (-1.0, False)


# --- the file


def test_a_model_file_comes_back_as_it_was(tmp_path: Path) -> None:
    model, path = heating(), tmp_path / "model.json"
    path.write_text("what was there before")
    model.save(path)
    back = LinearClassifier.load(str(path))
    assert back.file == model.file
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]
    X = np.random.default_rng(0).uniform(-1, 101, (50, 2))
    assert_array_equal(back.predict_proba(X), model.predict_proba(X))
    document = json.loads(path.read_bytes())
    jsonschema.validate(document, schema("model-file.v1"))
    assert document["type"] == "model-file/1"
    assert document["privacy"]["mechanism"] == "none"
    assert document["features"][0] == {"name": "heat", "min": 0.0, "max": 100.0}
    assert copy.deepcopy(back).predict(X).tolist() == model.predict(X).tolist()


def changed(**fields: Any) -> bytes:
    document = json.loads(write_model_file(heating().file))
    return json.dumps(document | fields).encode()


def steep(value: float) -> bytes:
    document = json.loads(write_model_file(heating().file))
    for coefficient in document["coefficients"]:
        coefficient["value"] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "it is no model file"),
        (b"\x80\x04pickle", "it is no model file"),
        (b'{"type": "estimate/1"}', "it holds an estimate alone"),
        (b'{"type": "model/1"}', "it is no model file"),
        (changed(type="model-file/2"), "its version is not model-file/1"),
        (changed(loss=None), "it is damaged: Expected `str`, got `null` - at `$.loss`"),
        (changed(loss="hinge"), "loss: this program knows gdwd, logistic"),
        (changed(features=[]), "$.features"),
        (changed(features=[{"name": "heat", "min": 0, "max": 1}] * 2), "the same name"),
        (changed(features=[{"name": "load", "min": 0, "max": 1}]), "intercept and then"),
        (
            changed(features=[{"name": n, "min": 5, "max": 5} for n in ("heat", "load")]),
            "features.heat: min must be below max",
        ),
        (changed(response={"name": "a", "positive": "1", "negative": "1"}), "different values"),
        (steep(1.7e308), "coefficients: they are too large for the ranges"),
    ],
)
def test_a_file_that_is_no_model_says_what_it_is_instead(
    payload: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(payload)
    with pytest.raises(ConfigError) as caught:
        LinearClassifier.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "--save-model" in str(caught.value)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the model file .*none\.json"):
        LinearClassifier.load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot write the model file"):
        heating().save(tmp_path / "none" / "model.json")
    with pytest.raises(ConfigError, match="not a regular file"):
        heating().save(tmp_path)


def test_a_model_of_another_study_or_revision_is_refused_with_both_names() -> None:
    model = heating()
    model.check_study(make_task(parse_study(STUDY.replace("[window]", "[stream]\n[window]"))))
    other = make_task(parse_study(STUDY.replace('"heating"', '"cooling"')))
    with pytest.raises(ConfigError, match=r"study 'heating'.*that of 'cooling'"):
        model.check_study(other)
    wider = make_task(parse_study(STUDY.replace("max = 100", "max = 120")))
    with pytest.raises(ConfigError, match=rf"{model.file.study_revision}.*{wider.revision}"):
        model.check_study(wider)
    with pytest.raises(ConfigError, match="the estimate belongs to revision"):
        LinearClassifier.of(wider, message_of(make_task(parse_study(STUDY)), [0.0, 0.0, 0.0]))


def test_an_estimate_of_nothing_makes_no_model() -> None:
    task = make_task(parse_study(STUDY))
    empty = OfflineRun(task).estimate(0.0)[1]
    with pytest.raises(NumericError, match="nothing to predict with"):
        LinearClassifier.of(task, empty)


# --- scikit-learn


@pytest.fixture(scope="module")
def fitted() -> tuple[LinearClassifier, np.ndarray, np.ndarray]:
    X, signs = simulate(np.random.default_rng(5), 600, 3)
    learner = StreamClassifier(study_text(p=3, private=False, loss="logistic"))
    y = np.where(signs > 0, "1", "0")
    return learner.fit(X, y).to_model(), X, y


def test_a_frozen_model_goes_through_tools_that_fit(fitted: Any) -> None:
    model, X, y = fitted
    frozen = FrozenEstimator(model)
    assert clone(frozen) is frozen
    assert_array_equal(cross_val_predict(frozen, X, y, cv=3), model.predict(X))
    for method in ("decision_function", "predict_proba"):
        said = cross_val_predict(frozen, X, y, cv=3, method=method)
        assert_array_equal(said, getattr(model, method)(X))
    assert frozen.fit(X, y) is frozen
    with pytest.raises(ConfigError, match="FrozenEstimator"):
        model.fit(X, y)
    with pytest.raises(TypeError, match="get_params"):
        clone(model)


def test_neither_scikit_learn_nor_a_transport_is_imported_for_a_prediction() -> None:
    program = (
        "import sys, pipeline.prediction\n"
        "names = {'sklearn', 'pandas', 'river', 'kafka', 'faust', 'redis', 'click', 'sqlite3'}\n"
        "assert not names & set(sys.modules), names & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
