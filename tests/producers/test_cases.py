"""Files that real users have: what a client makes of each, from its head to its last record.

Each case is made here. Where SOURCE_CASES names a folder, the files in it of these names are read
as well.
"""

from __future__ import annotations

import datetime
import gzip
import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.topics import TimeRules
from pipeline.api.sample import read_sample
from pipeline.errors import DataError, RecordError
from pipeline.methods import task_of
from pipeline.records.encoder import Encoder
from pipeline.records.values import misspelt, number_of
from pipeline.release.quality import worded
from pipeline.release.task import Task
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from producers.intake import EventTimes, encoded
from producers.source_check import Held, look_at_source, passed
from producers.source_registry import looks_of
from producers.sources import open_source
from producers.store import ClientStore
from tests.compliance.sources import drain

STUDY = """
[study]
name = "t1"
[data]
response = { name = "y", positive = "1", negative = "0" }
[data.features]
a = { min = 0, max = 10 }
b = { min = -1000, max = 1000 }
c = { kind = "category", levels = ["north", "south"] }
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 4.0
delta = 1e-6
[window]
records = 50
"""
TASK = task_of(parse_study(STUDY))
RECORDS = 120


class Found(NamedTuple):
    """What came of a source: its slots, its usable records, and why others are not."""

    slots: int
    used: int
    faults: Counter[str]


def rows(count: int = RECORDS) -> dict[str, list[Any]]:
    return {
        "a": [at % 10 + 0.5 for at in range(count)],
        "b": [123.5 * (-1) ** at for at in range(count)],
        "c": ["north" if at % 3 else "south" for at in range(count)],
        "y": [at % 2 for at in range(count)],
    }


def parquet(other: pa.Array | None = None, count: int = RECORDS, **columns: Any) -> Any:
    def made(path: Path) -> str:
        more = {} if other is None else {"t": other}
        pq.write_table(pa.table({**rows(count), **columns, **more}), path, row_group_size=1000)
        return str(path)

    return made


def far(kind: pa.DataType, value: int, count: int = RECORDS, first: int = 0) -> pa.Array:
    bits = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array([value if at >= first else 0 for at in range(count)], bits).view(kind)


def text(count: int = RECORDS, **columns: Callable[[int], str]) -> list[str]:
    """Return lines of CSV, the header first; a column is replaced or added by its name."""
    found = {name: [str(value) for value in values] for name, values in rows(count).items()}
    found |= {name: [value(at) for at in range(count)] for name, value in columns.items()}
    return [",".join(found), *map(",".join, zip(*found.values(), strict=True))]


def written(lines: list[str], end: str = "\n") -> Callable[[Path], str]:
    def made(path: Path) -> str:
        path.write_bytes((end.join(lines) + end).encode())
        return str(path)

    return made


def mismatch(path: Path) -> str:
    """Write a file whose row group says 130 rows, and whose pages have 120."""
    pq.write_table(pa.table(rows()), path, row_group_size=1000, compression="none")
    raw = path.read_bytes()
    # thrift: zigzag varints of 120 are F0 01, those of 130 are 84 02; only the footer changes
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    start, end = raw[:footer], raw[footer:]
    path.write_bytes(start + end.replace(b"\xf0\x01", b"\x84\x02"))
    return str(path)


def zipped(path: Path) -> str:
    path.write_bytes(gzip.compress("\n".join(text()).encode()))
    return str(path)


def table(path: Path) -> str:
    names = rows()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c, y, img BLOB)")
        database.executemany(
            "INSERT INTO t (a, b, c, y, img) VALUES (?, ?, ?, ?, x'ff00')",
            zip(*names.values(), strict=True),
        )
    database.close()
    return f"sqlite://{path}?table=t&key=id"


UTC_NS = pa.array([1_700_000_000_000_000_001 + at for at in range(RECORDS)])
CASES: dict[str, Callable[[Path], str]] = {
    "minimal_date.parquet": parquet(far(pa.date32(), 9, 4), 4),
    "decimal_dict_bool.parquet": parquet(
        a=pa.array([Decimal(at % 10) for at in range(RECORDS)], pa.decimal128(9, 2)),
        c=pa.array(rows()["c"]).dictionary_encode(),
        y=pa.array([at % 2 == 1 for at in range(RECORDS)]),
    ),
    "date_time.parquet": parquet(pa.array([datetime.date(2024, 1, 1)] * RECORDS)),
    "nanos_utc_time.parquet": parquet(UTC_NS.cast(pa.timestamp("ns", "UTC"))),
    "time64_other.parquet": parquet(UTC_NS.cast(pa.int64()).view(pa.time64("ns"))),
    "duration_other.parquet": parquet(far(pa.duration("ns"), 1)),
    "far_future_other_column.parquet": parquet(far(pa.timestamp("us"), 2**62)),
    "far_past_other_column.parquet": parquet(far(pa.timestamp("us"), -(2**62))),
    "date32_out_of_range_other.parquet": parquet(far(pa.date32(), 2**30)),
    "unknown_zone_other.parquet": parquet(far(pa.timestamp("us", "Mars/Olympus"), 1)),
    "invalid_utf8_other.parquet": parquet(pa.array([b"\xff"] * RECORDS).view(pa.string())),
    "until_10000.parquet": parquet(far(pa.timestamp("us"), 2**62, 2400, 2300), 2400),
    "rows_mismatch.parquet": mismatch,
    "blob.db": table,
    "stray_quotes.csv": written(
        text(y=lambda at: f'"{at % 2}' if at == 9 else f'{at % 2}"' if at == 109 else f"{at % 2}")
    ),
    "cr_only.csv": written(text(), "\r"),
    "cr_inside.csv": written(text(note=lambda at: "bad\rnote" if at % 4 else "ok")),
    "gz_named_csv.csv": zipped,
    "excel_trailing.csv": written([line + ",," for line in text()]),
    "thousands.csv": written(text(b=lambda at: f'"{1000 * (at % 3) + at:,}.5"')),
    "unicode_minus.csv": written(text(b=lambda at: f"{chr(8722) if at % 2 else ''}{at}.5")),
    "percent.csv": written(text(a=lambda at: f"{at % 10}%")),
}


