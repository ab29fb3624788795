"""Clients of every source, killed again and again, also while their study is changed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.producers.killed_sources import SOURCES
from tests.producers.source_kills import campaign

pytestmark = [pytest.mark.kafka, pytest.mark.redis]
#: A file, a topic and records that are pushed: all others are like one of them.
QUICK = {"csv", "kafka", "http"}
#: One in a study, and one in the one that follows it; `source_kills` as a program has more.
KILLS = 2


@pytest.mark.parametrize(
    "source",
    [pytest.param(s, marks=[] if s in QUICK else [pytest.mark.slow]) for s in SOURCES],
)
@pytest.mark.takes("starts two workers, and a client again and again")
def test_killed_at_any_moment_no_record_is_lost_and_none_is_released_twice(
    source: str, tmp_path: Path, kafka: str, redis_url: str
) -> None:
    found = campaign(source, tmp_path / source, kafka, redis_url, KILLS, random.Random(6))
    assert found["faults"] == []
    assert found["kills"] == KILLS
