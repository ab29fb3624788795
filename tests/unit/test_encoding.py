"""Features as a study declares them, missing values, and what every path makes of them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import veilstream as vs
from pipeline.api.sample import of_sample
from pipeline.errors import ConfigError, DataError, DataWarning, RecordError
from pipeline.learning import PrivateClassifier, StreamClassifier
from pipeline.messages.model_file import read_model_file, write_model_file
from pipeline.methods import revision_of
from pipeline.methods import task_of as make_task
from pipeline.prediction.estimators import LinearClassifier
from pipeline.records.batch import Column, Columns
from pipeline.records.columns import values_of
from pipeline.records.encoder import Encoder, dummy_of
from pipeline.records.values import is_missing
from pipeline.release.task import clipped_to_norm
from pipeline.study.encoding import steps_of
from pipeline.study.model import Study
from pipeline.study.reference import KEPT, moments, norms, sample, typical_norm_bound
from pipeline.study.versions import without_privacy
from pipeline.study_file.load import parse_study
from tests.builders import study_text, task_of

AMOUNT = "amount = { min = 0, max = 1e6, transform = 'asinh', unit = 100, typical = 2000 }"
FEATURES = (
    AMOUNT,
    "heat = { min = -40, max = 120, typical = 20 }",
    "wait = { min = 0, max = 50, transform = 'sqrt' }",
    "age = { min = 18, max = 90, transform = 'log1p', unit = 10 }",
    "flow = { min = -5, max = 9, transform = 'asinh' }",
    "region = { kind = 'category', levels = ['north', 'south', 'west'], base = 'south' }",
    "code = { kind = 'category', levels = ['1', '2'] }",
)
PAIRS = ("amount:heat", "heat:region", "region:code")
GOOD: dict[str, object] = {
    "amount": 2000, "heat": 20.0, "wait": "25", "age": 40, "flow": 0, "region": "south",
    "code": 1, "y": "1",
}  # fmt: skip

A, B = "a = { min = 0, max = 9 }", "b = { kind = 'category', levels = ['u', 'v'] }"


def study_of(*declared: str, **more: Any) -> Study:
    return parse_study(study_text(declared=declared or FEATURES, **more))


STUDY = study_of(interactions=PAIRS)


def encoded(study: Study, **changes: object) -> dict[str, float]:
    row = Encoder(study).encode({**GOOD, **changes})
    return dict(zip(study.coefficient_names[1:], row.features.tolist(), strict=True))


# --- what a value becomes


def test_a_number_is_its_transform_from_its_typical_value_in_half_ranges() -> None:
    found = encoded(STUDY, amount=700, heat=60, wait=9, age=18)
    half = math.asinh(1e4) / 2
    assert found["amount"] == pytest.approx((math.asinh(7) - math.asinh(20)) / half)
    assert found["heat"] == pytest.approx(40 / 80)
    middle = math.sqrt(50) / 2
    assert found["wait"] == pytest.approx((3 - middle) / middle)
    assert found["age"] == -1.0
    typical = encoded(STUDY)
    assert typical["amount"] == typical["heat"] == typical["region=north"] == 0.0


def test_a_level_is_one_in_its_own_column_and_the_base_has_none() -> None:
    assert STUDY.coefficient_names[6:8] == ("region=north", "region=west")
    assert "region=south" not in STUDY.coefficient_names
    found = encoded(STUDY, region="west", code=2.0)
    assert (found["region=north"], found["region=west"], found["code=2"]) == (0.0, 1.0, 1.0)


def test_an_interaction_is_the_product_of_both_as_encoded() -> None:
    found = encoded(STUDY, amount=700, heat=60, region="west", code=" 2 ")
    assert found["amount:heat"] == found["amount"] * found["heat"]
    assert found["heat:region=west"] == found["heat"]
    assert found["heat:region=north"] == 0.0
    assert found["region=west:code=2"] == 1.0


def test_ends_are_reached_and_never_passed() -> None:
    low, high = STUDY.encoding.ends
    corners = [
        {"amount": a, "heat": h, "wait": w, "age": g, "flow": f, "region": r, "code": c}
        for a, h, w, g, f in ((0, -40, 0, 18, -5), (1e6, 120, 50, 90, 9), (1e6, -40, 0, 90, 9),
                              (0, 120, 50, 18, -5), (-1e9, 1e9, 1e9, 1e9, -1e9))
        for r in ("north", "south", "west")
        for c in (1, 2)
    ]  # fmt: skip
    rows = np.array([list(encoded(STUDY, **corner).values()) for corner in corners])
    assert_array_equal(rows.min(axis=0), low)
    assert_array_equal(rows.max(axis=0), high)
    task = make_task(STUDY)
    longest = np.sqrt(1 + (rows**2).sum(axis=1)).max()
    assert longest <= task.longest * (1 + 1e-12)
    assert 1 + np.abs(rows).sum(axis=1).max() <= task.farthest * (1 + 1e-12)


# --- one encoding on every way in


def test_an_undeclared_level_is_set_aside_and_its_value_is_not_said() -> None:
    with pytest.raises(
        RecordError, match="'region': unknown level; allowed: 'north', 'south'"
    ) as refused:
        encoded(STUDY, region="atlantis")
    assert "atlantis" not in str(refused.value)
    with pytest.raises(RecordError, match="'region': missing"):
        encoded(STUDY, region=None)
    many = [f"l{i}" for i in range(200)]
    wide = study_of(f"region = {{ kind = 'category', levels = {many} }}")
    with pytest.raises(RecordError) as caught:
        Encoder(wide).encode({"region": "none", "y": "1"})
    assert len(str(caught.value)) < 120


def test_the_record_that_anybody_could_make_up_can_be_encoded() -> None:
    assert Encoder(STUDY).encode(dummy_of(STUDY)).clipped == 0


# --- the revision, and the typical norm bound

MATTERS = [
    ("typical = 2000", "typical = 2001"),
    (", typical = 2000", ""),
    ("'asinh', unit = 100", "'log1p', unit = 100"),
    ("unit = 100", "unit = 101"),
    ("'west'], base", "'west', 'east'], base"),
    ("base = 'south'", "base = 'west'"),
    ("'north', 'south'", "'south', 'north'"),
    ("'amount:heat'", "'amount:wait'"),
    ("'amount:heat', 'heat:region', ", ""),
]


@pytest.mark.parametrize(("old", "new"), MATTERS)
def test_all_that_features_declare_enters_the_revision(old: str, new: str) -> None:
    text = study_text(declared=FEATURES, interactions=PAIRS)
    assert text.count(old) == 1
    changed = parse_study(text.replace(old, new))
    assert revision_of(changed) != revision_of(parse_study(text))


def test_a_typical_norm_bound_enters_the_revision_as_the_number() -> None:
    chosen = study_of(norm_bound="typical")
    number = typical_norm_bound(chosen.encoding)
    assert revision_of(chosen) == revision_of(study_of(norm_bound=number))
    assert make_task(chosen).norm_bound == number
    assert make_task(without_privacy(chosen)).norm_bound == number


def test_a_typical_norm_bound_is_kept_by_99_percent_of_the_reference_population() -> None:
    """Of 2^14 records the share has a deviation of .08 %, and the bound has four digits."""
    encoding = STUDY.encoding
    bound = typical_norm_bound(encoding)
    assert np.mean(norms(encoding) <= bound) == pytest.approx(KEPT, abs=0.001)
    assert bound < make_task(STUDY).longest
    rng = np.random.default_rng(1)
    # three plain features, by hand: triangular on [-1, 1]
    drawn = np.sqrt(1 + (rng.triangular(-1, 0, 1, (200_000, 3)) ** 2).sum(axis=1))
    assert typical_norm_bound(task_of(p=3).encoding) == pytest.approx(
        np.quantile(drawn, KEPT), abs=0.02
    )


@pytest.mark.parametrize("law", ["typical", "uniform"])
@pytest.mark.parametrize("scaling", ["unit", "none"])
def test_moments_are_those_of_the_sample(law: Any, scaling: str) -> None:
    encoding = study_of(interactions=PAIRS, scaling=scaling).encoding
    exact, drawn = moments(encoding, law), sample(encoding, law)
    design = np.column_stack([np.ones(len(drawn)), drawn])
    products = design[:, :, None] * design[:, None, :]
    errors = products.std(axis=0) / math.sqrt(len(design)) + 1e-12
    assert np.all(np.abs(products.mean(axis=0) - exact) < 4.5 * errors)


# --- predictions


def message_model(study: Study, tmp_path: Path) -> tuple[LinearClassifier, list[dict[str, Any]]]:
    rng = np.random.default_rng(3)
    records = [
        {"amount": float(rng.lognormal(7, 2)), "heat": float(rng.uniform(-40, 120)),
         "wait": float(rng.uniform(0, 50)), "age": float(rng.uniform(18, 90)),
         "flow": float(rng.normal()), "region": str(rng.choice(["north", "south", "west"])),
         "code": int(rng.integers(1, 3))}
        for _ in range(400)
    ]  # fmt: skip
    learner = StreamClassifier(study).fit(records, [str(i % 2) for i in range(len(records))])
    model = learner.to_model()
    model.save(tmp_path / "model.json")
    return model, records


@pytest.mark.parametrize("scaling", ["unit", pytest.param("none", marks=pytest.mark.slow)])
def test_a_model_file_predicts_as_its_estimate_and_own_units_agree(
    tmp_path: Path, scaling: str
) -> None:
    study = study_of(interactions=PAIRS, private=False, scaling=scaling)
    model, records = message_model(study, tmp_path)
    read = LinearClassifier.load(tmp_path / "model.json")
    assert read.linear_predictor(records).tolist() == model.linear_predictor(records).tolist()
    assert read.file == model.file
    assert [c.step for c in read.file.coefficients] == list(steps_of(study.encoding))
    coefficients = np.array([c.value for c in model.file.coefficients])
    encoder = Encoder(study)
    columns = np.array([encoder.encode({**record, "y": "1"}).features for record in records])
    predictor = coefficients[0] + columns @ coefficients[1:]
    assert_allclose(model.linear_predictor(records), predictor, atol=1e-11)
    # in own units: transforms and levels, without centre and scale
    own = study_of(interactions=PAIRS, private=False, scaling="none")
    plain = np.array([Encoder(own).encode({**r, "y": "1"}).features for r in records])
    assert_allclose(model.intercept_ + plain @ model.coef_[0], predictor, rtol=1e-9, atol=1e-9)


def test_steps_say_what_a_coefficient_is_for() -> None:
    words = dict(zip(STUDY.coefficient_names, steps_of(STUDY.encoding), strict=True))
    assert words["amount"] == "4.952 of asinh(amount / 100), 0 at amount = 2000"
    assert words["heat"] == "80 of heat, 0 at heat = 20"
    assert words["wait"] == "3.536 of sqrt(wait), 0 at wait = 12.5"
    assert words["region=north"] == "beside the base level 'south'"
    assert words["amount:heat"] == "both together, beyond each alone"
    assert steps_of(task_of(p=2).encoding) == ("", "", "")
    kept = study_of(AMOUNT, scaling="none")
    assert steps_of(kept.encoding)[1] == "1 of asinh(amount / 100)"


@pytest.mark.filterwarnings("ignore::pipeline.errors.NotReadyWarning")
def test_a_learner_takes_what_a_study_file_declares_of_a_feature() -> None:
    rng = np.random.default_rng(5)
    X = np.column_stack([rng.lognormal(7, 1, 600), rng.integers(1, 4, 600), rng.normal(size=600)])
    y = np.log(X[:, 0] / 1000) + (X[:, 1] == 2) + rng.normal(size=600) > 0
    levels = {"kind": "category", "levels": ["1", "2", "3"]}
    amount = {"min": 0, "max": 1e6, "transform": "asinh", "unit": 100, "typical": 1000}
    learner = PrivateClassifier(ranges=[amount, levels, (-5, 5)], epsilon=math.inf, window=50)
    learner.fit(X, y)
    assert learner.n_features_in_ == 3
    assert [c.name for c in learner.estimate_.coefficients] == [
        "intercept", "x0", "x1=2", "x1=3", "x2",
    ]  # fmt: skip
    assert learner.score(X, y) > 0.75
    # as often right as if the columns had been made by hand
    Z = np.column_stack([np.arcsinh(X[:, 0] / 100), X[:, 1] == 2, X[:, 1] == 3, X[:, 2]])
    by_hand = learner.intercept_ + Z @ learner.coef_[0]
    assert_allclose(learner.decision_function(X), by_hand, rtol=1e-9, atol=1e-9)
    with pytest.raises(DataError, match="row 0: column 'x1': unknown level"):
        learner.predict(X + 10)
    with pytest.raises(ConfigError, match="ranges: must be one pair"):
        PrivateClassifier(ranges=7, epsilon=1.0).fit(X, y)


# --- what the check of a study says


def test_a_sample_shows_the_features_that_lie_in_a_sliver(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    amounts = rng.lognormal(7, 1.5, 2000)
    lines = ["a,b,c", *(f"{a:.2f},{rng.uniform(0, 9):.3f},{'uv'[i % 2]}"
                        for i, a in enumerate(amounts)), "x,1,u", "1,1,w"]  # fmt: skip
    (tmp_path / "sample.csv").write_text("\n".join(lines) + "\n")
    a, c = "a = { min = 0, max = 1e6 }", "c = { kind = 'category', levels = ['u', 'v'] }"
    task = make_task(study_of(a, A.replace("a =", "b ="), c))
    found: Any = of_sample(task, str(tmp_path / "sample.csv"))
    assert (found["records"], found["unusable"], found["share_shortened"]) == (2002, 2, 0.0)
    assert found["faults"] == {
        "column 'a': not a number": 1,
        "column 'c': unknown level; allowed: 'u', 'v'": 1,
    }
    assert found["ranges_that_cut_much"] == {}
    found = found["features_to_declare_otherwise"]
    assert list(found) == ["a"]
    advice = found["a"].partition("such as ")[2].partition(" }")[0] + " }"
    assert "transform = " in advice
    assert "typical = 1000" in advice
    assert "shortened" not in of_sample(task, str(tmp_path / "sample.csv"))
    # what it advises is a study, and helps
    better = make_task(study_of(advice, A.replace("a =", "b ="), c))
    assert of_sample(better, str(tmp_path / "sample.csv"))["features_to_declare_otherwise"] == {}
    # a range that cuts most of them is wrong, and nothing within it is advised
    narrow: Any = of_sample(
        make_task(study_of("a = { min = 0, max = 5 }", A.replace("a =", "b ="), c)),
        str(tmp_path / "sample.csv"),
    )
    assert "declare the range that the instrument" in narrow["ranges_that_cut_much"]["a"]
    assert "a" not in narrow["features_to_declare_otherwise"]
    # of the response, too
    rows = "".join(f"{k},{k % 9}\n" for k in range(90))
    (tmp_path / "counts.csv").write_text(f"a,y\n{rows}")
    counts = make_task(study_of("a = { min = 0, max = 90 }", loss="poisson", most=7.0))
    found = of_sample(counts, str(tmp_path / "counts.csv"))
    assert list(found["ranges_that_cut_much"]) == ["y"]
    assert "10 of 90 values are outside 0 to 7 and" in found["ranges_that_cut_much"]["y"]
    with pytest.raises(DataError, match="no column 'd'"):
        of_sample(make_task(study_of("d = { min = 0, max = 1 }")), str(tmp_path / "sample.csv"))


# --- what cannot be


REFUSED = [
    ("a = { min = 0, max = 9, typical = 10 }", "data.features.a.typical: must lie in"),
    ("a = { min = -1, max = 9, transform = 'log1p' }", 'use "asinh"'),
    ("a = { min = -1, max = 9, transform = 'sqrt' }", "needs a range from 0 on"),
    ("a = { min = 0, max = 9, transform = 'log' }", "data.features.a.transform"),
    ("a = { min = 0, max = 9, transform = 'asinh', unit = 0 }", "data.features.a.unit"),
    ("a = { min = 0, max = 9, transform = 'asinh', unit = 1e-300 }", "a.unit: must lie in"),
    ("a = { min = 0, max = 9, unit = 2 }", 'a.unit: goes with transform = "asinh" or "log1p"'),
    ("a = { min = 0, max = 9, levels = ['a', 'b'] }", "a.levels: does not go with"),
    ("a = { kind = 'category' }", "data.features.a.levels: is required"),
    ("a = { kind = 'category', levels = ['a'] }", "at least two"),
    ("a = { kind = 'category', levels = ['a', 'b', 'a'] }", "stand for the same value, 'a'"),
    ("a = { kind = 'category', levels = ['1', '1.0'] }", "stand for the same value"),
    ("a = { kind = 'category', levels = ['a', ' b'] }", "remove the blanks"),
    ("a = { kind = 'category', levels = ['a', 'b'], base = 'c' }", "a.base: must be one of"),
    ("a = { kind = 'category', levels = ['a', 'b'], min = 0 }", "a.min: does not go with"),
    ("a = { kind = 'category', levels = ['a', 'b'], transform = 'sqrt' }", "a.transform: does"),
    ("a = { kind = 'category', levels = [1, 2] }", "data.features.a.levels"),
    ("a = { kind = 'text', min = 0, max = 1 }", "data.features.a.kind"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_a_feature_that_cannot_be_encoded_is_refused_by_its_key(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study_of(line)
    assert words in str(caught.value)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("declared", "interactions", "words"),
    [
        ([A, B], ["a:c"], "'a:c' is not \"a:b\" of two different features"),
        ([A, B], ["a:a"], "is not"),
        ([A, B], ["a:b", "b:a"], "two are of the same features"),
        ([A, B, "'b=v' = { min = 0, max = 1 }"], [], "two columns would be called 'b=v'"),
        ([A, B, "'a:b=v' = { min = 0, max = 1 }"], ["a:b"], "would be called 'a:b=v'"),
        (["a = { min = 0, max = 1e60 }", "b = { min = 0, max = 1e60 }"], ["a:b"], "interactions"),
        ([f"a = {{ kind = 'category', levels = {[f'l{i}' for i in range(1002)]} }}"], [],
         "1001 columns, and 1000 are allowed"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_told_apart_or_summed_are_refused(
    declared: list[str], interactions: list[str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        study_of(*declared, interactions=interactions, scaling="none")
    assert words in str(caught.value)


def test_a_response_is_no_feature() -> None:
    with pytest.raises(ConfigError, match="'y' is also a feature"):
        study_of(A, "y = { min = 0, max = 1 }")


def test_a_typical_norm_leaves_room_however_small_the_ranges_are() -> None:
    """Rounded to 1 it would divide nothing by nothing, and a record of zeros would show."""
    text = study_text(
        declared=("r = { min = 0, max = 0.01 }", "s = { min = 0, max = 0.02 }"),
        norm_bound="typical", scaling="none",
    )  # fmt: skip
    task = make_task(parse_study(text))
    assert typical_norm_bound(task.encoding) >= 1.01
    assert_array_equal(clipped_to_norm(np.zeros((2, 2)), task), np.zeros((2, 2)))


TEMP = "temp = { min = 0, max = 100, typical = 20, missing = 20, indicator = true }"
ZONE = "zone = { kind = 'category', levels = ['a', 'b'], missing = 'b', indicator = true }"
LOAD = "load = { min = -1, max = 1 }"
NAMES = ("intercept", "temp", "temp_missing", "zone=b", "zone_missing", "load")


def study_with_missing(*declared: str, **more: Any) -> Study:
    more = {"private": False, "records": 20, "loss": "logistic", **more}
    return parse_study(study_text(declared=declared or (TEMP, ZONE, LOAD), **more))


MISSING = study_with_missing()
FULL = {"temp": 40.0, "zone": "a", "load": 0.5, "y": 1}
#: The columns of the study for a record without temp and zone, and for a full one.
GONE, THERE = [0.0, 1.0, 1.0, 1.0, 0.5], [0.4, 0.0, 0.0, 0.0, 0.5]


def test_an_indicator_is_a_coefficient_and_counts_in_every_bound() -> None:
    assert MISSING.coefficient_names == NAMES
    task = make_task(MISSING)
    assert task.size == len(NAMES)
    low, high = MISSING.encoding.ends
    column = NAMES.index("temp_missing") - 1
    assert (low[column], high[column]) == (0.0, 1.0)
    plain = make_task(
        study_with_missing(*(text.replace(", indicator = true", "") for text in (TEMP, ZONE, LOAD)))
    )
    assert task.longest == math.sqrt(plain.longest**2 + 2)
    gone = Encoder(MISSING).encode({"load": 0.5, "y": 1}).features
    assert np.sum(gone**2) <= task.longest**2 - 1


NA = pytest.importorskip("pandas").NA


@pytest.mark.parametrize("nothing", [None, "", "  ", math.nan, np.float32("nan"), NA])
def test_whatever_stands_for_nothing_is_the_same(nothing: object) -> None:
    encoder = Encoder(MISSING)
    given = {"temp": nothing, "zone": nothing, "load": 0.5, "y": 1}
    assert encoder.encode(given).features.tolist() == GONE
    assert encoder.encode({"load": 0.5, "y": 1}).features.tolist() == GONE
    assert encoder.block([given, FULL]).arrays.features.tolist() == [GONE, THERE]
    columns = {name: Column([given[name], FULL[name]]) for name in FULL}
    block = encoder.block(Columns(columns, 2))
    assert block.arrays.features.tolist() == [GONE, THERE]
    assert block.usable == 2


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
    learner = StreamClassifier(MISSING).fit(X, y)
    assert learner.feature_names_in_.tolist() == ["temp", "zone", "load"]
    fitted = vs.fit(MISSING, X.assign(y=y))
    values = [row.value for row in learner.estimate_.coefficients]
    assert [row.name for row in fitted.message.coefficients] == list(NAMES)
    assert [row.value for row in fitted.message.coefficients] == values
    arrow = pa.Table.from_pandas(X)
    of_arrow = StreamClassifier(MISSING).fit(arrow, y).estimate_.coefficients
    assert [row.value for row in of_arrow] == values
    X.assign(y=y).to_csv(tmp_path / "a.csv", index=False)
    from_file = vs.fit(MISSING, tmp_path / "a.csv").message.coefficients
    assert [row.value for row in from_file] == values
    model = learner.to_model()
    expected = model.linear_predictor(X)
    assert_array_equal(model.linear_predictor(arrow), expected)
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


def test_a_record_without_a_needed_value_is_left_out_by_learners_as_by_fit() -> None:
    X, y = frame()
    study = study_with_missing("temp = { min = 0, max = 100 }", LOAD)
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
        study_with_missing(declared)


def test_an_indicator_cannot_have_the_name_of_another_feature() -> None:
    with pytest.raises(ConfigError, match="would be called 'temp_missing'"):
        study_with_missing(TEMP, "temp_missing = { min = 0, max = 1 }")


def test_a_revision_says_what_stands_for_missing_values_where_something_does() -> None:
    plain = "temp = { min = 0, max = 100, typical = 20 }"
    revisions = [
        revision_of(study_with_missing(text))
        for text in (plain, plain.replace(" }", ", missing = 'drop', indicator = false }"),
                     plain.replace(" }", ", missing = 20 }"), TEMP)
    ]  # fmt: skip
    assert revisions[0] == revisions[1]
    assert len(set(revisions)) == 3


@pytest.mark.parametrize(
    ("bound", "share"), [(1.2, 0.34), (1.35, 0.09), (1.38, None), (1.41, None)]
)
def test_a_sample_says_when_more_than_one_record_in_twenty_would_be_shortened(
    tmp_path: Path, bound: float, share: float | None
) -> None:
    # norms of records with one feature, even on [-1, 1]: (1 + x^2)^(1/2)
    values = np.linspace(0, 10, 2001)
    (tmp_path / "sample.csv").write_text("a\n" + "\n".join(map(str, values)) + "\n")
    task = make_task(study_of("a = { min = 0, max = 10 }", norm_bound=bound))
    found: Any = of_sample(task, str(tmp_path / "sample.csv"))
    assert found["share_shortened"] == pytest.approx(1 - math.sqrt(bound**2 - 1), abs=1e-3)
    if share is None:
        assert "shortened" not in found
    else:
        assert f"WARNING: {share:.0%} of these" in found["shortened"]
        # the bound that it gives shortens one in a hundred
        assert "(1.41 shortens 1 %" in found["shortened"]