def of_cases(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the cases of names and sources: made here, and in a folder that somebody names."""
    for name, make in CASES.items():
        yield name, make(folder / name)
    if given := os.environ.get("SOURCE_CASES"):
        paths = {path.name: path for path in Path(given).iterdir()}
        # none is left out, and of none it is unknown what must happen
        assert paths.keys() - {"README.md", "study.toml"} == CASES.keys()
        for name in CASES:
            path = paths[name]
            yield name, f"sqlite://{path}?table=t&key=id" if path.suffix == ".db" else str(path)


def admit(spec: str, task: Task = TASK) -> Held:
    """Have a client test a source before its first release."""
    encoder = Encoder(task.study)
    columns = encoder.columns
    looks_of(spec, follow=False, check=encoder.check_columns)
    source = open_source(spec, None, folder=Path(), columns=columns)
    with tempfile.TemporaryDirectory() as folder, ClientStore(Path(folder) / "s.db", "s") as store:
        store.open_stream(task, "csv:data.csv")
        try:
            found = passed(
                task, source, store.tests, name="x", stamp="", accept=False, times=None,
                stopped=lambda: False, say=lambda _: None, report=lambda _: None,
            )  # fmt: skip
        finally:
            source.close()
    assert found is not None
    return found


def read(spec: str, time: str | None = None) -> Found:
    """Read a source as a client does; DataError where it refuses it."""
    encoder, why, slots, used = Encoder(TASK.study), Counter[str](), 0, 0
    looks_of(spec, follow=False, check=encoder.check_columns)
    wanted = [*encoder.columns, *([time] if time else [])]
    source = open_source(spec, None, folder=Path(), columns=wanted)
    try:
        while not source.ended:
            found = source.read(1000, 0.1)
            times = EventTimes(TASK.study, time, None, TimeRules(False, None)) if time else None
            block = encoded(encoder, times, found)
            slots, used = slots + len(found), used + block.usable
            why += block.reasons.count()
    finally:
        source.close()
    del why[""]
    return Found(slots, used, why)


def looked_at(spec: str, task: Task = TASK) -> str:
    return look_at_source(task, Settings(), spec).said


def sampled(spec: str, task: Task = TASK) -> int:
    """Read a source as `study check --sample` does; DataError also where a client would refuse."""
    found = read_sample(task, spec)
    if found.refused:
        raise DataError(f"{found.refused}: {worded(found.faults)}")
    return len(found.values)


#: What must happen: the number of records that are all used, or what the refusal says.
MUST: dict[str, int | str] = {
    **dict.fromkeys(CASES, RECORDS),
    "minimal_date.parquet": 4,
    "until_10000.parquet": 2400,
    "stray_quotes.csv": 118,
    "cr_only.csv": "line ends of CR alone",
    "gz_named_csv.csv": "it is gzip",
    "thousands.csv": "a number with thousands separators",
    "unicode_minus.csv": "a number with a minus that is not the ASCII one",
    "percent.csv": "a number with a percent sign",
    "rows_mismatch.parquet": "has 130 records, and that has 120",
}


def test_every_case_is_read_or_refused_by_its_cause(tmp_path: Path) -> None:
    for name, spec in of_cases(tmp_path):
        must = MUST[name]
        if isinstance(must, int):
            found = read(spec)
            assert (found.slots, found.used, found.faults.total()) == (
                120 if must == 118 else must, must, 2 if must == 118 else 0
            ), name  # fmt: skip
            assert len(admit(spec).slots) == min(must, 50)
            assert looked_at(spec).startswith(f"{min(must, 200)} of its first"), name
            assert sampled(spec) == must, name
        else:
            for use in (admit, looked_at, sampled):
                with pytest.raises(DataError, match=re.escape(must)):
                    use(spec)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        *((text, "thousands separators") for text in ("1,234", "-1.234.567", "1 234,5", "1'234")),
        *((text, "a decimal comma") for text in ("3,5", ",5", "-12,34")),
        *((text, "a minus that") for text in ("\u22125", "\u20131.5", "\u2212 1,000")),
        *((text, "a minus behind") for text in ("5-", "(1.5)", "(1,000.0)")),
        *((text, "a percent sign") for text in ("5%", "-5.5 %")),
        *((text, "a sign of currency") for text in ("$5", "-$1,000", "5 \u20ac")),
    ],
)
def test_a_number_in_another_form_is_refused_by_its_form(text: str, form: str) -> None:
    with pytest.raises(RecordError, match=f"a number with {form}") as caught:
        number_of(f" {text}", "a")
    assert str(caught.value) in misspelt("a")


@pytest.mark.parametrize("text", ["", "one", "1-2", "2024-01-01", "1,,2", "%", "10:30", "0x1f"])
def test_a_text_that_is_no_number_is_none_of_these_forms(text: str) -> None:
    with pytest.raises(RecordError) as caught:
        number_of(text, "a")
    assert str(caught.value) not in misspelt("a")


LEVELS = STUDY.replace("loss =", 'kind = "ldp-sgd"\nloss =') + "[stream]\npartitions = 1\n"
LEVELS = LEVELS.replace(
    "[privacy]",
    '[privacy]\nneighbours = "replace-one"\n'
    'personal = { column = "consent", levels = { strict = 0.5, normal = 4.0 } }',
)


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(("study", "column"), [(STUDY, "y"), (LEVELS, "consent"), (LEVELS, "y")])
def test_no_command_takes_a_source_that_a_client_refuses_for_its_columns(
    study: str, column: str, form: str, tmp_path: Path
) -> None:
    task, held = task_of(parse_study(study)), rows() | {"consent": ["strict"] * RECORDS}
    del held[column]
    path = tmp_path / f"a.{form}"
    if form == "csv":
        lines = zip(*held.values(), strict=True)
        path.write_text("\n".join([",".join(held), *(",".join(map(str, one)) for one in lines)]))
    else:
        pq.write_table(pa.table(held), path)
    for use in (admit, looked_at, sampled):
        with pytest.raises(DataError, match=f"the source has no column '{column}'"):
            use(str(path), task)


@pytest.mark.parametrize("bad", [range(50), range(50, 120)], ids=["first", "later"])
def test_only_the_records_of_the_clients_own_test_refuse_a_source(
    bad: range, tmp_path: Path
) -> None:
    lines = text(y=lambda at: "Yes" if at in bad else str(at % 2))
    spec = written(lines)(tmp_path / "a.csv")
    for use in (admit, looked_at, sampled):
        if bad[0]:
            use(spec)
        else:
            with pytest.raises(DataError, match="unknown class"):
                use(spec)


def test_a_time_is_read_from_its_column_or_refused_with_its_type(tmp_path: Path) -> None:
    for name, spec in of_cases(tmp_path):
        if name == "nanos_utc_time.parquet":
            assert read(spec, "t").used == RECORDS
        elif name == "date_time.parquet":
            assert next(iter(read(spec, "t").faults)).startswith(
                "column 't' holds no time but type date: allowed are RFC 3339"
            )


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (far(pa.date32(), 9), "date"),
        (far(pa.timestamp("us"), 2**62), "timestamp[us]"),
        (pa.array([b"1"] * RECORDS), "bytes"),
        (far(pa.duration("us"), 9), "timedelta"),
    ],
)
@pytest.mark.parametrize("name", ["a", "c", "y"])
def test_a_value_that_cannot_be_used_is_set_aside_with_its_type(
    name: str, column: pa.Array, kind: str, tmp_path: Path
) -> None:
    found = read(parquet(**{name: column})(tmp_path / "x.parquet"))
    assert found.faults == {
        f"column {name!r}: a value of type {kind}; allowed are numbers, texts and truth values": 120
    }


def test_one_open_quote_takes_no_records_along(tmp_path: Path) -> None:
    notes = {500: '"broken', 2500: '12"'}
    lines = text(3000, note=lambda at: notes.get(at, "ok"))
    spec, said = written(lines)(tmp_path / "a.csv"), list[str]()
    source = open_source(spec, None, folder=Path(), say=said.append)
    slots = drain(source, 5000)
    assert [slot.line for slot in slots if slot.record is None] == [502]
    assert len(slots) == 3000
    assert "opens a field in line 502 closes in line 2502" in said[0]


def test_lines_that_end_in_cr_behind_a_good_header_are_told_by_their_cause(tmp_path: Path) -> None:
    head, *lines = text()
    spec = written([head, "\r".join(lines)])(tmp_path / "a.csv")
    source = open_source(spec, None, folder=Path())
    assert "line ends of CR alone" in source.read(9, 1.0)[0].kind
    source.close()


def test_json_lines_that_are_packed_are_told_by_their_cause(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(b'{"a": 1}\n'))
    source = open_source(str(path), None, folder=Path())
    with pytest.raises(DataError, match="it is gzip"):
        source.read(9, 1.0)
    source.close()
