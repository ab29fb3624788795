"""Records that are encoded together are what they are one by one: rows, faults and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.errors import RecordError
from pipeline.records.batch import Column, Columns
from pipeline.records.encoder import Block, Encoder, Row, stack
from pipeline.records.values import Codes
from pipeline.study_file.load import parse_study
from producers.sources.csv_file import Table
from tests.builders import study_text

FEATURES = (
    "amount = { min = 0, max = 1e6, transform = 'asinh', unit = 100, typical = 2000 }",
    "heat = { min = -40, max = 120 }",
    "wait = { min = 0, max = 50, transform = 'sqrt' }",
    "age = { min = 18, max = 90, transform = 'log1p', unit = 10 }",
    "region = { kind = 'category', levels = ['north', 'south', 'west'] }",
    "code = { kind = 'category', levels = ['1', '2', 'true'] }",
)
PAIRS = ("amount:heat", "heat:region")


STUDIES = {
    (loss, scaling): parse_study(
        study_text(
            declared=FEATURES, interactions=PAIRS, scaling=scaling, loss=loss, private=False,
            least=-5.0, most=9.0,
        )
    )
    for loss in ("logistic", "linear", "poisson")
    for scaling in ("unit", "none")
}  # fmt: skip
ODD = (
    "", " ", "x", "1_000", "1_0", "nan", "inf", "-inf", "1e400", None, math.nan, math.inf, 10**400,
     -(10**400), True, False, "true", " True ", [], [1.0], {}, {"a": 1}, b"1.5", bytearray(b"2"),
     Decimal("1.5"), Decimal("NaN"), Decimal("sNaN"), Fraction(1, 3), date(2026, 1, 1), -0.0,
     5e-324, 1e308, np.float32(0.1), np.int64(7), np.bool_(True), np.str_("3"), np.array([1.0]),
     "\u0663", " 4 ", "\u00a05", object(),
)  # fmt: skip
NUMBERS = st.one_of(st.floats(-50, 150), st.integers(-5, 100), st.floats(0, 9).map(repr))
LEVELS = st.sampled_from(["north", "south", "west", " west "])
CODES = st.sampled_from(["1", "2", 1, 2.0, "2.0", True, "true", "TRUE", 1.0])
LABELS = st.sampled_from(["1", "0", 1, 0, 1.0, True, 7, "3", 12, -0.0])
GOOD = {**dict.fromkeys(("amount", "heat", "wait", "age"), NUMBERS), "region": LEVELS,
        "code": CODES, "y": LABELS}  # fmt: skip
#: Mostly good values; what is left out is missing from the record.
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(0, 11).flatmap(lambda d, v=values: st.sampled_from(ODD) if d == 0 else v)
        for name, values in GOOD.items()
    },
).flatmap(
    lambda found: st.booleans().flatmap(
        lambda whole: (
            st.fixed_dictionaries(
                {n: st.just(found[n]) if n in found else v for n, v in GOOD.items()}
            )
            if whole
            else st.just(found)
        )
    )
)


ORDINARY = {
    "amount": 1.5, "heat": "2", "wait": 3, "age": 40.0, "region": "west", "code": 1, "y": 1,
}  # fmt: skip


def one_by_one(
    encoder: Encoder, records: list[Mapping[str, object]]
) -> tuple[list[Row | None], dict[int, str]]:
    rows: list[Row | None] = []
    faults = {}
    for at, record in enumerate(records):
        try:
            rows.append(encoder.encode(record))
        except RecordError as fault:
            rows.append(None)
            faults[at] = str(fault)
    return rows, faults


@example(records=[], cuts=[], kind=("logistic", "unit"))
@example(records=[{}], cuts=[], kind=("linear", "unit"))
@given(
    records=st.lists(RECORDS, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    kind=st.sampled_from(list(STUDIES)),
)
def test_records_together_are_encoded_bit_by_bit_as_one_by_one(
    records: list[Mapping[str, object]], cuts: list[int], kind: tuple[str, str]
) -> None:
    check(records, cuts, kind)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] * (n not in (0, 3)))
             for n, k in enumerate(STUDIES)],
)  # fmt: skip
def test_whatever_stands_in_a_column_moves_no_record_beside_it(kind: tuple[str, str]) -> None:
    for name in ORDINARY:
        for odd in ODD:
            check([ORDINARY, {**ORDINARY, name: odd}, ORDINARY], [], kind)


#: Columns of one type, as a file with types has them, and what may be missing in them.
TYPED = {
    **dict.fromkeys(("amount", "heat", "wait", "age"), (
        np.array([0.5, 3e6, math.nan, -math.inf, 41.0, -0.0]), np.array([2, 10**15, -7, 0, 50, 40]),
        np.array([True, False, True, True, False, True]), np.array([7, 0, 1, 2, 3, 200], "uint8"),
        np.array([0.1, 2.5, 1e5, math.nan, 3.0, 4.0], "float32"),
    )),
    "code": (
        np.array([1, 2, 3, 0, 1, 2**60 + 1]), np.array([1.0, 2.0, 1.5, math.nan, math.inf, 2.0]),
        np.array([True, False, True, True, False, True]),
    ),
    "y": (
        np.array([1, 0, 2, -1, 1, 0]), np.array([1.0, 0.0, 2.5, math.nan, -math.inf, -0.0]),
        np.array([True, False, True, True, False, True]),
    ),
}  # fmt: skip
GAPS = st.lists(st.booleans(), min_size=6, max_size=6)


@given(
    chosen=st.fixed_dictionaries({name: st.sampled_from(range(3)) for name in TYPED}),
    gaps=st.fixed_dictionaries(dict.fromkeys(TYPED, GAPS)),
    part=st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted),
    kind=st.sampled_from(list(STUDIES)),
)
def test_columns_of_one_type_are_encoded_bit_by_bit_as_their_records(
    chosen: dict[str, int], gaps: dict[str, list[bool]], part: list[int], kind: tuple[str, str]
) -> None:
    columns = {
        name: Column(TYPED[name][chosen[name]], np.array(gaps[name])) for name in TYPED
    } | {"region": Column(["north", None, "west", "x", "south", " west "])}  # fmt: skip
    batch = Columns(columns, 6, {4: "no record"}).part(slice(*part))
    records = [batch.record(at) for at in range(len(batch))]
    encoder, other = Encoder(STUDIES[kind]), Encoder(STUDIES[kind])
    rows, said = one_by_one(other, [record or {} for record in records])
    block, size = encoder.block(batch), len(STUDIES[kind].coefficient_names) - 1
    for at in batch.lost:
        rows[at], said[at] = None, "no record"
    for found, wanted in zip(block.arrays, stack(rows, size), strict=True):
        assert np.array(found).tobytes() == np.array(wanted).tobytes()
    assert faults_of(block) == said
    assert encoder.clipped == other.clipped


@given(
    records=st.lists(
        st.fixed_dictionaries({
            **dict.fromkeys(
                ("amount", "heat", "wait", "age"),
                st.sampled_from(
                    ["1", "-2.5", "7e1", "1_0", "_1", "", " ", " 4 ", "x", "1,000", "nan", "-inf"]
                ),
            ),
            "region": st.sampled_from(["west", " north ", "a_b", ""]),
            "code": st.sampled_from(["1", "2.0", "true", "1_0", "?"]),
            "y": st.sampled_from(["1", "0", "1_0", "5"]),
        }),
        max_size=8,
    ),
    part=st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted),
    kind=st.sampled_from(list(STUDIES)),
)  # fmt: skip
def test_lines_of_csv_are_encoded_as_their_records(
    records: list[dict[str, str]], part: list[int], kind: tuple[str, str]
) -> None:
    lines = [",".join(record[name] for name in GOOD).encode() for record in records]
    # a quoted comma: the record was read by itself, and its line is blank
    apart = {at: found for at, found in enumerate(records) if "1,000" in found.values()}
    for at in apart:
        lines[at] = b""
    batch = Table.of_lines(list(GOOD), lines, {}, apart).part(slice(*part))
    records = records[slice(*part)]
    assert [batch.record(at) for at in range(len(batch))] == records
    one, other = (Encoder(STUDIES[kind]).block(each) for each in (batch, records))
    for found, wanted in zip(one.arrays, other.arrays, strict=True):
        assert np.array(found).tobytes() == np.array(wanted).tobytes()
    assert faults_of(one) == faults_of(other)


def faults_of(block: Block) -> dict[int, str]:
    """Return what is said of the slots that are empty."""
    codes = block.reasons.codes.tolist()
    return {at: block.reasons.words[code] for at, code in enumerate(codes) if code}


def check(records: list[Mapping[str, object]], cuts: list[int], kind: tuple[str, str]) -> None:
    """Encode records in blocks that end at the cuts, and one by one."""
    one, many = Encoder(STUDIES[kind]), Encoder(STUDIES[kind])
    rows, said = one_by_one(one, records)
    ends = sorted({0, len(records), *(min(cut, len(records)) for cut in cuts)})
    usable = clipped = 0
    for start, end in pairwise(ends):
        block = many.block(records[start:end])
        expected = stack(rows[start:end], len(STUDIES[kind].coefficient_names) - 1)
        for found, wanted in zip(block.arrays, expected, strict=True):
            assert found is not None
            assert wanted is not None
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            assert np.array(found).tobytes() == np.array(wanted).tobytes()
        faults = {start + at: fault for at, fault in faults_of(block).items()}
        assert faults == {at: text for at, text in said.items() if start <= at < end}
        usable, clipped = usable + block.usable, clipped + block.clipped
    assert usable == sum(row is not None for row in rows)
    assert clipped == sum(row.clipped for row in rows if row is not None)
    assert many.clipped == one.clipped


def test_of_several_faults_the_first_column_is_named_whatever_their_kinds() -> None:
    encoder = Encoder(STUDIES["logistic", "unit"])
    records = [
        {**ORDINARY, "heat": math.inf, "age": "x", "y": 5},
        {**ORDINARY, "heat": "x", "age": math.inf},
        {**ORDINARY, "heat": math.nan, "wait": math.nan, "region": "atlantis"},
        {**ORDINARY, "region": "atlantis", "y": 5},
        {**ORDINARY, "y": 5},
    ]
    found = faults_of(encoder.block(records))
    assert found == one_by_one(encoder, records)[1]
    named = [found[at].split("'")[1] for at in range(5)]
    assert named == ["heat", "heat", "heat", "region", "y"]


@pytest.mark.parametrize("lost", [(), (0,), (1, 2)])
def test_a_slot_without_a_record_stays_empty_and_counts_nothing(lost: tuple[int, ...]) -> None:
    encoder = Encoder(STUDIES["logistic", "unit"])
    far = {**ORDINARY, "amount": 1e9}
    block = encoder.block([far] * 3, dict.fromkeys(lost, "there is none"))
    assert np.flatnonzero(np.isnan(block.arrays.responses)).tolist() == list(lost)
    assert not block.arrays.features[list(lost)].any()
    assert (block.usable, block.clipped) == (3 - len(lost), 3 - len(lost))
    assert encoder.clipped == {"amount": 3 - len(lost)}


LARGEST = 2**53


@pytest.mark.parametrize(
    "texts",
    [
        ["nan", "2", "x"], ["inf", "-inf"], ["1", "0"], ["true", "1"], ["false", "7"], ["a", "b"],
        [str(LARGEST + 1), "1"], [str(LARGEST), str(-(2**63))], [str(2**64 - 1), "1e3"],
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "column",
    [
        np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 2.0, 1000.0, 2.0**53, 2.0**64]),
        np.array([math.nan, 1.0, 0.1], dtype=np.float32),
        np.array([True, False]),
        np.array([0, 1, 2, 7, 1000, -1, LARGEST, LARGEST + 1, LARGEST + 2, -(2**63)]),
        np.array([0, 1, LARGEST, LARGEST + 1, 2**64 - 1, 2**64 - 2], dtype=np.uint64),
    ],
    ids=lambda column: str(column.dtype),
)
def test_numbers_stand_for_the_texts_that_they_stand_for_one_by_one(
    texts: list[str], column: np.ndarray
) -> None:
    codes = Codes("c", "level", {text: float(at) for at, text in enumerate(texts)})
    expected = []
    for value in column.tolist():
        try:
            expected.append(codes.code(value))
        except RecordError:
            expected.append(math.nan)
    np.testing.assert_array_equal(codes.typed(column), expected)
