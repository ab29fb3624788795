"""Where a client stands in its source, in the form that databases of clients hold: it stays."""

from __future__ import annotations

import io
import re
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from producers.sources import open_source
from tests.compliance.sources import some

ROWS = [(1, 2), (3, 4), (5, 6)]
TEXT = "x,y\n" + "".join(f"{x},{y}\n" for x, y in ROWS)
#: Position behind two records, with `MARK` for each digest of what was read.
POSITIONS = {
    "a.csv": '{"kind":"csv","at":12,"line":4,"mark":MARK}',
    "a.jsonl": '{"kind":"jsonl","at":28,"line":3,"mark":MARK}',
    "-": '{"kind":"stdin:csv","at":8,"line":4,"mark":""}',
    "a.parquet": '{"kind":"arrow","name":"arrow:a.parquet","file":"a.parquet","before":0,"row":2,'
    '"rows":3,"mark":MARK,"records":2,"read":[]}',
    "sqlite://{}/a.db?table=t&key=id": '{"kind":"sql","name":"sql:t","key":2,"records":2,'
    '"behind":2,"last":MARK,"mark":MARK,"columns":["id","x","y"],"first":""}',
    "shuttle:1/4": '{"kind":"shuttle:1/4","at":2,"line":2,"mark":""}',
    "flights:HA": '{"kind":"flights:HA","at":2,"line":2,"mark":""}',
}


@pytest.mark.parametrize("spec", POSITIONS)
def test_a_position_has_the_form_in_which_it_was_recorded(spec: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x":{x},"y":{y}}}\n' for x, y in ROWS))
    pq.write_table(pa.table({"x": [1, 3, 5], "y": [2, 4, 6]}), tmp_path / "a.parquet")
    with sqlite3.connect(tmp_path / "a.db") as base:
        base.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x, y)")
        base.executemany("INSERT INTO t (x, y) VALUES (?, ?)", ROWS)
    base.close()
    how: dict[str, Any] = {"form": "csv", "stream": io.BytesIO(TEXT.encode())}
    where = str(tmp_path / spec) if spec.startswith("a.") else spec.format(tmp_path)
    source = open_source(where, None, folder=tmp_path / "kept", **(how if spec == "-" else {}))
    position = source.anchored(some(source, 2)[-1].position)
    source.close()
    assert re.sub(r'"[0-9a-f]{32}"', "MARK", position.decode()) == POSITIONS[spec]
