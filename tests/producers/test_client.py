"""The client's loop: when it releases, when it waits, what a bad record does, what never leaves."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv, parquet

from pipeline.messages.model import write_model
from pipeline.messages.release import Release, read
from pipeline.methods import task_of
from pipeline.release.model import VERSION_LIMIT, Model, round_model
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.database import vault_path
from tests.stage import HEADER, OPEN, Stage, lines, send, study_text, write_csv

Build = Callable[..., Stage]


@pytest.fixture
def stages(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[list[Stage]]:
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.remove()


@pytest.fixture
def build(stages: list[Stage], tmp_path: Path, kafka: str, redis_url: str) -> Build:
    def make(**study: object) -> Stage:
        text = study_text(**study)  # type: ignore[arg-type]
        stages.append(Stage(tmp_path / "stage", kafka, redis_url, text))
        stages[-1].ensure_topics()
        return stages[-1]

    return make


def decoded(stage: Stage) -> list[Release]:
    return [read(stage.task, record.value) for record in stage.releases()]


def publish(stage: Stage, version: int, *, task: Task | None = None) -> None:
    task = task or stage.task
    model = round_model(version, np.full(task.size, 0.25), (1.0, 1.0))
    # it has seen all that there is
    model = dataclasses.replace(model, offsets=tuple(stage.ends()))
    value = write_model(task, model, "2026-01-01T00:00:00Z")
    key = stage.task.study.name.encode()
    send(stage.settings.kafka, stage.topics.models.name, [{"key": key, "value": value}])


def test_a_client_waits_for_a_newer_model_after_its_lead(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 2")
    client = stage.produce("site", write_csv(stage.folder / "data.csv", 100))
    stage.until(lambda: len(decoded(stage)) == 2, "two releases at the start")
    time.sleep(1.0)
    assert [r.header.version for r in decoded(stage)] == [0, 0]
    publish(stage, 1)
    stage.until(lambda: len(decoded(stage)) == 4, "two releases at model 1")
    publish(stage, 7)
    stage.ended("site")
    assert client.poll() == 0
    assert [r.header.version for r in decoded(stage)] == [0, 0, 1, 1, 7]
    later = [r for r in decoded(stage) if r.header.version]
    assert {tuple(r.point.tolist()) for r in later} == {(1024,) * 3}


def test_models_that_are_not_of_this_study_are_ignored(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 0")
    name = stage.task.study.name
    publish(stage, 9, task=task_of(parse_study(study_text(name, records=21))))
    far = Model(8, np.full(stage.task.size, 2**24 + 1, dtype=np.int64), (1024, 1024))
    off = write_model(stage.task, Model(7, np.zeros(3, np.int64), (1024, 1024)), "t")
    bad: list[bytes | None] = [
        None,
        b"no json",
        b"\xff\xfe",
        write_model(stage.task, far, "t"),
        off.replace(b'"value":0.0', b'"value":0.1'),
        off.replace(b'"value":0.0', b'"value":1e400'),
        off.replace(b'"heat"', b'"heart"'),
        off.replace(b'"version":7', b'"version":0'),
    ]
    key = name.encode()
    topic = stage.topics.models.name
    send(stage.settings.kafka, topic, [{"key": key, "value": value} for value in bad])
    publish(stage, 3)
    stage.produced("site", write_csv(stage.folder / "data.csv", 20))
    assert [r.header.version for r in decoded(stage)] == [3]


@pytest.mark.slow
def test_forged_versions_neither_hold_clients_nor_workers(build: Build) -> None:
    """One beyond what releases can say made every later release unreadable, and spent for it."""
    stage = build(stream="max_in_flight_windows = 0")
    for version in (2**40, VERSION_LIMIT, 2**30, 3, 2**52, 2**29):
        publish(stage, version)
    stage.produced("site", write_csv(stage.folder / "data.csv", 60))
    assert [r.header.version for r in decoded(stage)] == [3, 3, 3]
    assert stage.said("site").count("somebody else writes to the topic") == 1
    stage.worker()
    stage.caught_up()
    held = stage.until(stage.store.newest_model, "the worker publishes")
    assert 3 <= held[0] < 10
    assert stage.dead_letters() == []
    assert stage.final_estimate().releases == 3


def test_an_open_window_is_closed_after_its_time_with_empty_slots(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 0", window="seconds = 1.0", privacy=OPEN)
    source = write_csv(stage.folder / "data.csv", 25)
    stage.produce("site", source, "--follow")
    stage.until(lambda: len(decoded(stage)) == 2, "the full window and the short one")
    assert [_records(r) for r in decoded(stage)] == [20, 5]
    with source.open("a") as file:
        file.write("".join(lines(3, 9)))
    stage.until(lambda: len(decoded(stage)) == 3, "the next short window")
    assert _records(decoded(stage)[-1]) == 3
    assert stage.stop("site") == 0
    assert stage.query("site", "SELECT next_seq, records FROM streams") == [(3, 28)]


@pytest.mark.slow
def test_what_was_read_before_a_file_that_cannot_be_is_released(build: Build) -> None:
    """Also where both are met in one turn, behind the tested slots and a group of windows."""
    stage = build(stream="max_in_flight_windows = 0", privacy=OPEN)
    group, part = 8, 4000
    count = 20 + 20 * group + part
    rows = csv.read_csv(write_csv(stage.folder / "data.csv", count))
    folder = stage.folder / "history"
    folder.mkdir()
    parquet.write_table(rows, folder / "a.parquet")
    (folder / "b.parquet").write_bytes(b"no file of rows")
    smaller = f"from producers import client\nclient.GROUP, client.PART = {group}, {part}"
    stage.produce("site", f"{folder}/", before=smaller)
    assert stage.code("site") == 20, stage.said("site")
    assert "b.parquet" in stage.said("site")
    whole = count // 20
    assert stage.query("site", "SELECT next_seq, records FROM streams") == [(whole, 20 * whole)]


def test_a_private_short_window_does_not_tell_how_many_records_it_holds(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 0", window="seconds = 0.5")
    stage.produce("site", write_csv(stage.folder / "data.csv", 21), "--follow")
    stage.until(lambda: len(decoded(stage)) == 2, "a full window and one with a single record")
    full, short = decoded(stage)
    assert full.header == dataclasses.replace(short.header, seq=0, held=0)
    assert short.header.records == 20
    assert [len(r.value) for r in stage.releases()] == [len(stage.releases()[0].value)] * 2


def test_a_stop_leaves_the_open_window_to_the_next_start(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 0")
    source = write_csv(stage.folder / "data.csv", 70)
    stage.produce("site", source, "--follow")
    stage.until(lambda: len(decoded(stage)) == 3, "the full windows")
    assert stage.stop("site") == 0, stage.said("site")
    assert len(decoded(stage)) == 3
    stage.produced("site", source)
    assert stage.query("site", "SELECT next_seq, records FROM streams") == [(4, 70)]
    stage.produced("site", source)
    assert len(decoded(stage)) == 4


def test_bad_records_keep_their_slots_and_are_counted_by_reason(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 0", privacy=OPEN, records=15)
    good = lines(6, 4)
    bad = [
        "1,2\n",  # a field too few
        "1,2,yes,4\n",  # one too many
        "warm,0.5,yes\n",  # text in a number
        "NaN,0.5,yes\n",
        "inf,0.5,yes\n",
        "1,-Infinity,no\n",
        "1e999,0.5,yes\n",
        ",0.5,yes\n",  # an empty field
        "1,0.5,maybe\n",  # a class that the study does not know
    ]
    source = stage.folder / "data.csv"
    source.write_text(HEADER + "".join(good[:3] + bad + good[3:]) + "".join(lines(15, 5)))
    stage.produced("site", source)
    first, second = decoded(stage)
    assert (_records(first), _records(second)) == (6, 15)
    assert stage.query("site", "SELECT records, rejected, clipped FROM streams") == [(21, 9, 0)]
    reasons = dict(stage.query("site", "SELECT reason, count FROM rejects"))
    assert sum(reasons.values()) == 9
    assert reasons["column 'heat': not a finite number"] == 3
    assert reasons["column 'heat': not a number"] == 1
    assert reasons["column 'heat': missing"] == 1
    assert reasons["column 'load': not a finite number"] == 1
    assert reasons["column 'failed': unknown class; allowed: 'yes', 'no'"] == 1
    shown = stage.run("client", "show", "site").stdout.splitlines()
    # the most frequent kind first, each on a line of its own
    at = shown.index("  reasons:")
    assert shown[at + 1] == "    3 x column 'heat': not a finite number"
    assert "    1 x column 'heat': missing" in shown[at:]


def test_values_beyond_the_public_range_count_as_its_ends(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 0", privacy=OPEN, records=4)
    beyond, ends = stage.folder / "beyond.csv", stage.folder / "ends.csv"
    beyond.write_text(HEADER + "1e6,0,yes\n-5,0,no\n50,-3,yes\n50,99,no\n")
    ends.write_text(HEADER + "100,0,yes\n0,0,no\n50,-1,yes\n50,1,no\n")
    for client, source in (("beyond", beyond), ("ends", ends)):
        stage.produced(client, source)
    one, other = decoded(stage)
    assert all(np.array_equal(one.parts[name], other.parts[name]) for name in one.parts)
    assert stage.query("beyond", "SELECT clipped FROM streams") == [(4,)]
    assert stage.query("ends", "SELECT clipped FROM streams") == [(0,)]


def test_a_missing_column_ends_with_20_and_spends_nothing(build: Build) -> None:
    stage = build()
    source = stage.folder / "data.csv"
    source.write_text("heat,failed\n1,yes\n")
    stage.produce("site", source)
    assert stage.code("site") == 20
    said = stage.said("site")
    assert re.search(r"has no column 'load'; the study needs heat, load, failed", said)
    assert not vault_path(stage.settings.home, "site").exists()


def _records(release: Release) -> int:
    return release.header.records


def test_empty_cells_are_what_the_study_declares_from_the_source_to_the_estimate(
    tmp_path: Path, stages: list[Stage], kafka: str, redis_url: str
) -> None:
    text = study_text(privacy=OPEN)
    said = "heat = { min = 0, max = 100"
    assert said in text
    stage = Stage(
        tmp_path / "stage", kafka, redis_url,
        text.replace(said, f"{said}, missing = 50, indicator = true"),
    )  # fmt: skip
    stages.append(stage)
    stage.ensure_topics()
    records = lines(400)
    records[::3] = [f",{line.partition(',')[2]}" for line in records[::3]]
    source = stage.folder / "gaps.csv"
    source.write_text(HEADER + "".join(records))
    stage.worker()
    stage.produced("site", source)
    found = stage.final_estimate()
    assert stage.query("site", "SELECT records, rejected FROM streams") == [(400, 0)]
    values = {row.name: row.value for row in found.coefficients}
    assert list(values) == ["intercept", "heat", "heat_missing", "load"]
    # the cells of the odds that are gone do not go with the response
    assert abs(values["heat_missing"]) < 1
    assert values["heat"] > 1
