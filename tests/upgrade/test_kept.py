"""This version goes on with what earlier ones left: their log, their state, their clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.report import ledger
from producers.sources import open_source
from tests.stage import Stage, lent
from tests.upgrade.kept import SOURCE, load, restore

#: Each recorded version, and what becomes of its state: it "opens", or one has to "rebuild" it.
#: Whoever changes a schema records a new version and says here what becomes of the others.
VERSIONS = {"state-8": "rebuild", "state-9": "rebuild", "state-10": "opens"}


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, load("state-10").study))


@pytest.mark.parametrize(
    # states of two versions ago and of the one before are rebuilt alike
    "version",
    [pytest.param(v, marks=[pytest.mark.slow] * (v == "state-8")) for v in VERSIONS],
)
def test_a_study_of_an_earlier_version_goes_on(stage: Stage, version: str) -> None:
    kept = load(version)
    assert kept.study == stage.study.read_text()
    restore(kept, stage)
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


def rebuild(stage: Stage) -> None:
    """Do what the message of a state of another schema says."""
    done = stage.run("state", "show", stage.study)
    assert done.returncode == 40
    assert "run `veilstream state rebuild`" in done.stderr
    done = stage.run("state", "rebuild", stage.study, "--yes")
    assert done.returncode == 0, done.stderr
