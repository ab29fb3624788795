"""Releases that cannot be folded: each becomes a dead letter as it came, and the stream goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import numpy as np
import pytest
from kafka import KafkaProducer

from pipeline.messages.estimate import EstimateMessage
from pipeline.methods import task_of
from pipeline.privacy.memory import EPOCHS
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Encoder
from pipeline.release.model import Model, start_model
from pipeline.release.task import Task
from pipeline.stream.fold import LogRecord, Reducer
from pipeline.stream.partition import Partition
from pipeline.stream.release import release_of
from pipeline.study_file.load import parse_study
from tests.stage import OPEN, Stage, lines, send, study_text, write_csv
from tests.wire import edited, valued

#: Where epochs began in a chain whose first release is at a model of the first.
BEGUN = [1, *[0] * (EPOCHS - 1)]
HEADERS = [("ce_specversion", b"1.0"), ("ce_id", b"site/7"), ("odd", b"\x00\xff"), ("odd", b"")]


@dataclass(frozen=True)
class Bad:
    """One bad record and the reason with which it must be set aside."""

    name: str
    reason: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = tuple(HEADERS)


@dataclass(frozen=True)
class Outcome:
    """What came of the run that all tests of this module look at."""

    stage: Stage
    good: list[bytes]
    bad: list[Bad]
    places: dict[str, Any]
    letters: dict[tuple[int, int], Any]
    estimate: EstimateMessage


def release(task: Task, client: str, seq: int, ledger: str = "ledger") -> bytes:
    """Make an honest release at the start."""
    encoder = Encoder(task.study)
    rows = [
        encoder.encode(dict(zip(("heat", "load", "failed"), line.strip().split(","), strict=True)))
        for line in lines(task.slots, seq)
    ]
    model = start_model(task.size)
    stream = SecureStream()
    return release_of(task, rows, model, stream, client=client, ledger=ledger, seq=seq)


def bad_records(task: Task) -> list[Bad]:
    """Return bad records of every kind, all in the name of client `bad`."""
    whole = release(task, "bad", 0)

    def changed(**fields: object) -> bytes:
        return edited(task, whole, **fields)

    def later(**fields: object) -> bytes:
        return changed(version=3, number=1, starts=BEGUN, **fields)

    weaker = task.budget.guarantee.claim.replace(f" {task.budget.guarantee.epsilon!r} ", " 50.0 ")
    layout = task.layout
    fields = [field._replace(exponent=field.exponent + 1) for field in layout.later]
    other = dataclasses.replace(layout, later=tuple(fields)).text
    name = task.study.name
    foreign = task_of(parse_study(study_text(name, records=task.slots + 1)))
    opened = task_of(parse_study(study_text(name, privacy=OPEN)))
    noise = random.Random(3).randbytes
    key = b"bad"
    return [
        Bad("truncated", "wrong-shape", key, whole[: len(whole) // 2]),
        Bad("one byte short", "wrong-shape", key, whole[:-1]),
        Bad("one byte more", "wrong-shape", key, whole + b"\x00"),
        Bad("random", "undecodable", key, noise(300)),
        Bad("random of its length", "undecodable", key, noise(len(whole))),
        Bad("text", "undecodable", key, b"hello"),
        Bad("large", "undecodable", key, noise(7 * 2**20)),
        Bad("empty", "undecodable", key, b""),
        Bad("null value", "empty", key, None),
        Bad("another form", "undecodable", key, changed(form=9)),
        Bad("negative seq", "undecodable", key, changed(seq=-1)),
        Bad("a MAC", "undecodable", key, changed(mac=1)),
        Bad("wrong study", "wrong-study", key, changed(study=f"{name}-2")),
        Bad("wrong revision", "wrong-revision", key, release(foreign, "bad", 0)),
        Bad("wrong kind", "undecodable", key, release(opened, "bad", 0)),
        Bad("wrong key", "wrong-key", b"somebody", whole),
        Bad("no key", "wrong-key", None, whole),
        Bad("not UTF-8", "wrong-key", b"\xff\xfe\xfd", whole),
        Bad("no client", "wrong-key", b"", changed(client="")),
        Bad("short array", "wrong-shape", key, whole[:-16]),
        Bad("wrong unit", "wrong-unit", key, changed(layout=other)),
        Bad(
            "huge numbers",
            "out-of-range",
            key,
            later(sums=2**62),
        ),
        Bad(
            "the least number",
            "out-of-range",
            key,
            later(sums=-(2**63)),
        ),
        Bad("more numbers", "wrong-shape", key, changed(sums=1)),
        Bad("more slots", "wrong-claim", key, changed(records=10**9)),
        Bad("a place at the start", "wrong-place", key, changed(number=1)),
        Bad("more partitions", "wrong-claim", key, changed(partitions=9)),
        Bad("less privacy", "wrong-claim", key, changed(claim=weaker)),
        Bad("forged ledger", "foreign-ledger", b"good", release(task, "good", 1000, "forged")),
    ]


@pytest.fixture(scope="module")
def outcome(
    tmp_path_factory: pytest.TempPathFactory, kafka: str, redis_url: str
) -> Iterator[Outcome]:
    text = study_text(partitions=1)
    stage = Stage(tmp_path_factory.mktemp("bad"), kafka, redis_url, text)
    try:
        stage.ensure_topics()
        stage.worker()
        bad = bad_records(stage.task)
        # seq 5 never comes, 9 comes late, 3 comes three times
        numbers = [n for n in range(len(bad) + 1) if n not in (5, 9)]
        good = {n: release(stage.task, "good", n) for n in (*numbers, 9)}
        batch: list[dict[str, Any]] = []
        for i, n in enumerate(numbers):
            batch.append({"key": b"good", "value": good[n]})
            if i < len(bad):
                item = bad[i]
                batch.append({"key": item.key, "value": item.value, "headers": [*item.headers]})
        batch += [
            {"key": item.key, "value": item.value, "headers": [*item.headers]}
            for item in bad[len(numbers) :]
        ]
        batch += [{"key": b"good", "value": good[3]}] * 2
        batch.append({"key": b"good", "value": good[9]})
        batch.append({"key": b"late", "value": release(stage.task, "late", 0)})
        places = send(stage.settings.kafka, stage.topics.releases.name, batch)
        origin = {(r["key"], r["value"]): place for r, place in zip(batch, places, strict=True)}
        stage.caught_up()
        found = {
            (int(dict(r.headers)["veil_dlq_partition"]), int(dict(r.headers)["veil_dlq_offset"])): r
            for r in stage.dead_letters()
        }
        yield Outcome(
            stage,
            [*good.values(), batch[-1]["value"]],
            bad,
            {item.name: origin[item.key, item.value] for item in bad},
            found,
            stage.final_estimate(),
        )
    finally:
        stage.remove()


@pytest.mark.parametrize("i", range(29))
def test_a_bad_release_is_set_aside_as_it_came_with_its_reason_and_place(
    outcome: Outcome, i: int
) -> None:
    bad = outcome.bad[i]
    place = outcome.places[bad.name]
    letter = outcome.letters[place.partition, place.offset]
    headers = dict(letter.headers)
    assert headers["veil_dlq_reason"] == bad.reason.encode(), (bad.name, headers)
    assert (letter.key, letter.value) == (bad.key, bad.value)
    assert tuple(letter.headers[: len(bad.headers)]) == bad.headers
    assert headers["veil_dlq_topic"] == outcome.stage.topics.releases.name.encode()
    assert headers["veil_dlq_detail"]


def test_nothing_else_is_set_aside(outcome: Outcome) -> None:
    assert len(outcome.bad) == len({bad.name for bad in outcome.bad}) == 29
    assert len(outcome.letters) == len(outcome.bad)
    assert len(outcome.stage.dead_letters()) == len(outcome.bad)


def test_the_estimate_counts_the_good_and_reports_the_rest(outcome: Outcome) -> None:
    estimate = outcome.estimate
    assert estimate.releases == len(outcome.good)
    assert estimate.records == len(outcome.good) * outcome.stage.task.slots
    assert estimate.clients == 2
    assert estimate.diagnostics.missing == 1
    assert estimate.diagnostics.duplicates == 2
    assert estimate.diagnostics.dead_letters == len(outcome.bad)


def test_the_state_is_that_of_the_good_releases_alone(outcome: Outcome) -> None:
    [stored] = outcome.stage.partitions()
    alone = Partition.empty(outcome.stage.task)
    records: list[LogRecord] = [r for r in outcome.stage.releases() if r.value in set(outcome.good)]
    for record in records:
        alone.starting_at(record.offset)
        assert Reducer(outcome.stage.task).fold(alone, [record]) == []
    assert stored.sums.encode() == alone.sums.encode()
    assert {n: p.encode() for n, p in stored.clients.items()} == {
        n: p.encode() for n, p in alone.clients.items()
    }


def test_the_worker_is_still_there_and_its_state_verifies(outcome: Outcome) -> None:
    assert outcome.stage.processes["w0"].poll() is None
    assert outcome.stage.verified()


def test_a_dead_letter_says_nothing_of_the_payload_in_its_words(outcome: Outcome) -> None:
    for letter in outcome.letters.values():
        detail = dict(letter.headers)["veil_dlq_detail"]
        assert len(detail) < 200
        assert b"forged" not in detail


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, study_text(partitions=1))
    try:
        made.ensure_topics()
        made.worker()
        yield made
    finally:
        made.remove()


def test_a_header_without_a_value_is_kept(stage: Stage) -> None:
    """Only one of the two libraries can send such a header."""
    headers = [("empty", None), ("full", b"1")]
    asyncio.run(_send_with_headers(stage, headers))
    stage.caught_up()
    [letter] = stage.dead_letters()
    assert [tuple(header) for header in letter.headers[:2]] == headers


async def _send_with_headers(stage: Stage, headers: list[tuple[str, bytes | None]]) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=stage.settings.kafka)
    await producer.start()
    try:
        topic = stage.topics.releases.name
        await producer.send_and_wait(topic, value=b"x", key=b"bad", headers=headers)
    finally:
        await producer.stop()


@pytest.mark.slow
def test_a_release_that_claims_a_far_model_version_does_not_stop_the_others(stage: Stage) -> None:
    """Clients take newer models only, so nobody may push the version to the end of its range."""
    whole = release(stage.task, "liar", 0)
    size = stage.task.size
    model = Model(2**53 - 1, np.zeros(size, dtype=np.int64), (1024, 1024))
    value = release_of(stage.task, [], model, SecureStream(), client="liar", ledger="ledger", seq=1)
    records = [{"key": b"liar", "value": payload} for payload in (whole, value)]
    send(stage.settings.kafka, stage.topics.releases.name, records)
    stage.caught_up()
    stage.produced("honest", write_csv(stage.folder / "honest.csv", 400))
    stage.caught_up()
    assert stage.final_estimate().clients == 2


@pytest.mark.slow
def test_a_curvature_beyond_all_records_does_not_stop_estimates_without_privacy(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1, privacy=OPEN)) as stage:
        stage.ensure_topics()
        stage.worker()
        huge = valued(stage.task, release(stage.task, "liar", 0), "curvature", 1e100)
        send(stage.settings.kafka, stage.topics.releases.name, [{"key": b"liar", "value": huge}])
        stage.produced("honest", write_csv(stage.folder / "honest.csv", 400))
        stage.caught_up()
        assert stage.final_estimate().clients == 1
        [letter] = stage.dead_letters()
        assert dict(letter.headers)["veil_dlq_reason"] == b"out-of-range"


@pytest.mark.slow
def test_a_transaction_of_another_producer_does_not_stop_the_stream(stage: Stage) -> None:
    """Kafka marks the end of a transaction with a record that consumers never see."""
    topic, servers = stage.topics.releases.name, stage.settings.kafka
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=topic)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, key=b"good", value=release(stage.task, "good", 0))
        producer.commit_transaction()
    finally:
        producer.close(timeout=5)
    stage.until(lambda: stage.watermarks() == [1], "the record of the transaction is folded")
    assert stage.verified()  # the log ends with the mark of the transaction
    send(servers, topic, [{"key": b"good", "value": release(stage.task, "good", 1)}])
    try:
        stage.caught_up()
    finally:
        code = stage.processes["w0"].poll()
        assert code is None, f"the worker ended with {code}: {stage.said('w0')}"
    assert stage.final_estimate().releases == 2
    assert stage.verified()
