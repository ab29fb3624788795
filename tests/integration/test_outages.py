"""Kafka and Redis that die, come back, or forget: nothing is lost and nothing is folded twice."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from infra import preflight
from infra.local import LocalRuntime
from infra.topics import check_broker, ensure_topics
from pipeline.errors import BrokerError
from pipeline.settings import Settings
from pipeline.stream.partition import differences
from producers.models import ModelFeed
from producers.sender import Sender
from producers.sources import open_source
from producers.store import ClientStore
from state import codec
from tests.builders import UNCLAIMED
from tests.integration.test_kafka_faults import TASK, TOPICS, one_release
from tests.stage import OPEN, Stage, lines, send, study_text, until, write_csv

CLIENTS = ("north", "south")
RECORDS, SLOTS = 300, 20
RELEASES = len(CLIENTS) * RECORDS // SLOTS

Build = Callable[..., Stage]


@pytest.fixture
def build(frail_runtime: LocalRuntime, tmp_path: Path) -> Iterator[Build]:
    """Return a function that makes a stage on a runtime that its test may kill."""
    made: list[Stage] = []

    def make(**study: object) -> Stage:
        at = frail_runtime.up()
        made.append(Stage(tmp_path / "stage", at.kafka, at.redis, study_text(**study)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for stage in made:
        stage.end()


def stream(stage: Stage, rate: float = 80.0) -> None:
    """Start a worker and the clients, and wait until some of the stream is folded."""
    stage.ensure_topics()
    stage.worker()
    for seed, client in enumerate(CLIENTS):
        source = write_csv(stage.folder / f"{client}.csv", RECORDS, seed)
        stage.produce(client, source, "--rate", rate)
    stage.until(lambda: sum(stage.watermarks()) >= 15, "the stream runs")


def complete(stage: Stage) -> None:
    """Wait for the end of the stream and check that every release counts once."""
    stage.ended(*CLIENTS)
    stage.caught_up()
    estimate = stage.final_estimate()
    assert (estimate.releases, estimate.records) == (RELEASES, RELEASES * SLOTS)
    assert (estimate.diagnostics.missing, estimate.diagnostics.dead_letters) == (0, 0)
    assert stage.verified()


def test_redis_killed_in_mid_stream_stops_the_worker_which_later_goes_on(
    frail_runtime: LocalRuntime, build: Build
) -> None:
    stage = build()
    stream(stage)
    frail_runtime.kill("redis")
    assert stage.code("w0") == 60, stage.said("w0")
    assert "Redis is out of reach" in stage.said("w0")
    frail_runtime.restart("redis")
    stage.worker()
    complete(stage)

    before = stage.partitions()
    frail_runtime.restart("redis")
    until(lambda: _answers(stage), "Redis is back")
    after = stage.partitions()
    assert [differences(a, b) for a, b in zip(before, after, strict=True)] == [[], []]
    # the state outlived Redis, and the worker that lived on takes new releases to it
    more = write_csv(stage.folder / "west.csv", 100, 9)
    if stage.processes["w0"].poll() is not None:
        stage.worker()
    stage.produced("west", more)
    until(lambda: _folded(stage), "folded")
    assert stage.final_estimate().releases == RELEASES + 5


@pytest.fixture
def shared(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Build]:
    """Return a function that makes a stage on the servers of all tests; do not harm them."""
    made: list[Stage] = []

    def make(**study: object) -> Stage:
        text = study_text(**study)  # type: ignore[arg-type]
        made.append(Stage(tmp_path / "stage", kafka, redis_url, text))
        return made[-1]

    yield make
    for stage in made:
        stage.remove()


@pytest.mark.takes("a worker twice, two clients and a verification")
def test_a_redis_that_forgot_all_makes_the_worker_read_the_log_again(shared: Build) -> None:
    stage = shared()
    stream(stage)
    stage.redis.delete(*stage.stored_keys())
    assert stage.code("w0") == 41, stage.said("w0")
    stage.worker()
    complete(stage)


@pytest.mark.slow
def test_a_redis_that_forgot_the_newest_makes_the_worker_read_the_log_again(shared: Build) -> None:
    stage = shared()
    stage.ensure_topics()
    stage.worker()
    for seed, client in enumerate(CLIENTS):
        stage.produce(client, write_csv(stage.folder / f"{client}.csv", 5 * SLOTS, seed))
    stage.ended(*CLIENTS)
    stage.caught_up()
    old = stage.stored_copy()
    for seed, client in enumerate(CLIENTS):
        stage.produce(client, write_csv(stage.folder / f"{client}.csv", RECORDS, seed))
    complete(stage)
    # of a log that rests: no commit comes that would tell, and others read this state to publish
    stage.put_back(old)
    assert stage.code("w0") == 41, stage.said("w0")
    assert "it has lost its newest part" in stage.said("w0")
    stage.worker()
    complete(stage)


@pytest.mark.slow
def test_clients_do_not_wait_for_ever_for_models_that_redis_forgot(shared: Build) -> None:
    stage = shared(stream="max_in_flight_windows = 1")
    stage.ensure_topics()
    stage.worker()
    source = write_csv(stage.folder / "north.csv", 200)
    stage.produce("north", source, "--follow")
    stage.until(lambda: sum(stage.watermarks()) == 10, "what is there is folded")
    # the model alone, which is stored before it: nothing stores one until more comes, and the
    # worker lives on, and must not give the version again that clients have
    stage.final_estimate()
    stage.redis.delete(codec.model_key(stage.task.study.name))
    grown = write_csv(stage.folder / "grown.csv", 900).read_bytes()
    with source.open("ab") as file:
        # who follows a file must never see it shorter
        file.write(grown[source.stat().st_size :])
    stage.until(lambda: sum(stage.watermarks()) >= 20, "it goes on")
    assert stage.processes["w0"].poll() is None
    # everything: models begin again at 1 while the client stands at a higher version
    stage.kill("w0")
    stage.redis.delete(*stage.stored_keys())
    stage.worker()
    stage.until(lambda: sum(stage.watermarks()) == 45, "the rest is folded")
    assert stage.stop("north") == 0, stage.said("north")
    assert stage.final_estimate().releases == 45


def test_kafka_killed_in_mid_stream_holds_up_everybody_and_loses_nothing(
    frail_runtime: LocalRuntime, build: Build
) -> None:
    stage = build()
    stream(stage)
    frail_runtime.kill("kafka")
    time.sleep(2.0)
    frail_runtime.restart("kafka")
    # a worker that gave Kafka up may end after the clients
    until(lambda: _ended(stage) and _folded(stage), "the clients end, and all is folded")
    complete(stage)


@pytest.mark.takes("it waits for two Kafkas, of which one starts twice")
@pytest.mark.slow
def test_the_broker_of_a_topic_dies_while_another_has_the_study(
    frail_runtime: LocalRuntime, kafka: str, redis_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    frail_runtime.up()
    source_kafka, topic = frail_runtime.addresses().kafka, f"source-{uuid.uuid4().hex[:12]}"
    with KafkaAdminClient(bootstrap_servers=source_kafka) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
    _fill(source_kafka, topic, RECORDS, 0)
    text = study_text(stream="max_in_flight_windows = 0", privacy=OPEN)
    with Stage(tmp_path, kafka, redis_url, text) as stage:
        stage.ensure_topics()
        stage.environment["VEILSTREAM_SOURCE_KAFKA"] = source_kafka
        stage.worker()
        words = f"kafka://{topic}", "--follow", "--rate", 400
        stage.produce("north", *words)
        stage.until(lambda: sum(stage.watermarks()) >= 5, "the stream runs")
        there = Settings(kafka=kafka, source_kafka=source_kafka)
        idle = open_source(f"kafka://{topic}", None, folder=tmp_path, settings=there, follow=True)
        assert idle.read(1, 5.0)

        frail_runtime.kill("kafka")
        monkeypatch.setattr(preflight, "SILENCE_SECONDS", 0.0)
        # one that waits for records finds out by asking, and names the Kafka that is gone
        with pytest.raises(BrokerError, match="VEILSTREAM_SOURCE_KAFKA"):
            until(lambda: idle.read(RECORDS, 0.5) and idle.ended, "the source's Kafka is missed")
        idle.close()
        # what was fetched before is released meanwhile; the study's own Kafka is another
        assert stage.processes["north"].poll() is None, stage.said("north")
        frail_runtime.restart("kafka")
        _fill(source_kafka, topic, RECORDS, RECORDS)
        stage.until(lambda: sum(stage.watermarks()) == 2 * RECORDS // SLOTS, "all is folded")
        assert stage.stop("north") == 0, stage.said("north")
        estimate = stage.final_estimate()
        assert (estimate.releases, estimate.records) == (2 * RECORDS // SLOTS, 2 * RECORDS)
        assert (estimate.diagnostics.missing, estimate.diagnostics.dead_letters) == (0, 0)


@pytest.mark.takes("it waits for an outbox of a thousand releases, and for Kafka to start again")
@pytest.mark.slow
def test_an_outbox_is_bounded_while_kafka_is_away_and_empties_when_it_is_back(
    frail_runtime: LocalRuntime, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = 10, 1100
    stage = build(records=1, stream="max_in_flight_windows = 0", privacy='mechanism = "none"')
    stage.ensure_topics()
    stage.worker()
    source = write_csv(stage.folder / "north.csv", few)
    stage.produce("north", source, "--follow")
    stage.until(lambda: sum(stage.watermarks()) == few, "the stream runs")
    idle = ModelFeed(stage.task, stage.settings, stage.topics, "south")
    frail_runtime.kill("kafka")
    began = time.monotonic()
    with source.open("a") as file:
        file.write("".join(lines(many, 1)))
    until(lambda: _waiting(stage) == 1000, "the outbox is full")
    position = stage.query("north", "SELECT position FROM streams")
    time.sleep(1.0)
    assert _waiting(stage) == 1000
    assert stage.query("north", "SELECT position FROM streams") == position
    assert stage.processes["north"].poll() is None
    assert stage.code("w0") == 50, stage.said("w0")
    print(f"\nthe worker gave up {time.monotonic() - began:.1f} s after Kafka")
    monkeypatch.setattr(preflight, "SILENCE_SECONDS", time.monotonic() - began - 1.0)
    with pytest.raises(BrokerError):
        # a client with nothing to send finds out by asking
        until(lambda: idle.poll(0.1).version < 0, "Kafka is missed")
    idle.close()
    frail_runtime.restart("kafka")
    stage.worker()
    until(lambda: _folded(stage, few + many), "the outbox empties")
    assert stage.stop("north") == 0, stage.said("north")
    assert _waiting(stage) == 0
    estimate = stage.final_estimate()
    assert (estimate.releases, estimate.diagnostics.missing) == (few + many, 0)
    assert stage.verified()


def test_a_kafka_that_is_away_does_not_hide_why_a_client_ends(
    frail_runtime: LocalRuntime, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Closing flushes what is unsent, and failed with an error of its own, and a traceback."""
    settings = build().settings
    ensure_topics(settings, TOPICS.all())
    [pid] = [one.pid for one in frail_runtime.status() if one.name == "kafka"]
    assert pid is not None
    with ClientStore(tmp_path / "north.db", "north") as store:
        one_release(store)
        sender = Sender(store, TASK.study.name, settings, TOPICS, UNCLAIMED)
        sender.drain()
        one_release(store, 1)
        os.kill(pid, signal.SIGSTOP)
        # not before: on a busy machine a Kafka that runs needs longer
        monkeypatch.setattr(preflight, "PATIENCE_SECONDS", 0.3)
        try:
            sender.pump()
            sender.close()
            # what is not closed closes itself when it is collected, and printed a traceback
            unraised: list[object] = []
            monkeypatch.setattr(sys, "unraisablehook", unraised.append)
            del sender
            gc.collect()
            assert not unraised
            with pytest.raises(BrokerError, match="does not answer within"):
                check_broker(settings)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert store.waiting(TASK.study.name) == 1


