"""A class and the values that stand for it: the same for a record, a label and a column."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.errors import DataError, RecordError
from pipeline.records.batch import Column, Reasons
from pipeline.records.features import ClassResponse, Features
from pipeline.records.values import number_of
from pipeline.study.data import Feature

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
