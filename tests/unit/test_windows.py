"""Records as a study reads them: ranges, windows, classes and times."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest

from pipeline.backtest.options import EventTime, seconds_of
from pipeline.errors import ConfigError, DataError, RecordError
from pipeline.records.batch import Column, Columns, Reasons
from pipeline.records.blocks import Window
from pipeline.records.encoder import Encoder, stack
from pipeline.records.features import ClassResponse, Features
from pipeline.records.values import milliseconds_of, number_of, time_of
from pipeline.stream.in_process import OfflineRun
from pipeline.study.data import Feature
from pipeline.study_file.load import parse_study
from tests.builders import cut, rows_of, simulate, study_text, task_of

ENCODER = Encoder(parse_study(study_text(p=2, low=-40.0, high=120.0)))
GOOD = {"y": "1", "x0": "120", "x1": 40.0}


def test_public_ranges_are_mapped_to_the_unit_interval_and_beyond_them_clipped() -> None:
    row = ENCODER.encode(GOOD)
    assert (row.features.tolist(), row.response, row.clipped) == ([1.0, 0.0], 1.0, 0)
    row = ENCODER.encode({"y": "0", "x0": 1e300, "x1": "-1e9"})
    assert (row.features.tolist(), row.response, row.clipped) == ([1.0, -1.0], -1.0, 2)


def test_the_encoded_features_never_leave_the_unit_interval() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = float(10.0 ** rng.uniform(-5, 5) * rng.choice([-1, 1]))
        high = low + float(10.0 ** rng.uniform(-8, 5))
        encoder = Encoder(parse_study(study_text(p=1, low=low, high=high)))
        for x in (low, high, low / 2 + high / 2, math.nextafter(high, 0)):
            assert abs(encoder.encode({"y": "1", "x0": repr(x)}).features[0]) <= 1.0


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"x0": "warm"}, "x0"),
        ({"x0": ""}, "x0"),
        ({"x0": None}, "x0"),
        ({"x1": "nan"}, "x1"),
        ({"x1": "inf"}, "x1"),
        ({"x1": float("-inf")}, "x1"),
        ({"y": "secret-class"}, "y"),
        ({"y": None}, "y"),
    ],
)
def test_a_bad_record_is_refused_by_its_column_and_never_shows_its_value(
    change: dict[str, object], column: str
) -> None:
    with pytest.raises(RecordError) as caught:
        ENCODER.encode({**GOOD, **change})
    assert repr(column) in str(caught.value)
    for value in change.values():
        if isinstance(value, str) and value not in {"", "nan", "inf"}:
            assert value not in str(caught.value)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(RecordError, match="'x1'"):
        ENCODER.encode({"y": "1", "x0": 1})
    with pytest.raises(DataError, match="'x1'"):
        ENCODER.check_columns(["y", "x0"])
    ENCODER.check_columns(["x1", "y", "x0", "more"])


def test_stacking_no_rows_gives_empty_arrays_of_the_right_width() -> None:
    features, responses = stack([], 3)[:2]
    assert features.shape == (0, 3)
    assert responses.shape == (0,)


def test_a_window_counts_slots_and_not_records() -> None:
    window = Window(4)
    row = ENCODER.encode(GOOD)
    far = {**GOOD, "x0": 1e9}
    window.add(ENCODER.block([GOOD, far, {**GOOD, "x1": "warm"}]), b"3", 10.0)
    assert (window.taken, window.usable, window.room, window.clipped) == (3, 2, 1, 1)
    assert (window.position, window.opened) == (b"3", 10.0)
    window.add(ENCODER.block([GOOD]), b"4", 12.0)
    assert (window.taken, window.usable, window.room) == (4, 3, 0)
    assert (window.position, window.opened) == (b"4", 10.0)
    expected = stack([row, ENCODER.encode(far), None, row], 2)
    for found, wanted in zip(window.slots, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_bad_record_leaves_its_slot_empty_and_moves_no_other_record() -> None:
    rows = rows_of(*simulate(np.random.default_rng(1), 10, 2))
    slots = [*rows[:4], None, *rows[4:9]]
    windows = list(cut(slots, 5))
    assert [len(window) for window in windows] == [5, 5]
    assert windows[0][4] is None
    assert windows[1][0] is rows[4]
    assert [len(w) for w in cut(rows, 4)] == [4, 4, 2]
    assert list(cut([], 4)) == []


def test_an_empty_window_is_released_like_a_full_one() -> None:
    task = task_of(p=2, records=40)
    run = OfflineRun(task)
    run.add("c", [])
    assert run.estimate(0.0)[0].records == 40


BLANK = ["", "  ", None]
YES, NO, NEITHER = 1.0, -1.0, math.nan
CASES = [
    # the classes are numbers
    ("1", "0", ["1", " 1 ", 1, 1.0, "1.0", "1.", "01", "1e0", True], YES),
    ("1", "0", ["0", 0, 0.0, -0.0, "0.0", "-0", False], NO),
    ("1", "0", [2, 0.5, "true", "True", "yes", "1_0", None, "", "nan", math.inf, 10**400], NEITHER),
    ("1.0", "2.0", [1, "1", 1.0, True], YES),
    ("1.0", "2.0", [2, "2", False], (NO, NO, NEITHER)),
    # truth values
    ("true", "false", [True, "true", "True", "TRUE"], YES),
    ("true", "false", [False, "false", "False"], NO),
    ("true", "false", [1, "1", 1.0, 0, "yes"], NEITHER),
    # words
    ("yes", "no", [1, True, "Yes", "true"], NEITHER),
    # one of both
    ("1", "none", [1, 1.0, "1.0", True], YES),
    ("1", "none", [0, False, "None"], NEITHER),
    # alike as numbers or truth values: only the text tells them apart
    ("1", "1.0", ["1"], YES),
    ("1", "1.0", ["1.0", 1.0], NO),
    ("1", "1.0", ["01"], NEITHER),
    ("true", "True", ["True"], NO),
    ("true", "True", [True], NEITHER),
]
FLAT = [
    (positive, negative, value, wanted[place] if isinstance(wanted, tuple) else wanted)
    for positive, negative, values, wanted in CASES
    for place, value in enumerate(values)
]


def found(read: object) -> float:
    try:
        return read()[0]  # type: ignore[operator,no-any-return]
    except RecordError:
        return math.nan


@pytest.mark.parametrize(
    ("positive", "negative", "value", "wanted"), FLAT, ids=map(str, range(len(FLAT)))
)
def test_a_value_stands_for_the_same_class_wherever_it_comes_in(
    positive: str, negative: str, value: object, wanted: float
) -> None:
    response = ClassResponse("y", positive, negative)
    signs = [found(lambda: response.of_label(value))]
    columns = [Column([value])] * 2  # the second time it is one that is known
    if isinstance(value, bool | int | float) and np.array(value).dtype != object:
        columns.append(Column(np.array([value])))
    for given in columns:
        reasons = Reasons(1, response.kinds)
        together = response.read(given, positive, reasons).encoded
        signs.append(math.nan if reasons.codes[0] else float(together[0]))
    np.testing.assert_array_equal(signs, [wanted] * len(signs))


def test_values_that_are_equal_to_python_need_not_be_of_one_class() -> None:
    response = ClassResponse("y", "true", "false")
    reasons = Reasons(6, response.kinds)
    found = response.read(Column([True, 1, 1.0, "true", False, 0]), "true", reasons)
    signs = np.where(reasons.codes, math.nan, found.encoded)
    np.testing.assert_array_equal(signs, [1, math.nan, math.nan, 1, -1, math.nan])


@pytest.mark.parametrize("value", BLANK)
def test_a_value_that_is_not_there_is_missing_and_no_other_fault(value: object) -> None:
    for read in (ClassResponse("failed", "yes", "no").of_label, lambda v: number_of(v, "failed")):
        with pytest.raises(RecordError, match="column 'failed': missing"):
            read(value)
    # unless the study says what it is
    assert ClassResponse("failed", "yes", "").of_label("") == (NO, False)


def test_a_column_is_named_only_if_it_is_like_one_of_the_study() -> None:
    def told(*columns: str) -> str:
        features = Features({"amount": Feature(min=0.0, max=1.0)}, unit=True)
        with pytest.raises(DataError) as caught:
            features.check_columns(columns, "failed")
        return str(caught.value)

    assert "has no column 'amount'; the study needs amount, failed; it has ' Amount'" in told(
        " Amount", "failed", "name"
    )
    assert "it has 'ammount', 'Failed'" in told("Failed", "ammount")
    # other marks than letters make no difference, and a beginning is enough
    assert "it has 'a-mount': names" in told("a-mount", "failed", "name")
    assert "it has 'amount_eur', 'fail': names" in told("fail", "amount_eur", "name")
    # what the study needs and the source has is no other
    assert told("failed", "Smith", "yes").endswith("and this source has 2 others")
    # a file without a header begins with a record
    assert told("0.5", "Smith", "yes").endswith("its header, and this source has 3 others")
    assert "Smith" not in told("Smith", "failure")
    assert "not separated by commas" in told("amount;failed")


EAST = timezone(timedelta(hours=2))
TIMES = {
    "2013-06-01T12:00:00Z": 1_370_088_000_000,
    "2013-06-01t14:00:00.250999+02:00": 1_370_088_000_250,
    "2013-06-01 12:00:00Z": 1_370_088_000_000,
    "1370088000": 1_370_088_000_000,
    " 1370088000.25 ": 1_370_088_000_250,
    "1370088000250": 1_370_088_000_250,
    1_370_088_000: 1_370_088_000_000,
    1_370_088_000.25: 1_370_088_000_250,
    1_370_088_000_250.0: 1_370_088_000_250,
    datetime(2013, 6, 1, 14, tzinfo=EAST): 1_370_088_000_000,
}
NO_TIMES = ("2013-06-01T12:00:00", "2013-06-01", "20130601x", "yesterday", "", None, True, math.nan,
            math.inf, 1e17, 10**400, -(10**400), "1e999", datetime(2013, 6, 1, 12))  # noqa: DTZ001  # fmt: skip


def moments(column: Column) -> Columns:
    """Return slots with one column, of times."""
    return Columns({"t": column}, len(column.values))


@pytest.mark.parametrize(("value", "expected"), TIMES.items())
def test_a_time_has_the_same_meaning_everywhere(value: object, expected: int) -> None:
    assert milliseconds_of(value) == time_of(value, "t") == expected
    arrived, read = EventTime("t").read(moments(Column([value])))
    assert arrived[0] == read[0] == expected / 1000
    if isinstance(value, str):
        assert seconds_of(value, "--from") == expected / 1000
    if isinstance(value, float):
        assert EventTime("t").read(moments(Column(np.array([value]))))[0] == expected / 1000


@pytest.mark.parametrize("value", NO_TIMES)
def test_what_is_no_time_is_none_anywhere(value: object) -> None:
    assert milliseconds_of(value) is None
    with pytest.raises(RecordError, match="'t' holds no time"):
        time_of(value, "t")
    if isinstance(value, str):
        with pytest.raises(ConfigError, match="--from"):
            seconds_of(value, "--from")
    clock = EventTime("t")
    arrived, read = clock.read(moments(Column([17, value])))
    assert arrived.tolist() == [17.0, 17.0]
    assert np.isnan(read[1])
    assert clock.untimed == 1


def test_typed_columns_are_utc() -> None:
    times = np.array(["2013-06-01T12:00:00.250", "NaT"], dtype="datetime64[ns]")
    arrived, read = EventTime("t").read(moments(Column(times)))
    assert arrived.tolist() == [1_370_088_000.25] * 2
    assert read[0] == datetime(2013, 6, 1, 12, 0, 0, 250_000, tzinfo=UTC).timestamp()
    assert np.isnan(read[1])
