"""Models keep up with clients at full speed, whatever the rhythm of estimates is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.messages.model import read_model, write_model
from pipeline.messages.release import header_of
from pipeline.release.model import Model, round_model
from tests.stage import Stage, send, study_text, write_csv

#: Seconds between two estimates: no client may have to wait for one.
SLOW = 600
Build = Callable[..., Stage]


@pytest.fixture
def build(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Build]:
    made: list[Stage] = []

    def make(**study: object) -> Stage:
        text = study_text(records=20, **study)  # type: ignore[arg-type]
        text = text.replace("seconds = 0.2, pause = 0.05", f"seconds = {SLOW}, pause = {SLOW}")
        made.append(Stage(tmp_path / "stage", kafka, redis_url, text))
        made[-1].ensure_topics()
        return made[-1]

    yield make
    for stage in made:
        stage.remove()


def models_of(stage: Stage) -> dict[int, Model]:
    found = [
        read_model(stage.task, record.value) for record in stage.read(stage.topics.models.name)
    ]
    return {model.version: model for model in found}


def test_models_lack_no_more_than_the_last_windows_and_wait_for_no_estimate(build: Build) -> None:
    stage = build()
    stage.worker()
    names, begun = ("north", "south", "west"), time.monotonic()
    for number, name in enumerate(names):
        stage.produce(name, write_csv(stage.folder / f"{name}.csv", 1200, number))
    stage.ended(*names)
    stage.caught_up()
    assert time.monotonic() - begun < SLOW / 2
    models = models_of(stage)
    by_client, at_start = dict[bytes, list[int]](), set[bytes]()
    for record in stage.releases():
        header, before = header_of(record.value), by_client.setdefault(record.key, [])
        # the first at a model may have begun before that came, when more could be on their way
        if record.key not in at_start and len(before) > 1:
            # one that was on its way when the window began, and none before it
            assert models[header.version].offsets[record.partition] > before[-2]
        (at_start.discard if header.version else at_start.add)(record.key)
        before.append(record.offset)
    assert {len(offsets) > 30 for offsets in by_client.values()} == {True}
    # a model whenever slots have grown by 4 %: each client's windows are a tenth of its own
    assert len(models) > 30
    newest = models[max(models)]
    assert newest.watermark > 0.9 * 3600
    # estimates followed growth by a tenth alone
    assert 10 < len(stage.read(stage.topics.estimates.name)) < len(models)


@pytest.mark.slow
def test_one_client_of_many_does_not_wait_for_growth(build: Build) -> None:
    """Its windows are small beside all that has come, and nobody else sends anything."""
    stage = build()
    stage.worker()
    for number, name in enumerate(("large", "late")):
        stage.produce(name, write_csv(stage.folder / f"{name}.csv", 3000 // 10**number, number))
        assert stage.code(name, SLOW / 2) == 0, stage.said(name)


@pytest.mark.slow
def test_a_client_that_starts_again_counts_what_it_sent_last(build: Build) -> None:
    stage = build(stream="max_in_flight_windows = 2")
    source = write_csv(stage.folder / "site.csv", 2000)

    def released(count: int) -> None:
        stage.produce("site", source)
        stage.until(lambda: len(stage.releases()) == count, f"{count} releases")
        time.sleep(0.5)
        assert len(stage.releases()) == count
        assert stage.stop("site") == 0, stage.said("site")

    released(2)
    released(3)
    offsets = [record.offset for record in stage.releases()]
    [number] = {record.partition for record in stage.releases()}
    model = round_model(1, np.full(stage.task.size, 0.25), (1.0, 1.0))
    key = stage.task.study.name.encode()
    # the last release is one that no model has seen, and then one that this one has
    for at, count in ((offsets[-1], 4), (offsets[-1] + 2, 6)):
        read = tuple(at * (n == number) for n in range(stage.task.study.stream.partitions))
        value = write_model(stage.task, replace(model, version=count, offsets=read), "t")
        send(stage.settings.kafka, stage.topics.models.name, [{"key": key, "value": value}])
        released(count)
