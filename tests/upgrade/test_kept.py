"""This version goes on with what earlier ones left: their log, their state, their clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from producers.report import ledger
from producers.sources import open_source
from tests.stage import Stage, lent
from tests.upgrade.kept import SOURCE, load, restore

#: The version before this one: its state must be rebuilt, its client's database is refused.
OLDER = "state-10"
#: What the file of a study must say that began before windows grew and noise remembered, so that
#: its releases mean what they meant: docs/upgrade.md.
SAYS = {
    'loss = "logistic"\n': "ridge = 0.0022\n",
    "delta = 1e-5\n": "noise_memory = 0\n"
    "split = { gradient = 0.665, curvature = 0.285, counts = 0.05 }\n",
    "records = 500\n": "growth = 0\n",
}


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, load("state-13").study))


@pytest.fixture
def older(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    text = load(OLDER).study
    for line, more in SAYS.items():
        text = text.replace(line, line + more)
    yield from lent(Stage(tmp_path, kafka, redis_url, text))


def test_what_1_0_left_goes_on(stage: Stage) -> None:
    assert load("1.0").study == load("state-13").study
    goes_on(stage, "1.0")


def test_a_state_with_macs_over_the_payload_alone_goes_on_without_its_client(stage: Stage) -> None:
    """Before 1.0 the client's database had another schema."""
    restore(load("state-13"), stage)
    stage.worker()
    estimate = stage.final_estimate()
    assert (sum(stage.watermarks()), estimate.clients) == (5, 1)
    assert stage.verified()
    done = stage.run("produce", stage.study, "--client", "north", "--source", SOURCE)
    assert done.returncode == 10, done.stderr
    assert "--export FILE" in done.stderr


def test_the_log_of_the_version_before_goes_on_and_its_database_is_refused(older: Stage) -> None:
    restore(load(OLDER), older)
    rebuild(older)
    older.worker()
    estimate = older.final_estimate()
    assert (sum(older.watermarks()), estimate.clients) == (5, 1)
    assert older.verified()
    done = older.run("produce", older.study, "--client", "north", "--source", SOURCE)
    assert done.returncode == 10, done.stderr
    assert "--export FILE" in done.stderr
    assert len(older.releases()) == 5
    assert older.query("north", "SELECT next_seq FROM streams") == [(4,)]


def test_a_file_that_does_not_say_how_it_was_before_is_refused_by_its_revision(
    stage: Stage,
) -> None:
    """Else sums of windows that grow would enter those of windows of one size."""
    kept = load(OLDER)
    restore(kept, stage)
    stage.study.write_text(kept.study)
    done = stage.run("state", "rebuild", stage.study, "--yes")
    assert done.returncode == 10, done.stderr
    assert "revision c1b79535914022ea" in done.stderr
    assert len(stage.releases()) == 5


def goes_on(stage: Stage, version: str) -> None:
    """Let a worker and a client of this version take over what a version left."""
    restore(load(version), stage)
    before = stage.watermarks()
    assert sum(before) == 5
    stage.worker()
    # its claims are on another Kafka's ledger topic
    stage.produced("north", SOURCE, "--skip-lost")
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
    stage.ran("state", "rebuild", stage.study, "--yes")
