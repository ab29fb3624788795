"""Clients of sources that resume, killed again and again: each record counts once."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.stage import OPEN, Stage, study_text

pytestmark = [pytest.mark.kafka, pytest.mark.redis]
COUNT, KILLS = 1200, 4


def records() -> list[dict[str, Any]]:
    chance = random.Random(5)
    return [
        {
            "id": number,
            "heat": chance.uniform(0, 100),
            "load": chance.uniform(-1, 1),
            "failed": chance.choice(("yes", "no")),
        }
        for number in range(COUNT)
    ]


def folder_of(at: Path) -> str:
    (at / "day").mkdir()
    for number in range(3):
        part = records()[number * 400 : (number + 1) * 400]
        pq.write_table(pa.Table.from_pylist(part), at / "day" / f"{number}.parquet", 70)
    return f"{at}/day/"


def table_of(at: Path) -> str:
    with closing(sqlite3.connect(at / "a.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, heat REAL, load REAL, failed)")
        made = "INSERT INTO t VALUES (:id, :heat, :load, :failed)"
        database.executemany(made, records())
        database.commit()
    return f"sqlite://{at}/a.db?table=t&key=id"


@pytest.mark.parametrize("made", [folder_of, table_of])
@pytest.mark.takes("starts a worker, and a client again and again")
def test_killed_at_any_moment_no_record_is_lost_and_none_is_released_twice(
    made: Callable[[Path], str], tmp_path: Path, kafka: str, redis_url: str
) -> None:
    chance, spec = random.Random(6), made(tmp_path)
    with Stage(tmp_path / "s", kafka, redis_url, study_text(privacy=OPEN, records=10)) as stage:
        stage.worker()
        for _ in range(KILLS):
            stage.produce("c", spec, "--rate", "1500")
            time.sleep(chance.uniform(0.4, 1.6))
            stage.kill("c")
        stage.produce("c", spec)
        assert stage.code("c") == 0, stage.said("c")
        assert stage.final_estimate().records == COUNT
