"""Clients of every source, killed again and again, also while their study is changed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.producers.killed_sources import SOURCES
from tests.producers.source_kills import campaign

pytestmark = [pytest.mark.kafka, pytest.mark.redis]
#: Each goes on at a position, as csv does: other lines, rows of files and of tables.
LIKE_OTHERS = {"jsonl", "arrow", "sqlite", "duckdb", "postgresql"}
#: One in a study, and one in its successor; `python -m tests.producers.source_kills` has more.
KILLS = 2


@pytest.mark.parametrize(
    "source",
    [pytest.param(s, marks=[pytest.mark.slow] if s in LIKE_OTHERS else []) for s in SOURCES],
)
@pytest.mark.takes("starts two workers, and a client again and again")
def test_killed_at_any_moment_no_record_is_lost_and_none_is_released_twice(
    source: str, tmp_path: Path, kafka: str, redis_url: str
) -> None:
    found = campaign(source, tmp_path / source, kafka, redis_url, KILLS, random.Random(6))
    assert found["faults"] == []
    assert found["kills"] == KILLS