def test_nothing_starts_without_redis_or_kafka_and_nothing_is_spent(
    frail_runtime: LocalRuntime, build: Build
) -> None:
    # the last one that takes this runtime: Kafka need not start again
    stage = build()
    frail_runtime.kill("redis")
    stage.worker()
    assert stage.code("w0") == 60
    assert "Redis is out of reach" in stage.said("w0")
    assert "Traceback" not in stage.said("w0")
    frail_runtime.restart("redis")

    frail_runtime.kill("kafka")
    stage.worker("w1")
    stage.produce("north", write_csv(stage.folder / "north.csv", 100))
    for name in ("w1", "north"):
        assert stage.code(name) == 50, stage.said(name)
        assert "Kafka" in stage.said(name)
        assert "Traceback" not in stage.said(name)
    # not even the client is there: a start that is refused changes nothing
    assert not stage.database("north").exists()


def _fill(kafka: str, topic: str, count: int, start: int) -> None:
    fields = (
        {"heat": at % 100, "load": at % 3 - 1, "failed": "yes"}
        for at in range(start, start + count)
    )
    send(kafka, topic, ({"value": json.dumps(one).encode()} for one in fields))


def _answers(stage: Stage) -> bool:
    return bool(stage.redis.ping())


def _waiting(stage: Stage) -> int:
    return int(stage.query("north", "SELECT count(*) FROM outbox")[0][0])


def _ended(stage: Stage) -> bool:
    stage.revive({41, 50})
    return all(stage.processes[client].poll() == 0 for client in CLIENTS)


def _folded(stage: Stage, releases: int | None = None) -> bool:
    """Whether the log is folded to its end, and holds as many releases if a number is given."""
    stage.revive({41, 50, 60})
    done = stage.watermarks()
    return done == stage.ends() and releases in (None, sum(done))
