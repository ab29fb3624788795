"""This version goes on with what earlier ones left: their log, their state, their clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pipeline.reducer import SCHEMA
from producers.report import ledger
from producers.sources import open_source
from tests.stage import Stage
from tests.upgrade.kept import SOURCE, load, restore

#: Each recorded version, and what becomes of its state: it "opens", or one has to "rebuild" it.
#: Whoever changes a schema records a new version and says here what becomes of the others.
VERSIONS = {"0.1.0": "rebuild"}


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, load("0.1.0").study)
    try:
        yield made
    finally:
        made.remove()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_study_of_an_earlier_version_goes_on(stage: Stage, version: str) -> None:
    restore(load(version), stage)
    if VERSIONS[version] == "rebuild":
        rebuild(stage)
    before = stage.watermarks()
    assert sum(before) == 5
    stage.worker()
    stage.produce("north", SOURCE)
    assert stage.code("north") == 0, stage.said("north")
    estimate = stage.final_estimate()
    slots = len(open_source(SOURCE, None, folder=stage.folder).read(10**6, 1.0))
    assert stage.query("north", "SELECT records + rejected FROM streams") == [(slots,)]
    assert (estimate.records, estimate.clients) == (slots, 1)
    assert stage.verified()
    [source] = ledger(stage.database("north")).values()
    assert 1.99 < source["spent"]["epsilon"] <= 2.0
    assert stage.dead_letters() == []


def test_a_state_of_another_schema_is_refused_until_it_is_made_anew(stage: Stage) -> None:
    kept = load("0.1.0")
    stored = {key: held for key, held in kept.redis.items() if key.endswith(":state")}
    restore(kept, stage)
    for key, held in stored.items():
        head = bytes(dict(held)[b"head"])
        name = msgspec.msgpack.encode("schema")
        assert head.count(name) == 1
        place = head.index(name) + len(name)
        assert (head[place] == SCHEMA) == (VERSIONS["0.1.0"] == "opens")
        other = head[:place] + bytes([SCHEMA - 1]) + head[place + 1 :]
        stage.redis.hset(key, "head", other)
    rebuild(stage)
    if VERSIONS["0.1.0"] == "opens":
        assert {key: stage.redis.hgetall(key) for key in stored} == stored


def rebuild(stage: Stage) -> None:
    """Do what the message of a state of another schema says."""
    done = stage.run("state", "show", stage.study)
    assert done.returncode == 40
    assert "run `veilstream state rebuild`" in done.stderr
    done = stage.run("state", "rebuild", stage.study, "--yes")
    assert done.returncode == 0, done.stderr
