"""The first model of a private study waits for releases, the estimates do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.messages.model import read_model
from pipeline.messages.release import header_of
from tests.stage import Stage, study_text, write_csv

SLOTS = 20

Build = Callable[..., Stage]


@pytest.fixture
def build(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Build]:
    made: list[Stage] = []

    def make(**study: object) -> Stage:
        text = study_text(records=SLOTS, **study)  # type: ignore[arg-type]
        made.append(Stage(tmp_path / "stage", kafka, redis_url, text))
        made[-1].ensure_topics()
        made[-1].worker()
        return made[-1]

    yield make
    for stage in made:
        stage.remove()


def release(stage: Stage, client: str, windows: int) -> None:
    """Run a client to its end."""
    source = write_csv(stage.folder / f"{client}.csv", windows * SLOTS, sum(client.encode()))
    stage.produced(client, source)


def versions(stage: Stage) -> list[int]:
    """Return the versions of the models that went out."""
    payloads = [record.value for record in stage.read(stage.topics.models.name)]
    return [read_model(stage.task, payload).version for payload in payloads]


def test_estimates_go_out_before_the_first_model_does(build: Build) -> None:
    stage = build(releases=4, stream="max_in_flight_windows = 0")
    release(stage, "north", 3)
    estimate = stage.final_estimate()
    assert (estimate.releases, estimate.status, estimate.model_version) == (3, "starting", None)
    assert versions(stage) == []
    # nothing but the releases counts: neither time nor another worker ends the start
    assert stage.stop("w0") == 0, stage.said("w0")
    stage.worker()
    release(stage, "south", 1)
    stage.until(lambda: versions(stage) == [1], "the first model")
    assert stage.final_estimate().model_version == 1


def test_a_client_that_has_used_its_lead_is_not_held_up(build: Build) -> None:
    stage = build(releases=100, stream="max_in_flight_windows = 2")
    release(stage, "north", 6)
    found = [header_of(record.value) for record in stage.releases()]
    later = [r.version for r in found if r.version]
    assert (len(found), len(later)) == (6, 4)
