"""`veilstream state forget` on a real log and a real store, and what comes after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from pipeline.messages.estimate import EstimateMessage
from pipeline.stream.fold import Reducer
from pipeline.stream.partition import Partition
from tests.stage import OPEN, PRIVATE, Stage, send, study_text, write_csv

CLIENTS = ("north", "south", "west")


def text_of(privacy: str, forgetting: bool) -> str:
    text = study_text(partitions=2, privacy=privacy, stream="max_in_flight_windows = 0")
    extra = '\nforgetting = { half_life = 200, of = "records" }' if forgetting else ""
    return text.replace('loss = "logistic"', 'loss = "logistic"' + extra)


@pytest.fixture(
    params=[
        "private",
        pytest.param("open", marks=pytest.mark.slow),
        pytest.param("forgetting", marks=pytest.mark.slow),
    ]
)
def stage(
    tmp_path: Path, kafka: str, redis_url: str, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    kind: str = request.param
    text = text_of(OPEN if kind == "open" else PRIVATE, kind == "forgetting")
    made = Stage(tmp_path, kafka, redis_url, text)
    try:
        made.ensure_topics()
        yield made
    finally:
        made.remove()


def filled(stage: Stage) -> None:
    """Let three clients release, and a worker fold it and stop."""
    stage.worker()
    for seed, client in enumerate(CLIENTS):
        stage.produce(client, write_csv(stage.folder / f"{client}.csv", 200, seed))
    stage.ended(*CLIENTS)
    # a worker that stops as soon as all is folded has not told of it yet
    stage.final_estimate()
    assert stage.stop("w0") == 0


def forget(stage: Stage, client: str, *options: str) -> Any:
    return stage.run("state", "forget", stage.study, client, "--yes", *options)


def sums(stage: Stage) -> list[dict[str, bytes]]:
    return [partition.sums.encode() for partition in stage.partitions()]


def never_saw(stage: Stage, client: str) -> list[dict[str, bytes]]:
    """Fold the log as if the client had never sent anything."""
    found = []
    for number in range(stage.task.study.stream.partitions):
        state, reducer = Partition.empty(stage.task), Reducer(stage.task)
        for record in stage.releases():
            if record.partition == number and record.key != client.encode():
                state.starting_at(record.offset)
                assert reducer.fold(state, [record]) == []
        found.append(state.sums.encode())
    return found


def test_a_client_is_taken_out_and_stays_out(stage: Stage) -> None:
    filled(stage)
    wanted = never_saw(stage, "south")
    assert sums(stage) != wanted
    done = forget(stage, "south")
    assert done.returncode == 0, done.stderr
    for words in ("have been published", "stream.retention", "budget", "stop its producer"):
        assert words in done.stderr
    assert sums(stage) == wanted
    assert stage.verified()

    # its producer sends on, and what it has sent comes again
    mine = [r for r in stage.releases() if r.key == b"south"]
    letters = len(stage.dead_letters())
    repeats = [{"key": r.key, "value": r.value} for r in mine[:3]]
    send(stage.settings.kafka, stage.topics.releases.name, repeats)
    stage.worker()
    with (stage.folder / "south.csv").open("a") as file:
        file.write("".join(write_csv(stage.folder / "x.csv", 60, 9).read_text().split("\n", 1)[1]))
    stage.produced("south", stage.folder / "south.csv")
    stage.caught_up()
    sent = [r for r in stage.releases() if r.key == b"south"]
    assert len(sent) >= len(mine) + 3 + 3
    assert stage.final_estimate().diagnostics.erased == len(sent)
    assert stage.final_estimate().clients == 2
    assert stage.stop("w0") == 0
    assert sums(stage) == wanted
    assert len(stage.dead_letters()) == letters
    assert stage.verified()

    checked = stage.ran("replay", stage.study, "--check", "--json")
    found = json.loads(checked.stdout)
    assert found["compared"] > 0
    assert found["not_compared"]["from before a client was taken out"] > 0

    stage.ran("state", "rebuild", stage.study, "--yes")
    assert sums(stage) == wanted
    assert stage.verified()

    again = forget(stage, "south")
    assert again.returncode == 0
    assert "has been taken out before" in again.stderr


@pytest.mark.slow
def test_when_all_clients_are_out_the_newest_estimate_says_that_none_is_left(
    stage: Stage,
) -> None:
    filled(stage)
    assert stage.final_estimate().clients == len(CLIENTS)
    models = {record.value for record in stage.read(stage.topics.models.name)}
    for client in CLIENTS:
        done = forget(stage, client)
        assert done.returncode == 0, done.stderr
        assert ("No release of any client is left" in done.stderr) == (client == CLIENTS[-1])
    stage.worker()
    found = stage.until(lambda: empty(stage), "an estimate that says so")
    assert "were taken out" in found.reason
    assert (found.releases, found.clients) == (0, 0)
    assert stage.stop("w0") == 0
    assert {record.value for record in stage.read(stage.topics.models.name)} == models
    done = stage.run("predict", stage.study, "--input", stage.folder / "north.csv")
    assert done.returncode != 0
    assert "nothing to predict with" in done.stderr


def empty(stage: Stage) -> EstimateMessage | None:
    """Return the newest estimate if it rests on nothing."""
    found = stage.final_estimate()
    return found if found.status == "empty" else None


@pytest.fixture
def private(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, text_of(PRIVATE, forgetting=False))
    try:
        made.ensure_topics()
        yield made
    finally:
        made.remove()


def test_who_is_not_known_or_cannot_be_told_apart_is_refused_and_nothing_is_changed(
    private: Stage,
) -> None:
    filled(private)
    before = sums(private)
    done = forget(private, "nobody")
    assert done.returncode == 40
    assert "knows no client 'nobody'" in done.stderr
    assert "Traceback" not in done.stderr
    # the log has been cut
    topic = private.topics.releases.name
    cut = {TopicPartition(topic, n): 1 for n in range(2) if private.ends()[n]}
    with KafkaAdminClient(bootstrap_servers=private.settings.kafka) as admin:
        admin.delete_records(cut)
    done = forget(private, "south")
    assert done.returncode == 42, done.stderr
    assert "cannot be told apart" in done.stderr
    assert sums(private) == before
    assert private.store.erased() == frozenset()
    done = forget(private, "south", "--accept-loss")
    assert done.returncode == 0, done.stderr
    assert all("south" not in partition.clients for partition in private.partitions())
