"""Missing values: one meaning on every way in, and what takes their place counts in every bound."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

import veilstream as vs
from pipeline.backtest.run import backtest
from pipeline.errors import ConfigError, DataError, DataWarning
from pipeline.learning import PrivateClassifier, StreamClassifier
from pipeline.messages.model_file import read_model_file, write_model_file
from pipeline.methods import revision_of
from pipeline.methods import task_of as make_task
from pipeline.prediction.estimators import LinearClassifier
from pipeline.records.batch import Column, Columns
from pipeline.records.columns import values_of
from pipeline.records.encoder import Encoder
from pipeline.records.values import is_missing
from pipeline.study.model import Study
from pipeline.study_file.load import parse_study
from producers.sources import open_once
from tests.builders import study_text

TEMP = "temp = { min = 0, max = 100, typical = 20, missing = 20, indicator = true }"
ZONE = "zone = { kind = 'category', levels = ['a', 'b'], missing = 'b', indicator = true }"
LOAD = "load = { min = -1, max = 1 }"
NAMES = ("intercept", "temp", "temp_missing", "zone=b", "zone_missing", "load")


def study_of(*declared: str, **more: Any) -> Study:
    more = {"private": False, "records": 20, "loss": "logistic", **more}
    return parse_study(study_text(declared=declared or (TEMP, ZONE, LOAD), **more))


STUDY = study_of()
FULL = {"temp": 40.0, "zone": "a", "load": 0.5, "y": 1}
#: The columns of the study for a record without temp and zone, and for a full one.
GONE, THERE = [0.0, 1.0, 1.0, 1.0, 0.5], [0.4, 0.0, 0.0, 0.0, 0.5]


def rows_of(path: Path) -> list[list[float]]:
    source, encoder = open_once(str(path)), Encoder(STUDY)
    records = [slot.record for slot in source.read(10, 1.0)]
    source.close()
    block = encoder.block([record for record in records if record is not None])
    one_by_one = [encoder.encode(r).features.tolist() for r in records if r is not None]
    assert block.arrays.features.tolist() == one_by_one
    assert block.usable == len(one_by_one)
    return one_by_one


def test_an_indicator_is_a_coefficient_and_counts_in_every_bound() -> None:
    assert STUDY.coefficient_names == NAMES
    task = make_task(STUDY)
    assert task.size == len(NAMES)
    low, high = STUDY.encoding.ends
    column = NAMES.index("temp_missing") - 1
    assert (low[column], high[column]) == (0.0, 1.0)
    plain = make_task(
        study_of(*(text.replace(", indicator = true", "") for text in (TEMP, ZONE, LOAD)))
    )
    assert task.longest == math.sqrt(plain.longest**2 + 2)
    gone = Encoder(STUDY).encode({"load": 0.5, "y": 1}).features
    assert np.sum(gone**2) <= task.longest**2 - 1


NA = pytest.importorskip("pandas").NA


@pytest.mark.parametrize("nothing", [None, "", "  ", math.nan, np.float32("nan"), NA])
def test_whatever_stands_for_nothing_is_the_same(nothing: object) -> None:
    encoder = Encoder(STUDY)
    given = {"temp": nothing, "zone": nothing, "load": 0.5, "y": 1}
    assert encoder.encode(given).features.tolist() == GONE
    assert encoder.encode({"load": 0.5, "y": 1}).features.tolist() == GONE
    assert encoder.block([given, FULL]).arrays.features.tolist() == [GONE, THERE]
    columns = {name: Column([given[name], FULL[name]]) for name in FULL}
    block = encoder.block(Columns(columns, 2))
    assert block.arrays.features.tolist() == [GONE, THERE]
    assert block.usable == 2


def test_files_of_all_forms_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("temp,zone,load,y\n,,0.5,1\n40,a,0.5,1\n")
    lines = [{"load": 0.5, "y": 1}, {**FULL, "temp": None, "zone": None}, FULL]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = pa.table(
        {"temp": [None, math.nan, 40.0], "zone": [None, None, "a"], "load": [0.5] * 3, "y": [1] * 3}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows_of(tmp_path / "a.csv") == [GONE, THERE]
    assert rows_of(tmp_path / "a.jsonl") == [GONE, GONE, THERE]
    assert rows_of(tmp_path / "a.parquet") == [GONE, GONE, THERE]


def frame(rows: int = 200) -> tuple[Any, list[int]]:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(5)
    temp = np.where(rng.random(rows) < 0.3, np.nan, rng.uniform(0, 100, rows))
    zone = [rng.choice(["a", "b", None]) for _ in range(rows)]
    load = rng.uniform(-1, 1, rows)
    y = (rng.random(rows) < 1 / (1 + np.exp(-2 * load + np.isnan(temp)))).astype(int)
    return pandas.DataFrame({"temp": temp, "zone": zone, "load": load}), y.tolist()


def test_frames_and_records_learn_fit_and_predict_alike(tmp_path: Path) -> None:
    X, y = frame()
    records = [
        {name: v for name, v in record.items() if not is_missing(v)}
        for record in X.to_dict("records")
    ]
    learner = StreamClassifier(STUDY).fit(X, y)
    assert learner.feature_names_in_.tolist() == ["temp", "zone", "load"]
    fitted = vs.fit(STUDY, X.assign(y=y))
    values = [row.value for row in learner.estimate_.coefficients]
    assert [row.name for row in fitted.message.coefficients] == list(NAMES)
    assert [row.value for row in fitted.message.coefficients] == values
    X.assign(y=y).to_csv(tmp_path / "a.csv", index=False)
    from_file = vs.fit(STUDY, tmp_path / "a.csv").message.coefficients
    assert [row.value for row in from_file] == values
    model = learner.to_model()
    expected = model.linear_predictor(X)
    assert_array_equal(model.linear_predictor(records), expected)
    assert_array_equal(model.linear_predictor(X.to_numpy()), expected)
    again = LinearClassifier(read_model_file(write_model_file(model.file)))
    assert_array_equal(again.linear_predictor(X), expected)
    assert values_of(X, model.features).shape == (len(X), 5)
    gone = {"load": 0.0}
    step = model.linear_predictor([gone]) - model.linear_predictor(
        [{"temp": 20, "zone": "b", "load": 0}]
    )
    assert step[0] == pytest.approx(values[2] + values[4])


@pytest.mark.parametrize("kind", [int, bool, float, str])
def test_a_fitted_model_predicts_labels_as_they_came(kind: Any, tmp_path: Path) -> None:
    X, y = frame()
    labels = np.array(y).astype(kind)
    fitted = vs.fit(STUDY, X, labels)
    predicted = fitted.model.predict(X)
    assert predicted.dtype.kind == labels.dtype.kind
    assert 0.5 < np.mean(predicted == labels) < 1
    fitted.save(tmp_path / "model.json")
    again = vs.load_model(tmp_path / "model.json")
    assert again.predict(X).tolist() == predicted.tolist()
    payload = (tmp_path / "model.json").read_bytes()
    if kind is int:
        with pytest.raises(ConfigError, match="labels: they are not those"):
            read_model_file(payload.replace(b"    0,\n    1\n", b"    0,\n    2\n"))


def test_a_backtest_uses_every_record(tmp_path: Path) -> None:
    X, y = frame()
    X.assign(y=y).to_csv(tmp_path / "a.csv", index=False)
    found = backtest(STUDY, tmp_path / "a.csv", split=2)
    assert found.unusable == 0
    assert [row.name for row in found.estimate.coefficients] == list(NAMES)


def test_a_record_without_a_needed_value_is_left_out_by_learners_as_by_fit() -> None:
    X, y = frame()
    study = study_of("temp = { min = 0, max = 100 }", LOAD)
    X = X[["temp", "load"]]
    labels = np.array(y, dtype=float)
    labels[:3] = np.nan
    with pytest.warns(DataWarning, match=r"^'temp', 'y': records without a value were left out"):
        learner = StreamClassifier(study).fit(X, labels)
    with pytest.warns(DataWarning, match="could not be used, and such slots stayed empty"):
        fitted = vs.fit(study, X.assign(y=labels))
    assert [row.value for row in learner.estimate_.coefficients] == [
        row.value for row in fitted.message.coefficients
    ]
    one_by_one = StreamClassifier(study)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        for record, label in zip(X.to_dict("records"), labels.tolist(), strict=True):
            one_by_one.learn_one(record, label)
    one_by_one.close_windows()
    assert one_by_one.estimate_.coefficients == learner.estimate_.coefficients
    # n records need n answers
    with pytest.raises(DataError, match="not a finite number"):
        learner.to_model().predict(X)
    with (
        pytest.warns(DataWarning),
        pytest.raises(DataError, match="no records with a response and all values"),
    ):
        StreamClassifier(study).fit(X, [None] * len(y))


def test_declared_ranges_take_nan_where_one_says_what_stands_for_it() -> None:
    X, y = frame()
    values = X[["temp", "load"]].to_numpy()
    heat = {"min": 0, "max": 100, "missing": 20, "indicator": True}
    learner = PrivateClassifier(ranges=[heat, (-1, 1)], epsilon=math.inf).fit(values, y)
    names = [row.name for row in learner.estimate_.coefficients]
    assert names == ["intercept", "x0", "x0_missing", "x1"]
    assert learner.predict(values).shape == (len(y),)
    with pytest.raises(ValueError, match="NaN"):
        PrivateClassifier(ranges=[(0, 100), (-1, 1)], epsilon=math.inf).fit(values, y)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("a = { min = 0, max = 9, missing = 10 }", r"a\.missing: .* here 0 to 9"),
        ("a = { min = 0, max = 9, missing = 'mean' }", r"a\.missing: must be \"drop\" or lie"),
        ("a = { kind = 'category', levels = ['u', 'v'], missing = 'w' }", "one of levels: u, v"),
        ("a = { min = 0, max = 9, indicator = true }", r"a\.indicator: .* set data\.features\.a\."),
    ],
)
def test_a_value_that_could_not_stand_there_is_refused(declared: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        study_of(declared)


def test_an_indicator_cannot_have_the_name_of_another_feature() -> None:
    with pytest.raises(ConfigError, match="would be called 'temp_missing'"):
        study_of(TEMP, "temp_missing = { min = 0, max = 1 }")


def test_a_revision_says_what_stands_for_missing_values_where_something_does() -> None:
    plain = "temp = { min = 0, max = 100, typical = 20 }"
    revisions = [
        revision_of(study_of(text))
        for text in (plain, plain.replace(" }", ", missing = 'drop', indicator = false }"),
                     plain.replace(" }", ", missing = 20 }"), TEMP)
    ]  # fmt: skip
    assert revisions[0] == revisions[1]
    assert len(set(revisions)) == 3
