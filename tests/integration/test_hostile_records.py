"""Records that end readers of Kafka themselves: names that are no text, and few bytes that grow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import MessageSizeTooLargeError

from infra.topics import administrator, check_copies, ensure_topics
from pipeline.messages.model import write_model
from pipeline.messages.topics import PLAIN
from pipeline.release.model import Model
from tests.integration.test_admission import opened
from tests.stage import PATIENCE, Stage, lent, study_text, write_csv
from tests.trusted import TRUST
from tests.unit.test_kafka_records import Name


@pytest.fixture
def stage(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text(partitions=1) + TRUST))


def put(stage: Stage, topic: str, value: bytes, **options: Any) -> None:
    """Write a record as somebody who keeps to nothing."""
    headers = options.pop("headers", [])
    with closing(
        KafkaProducer(bootstrap_servers=stage.settings.kafka, max_request_size=64 << 20, **options)
    ) as producer:
        producer.send(topic, key=b"x", value=value, headers=headers, partition=0).get(
            timeout=PATIENCE
        )


def goes_on(stage: Stage, windows: int = 10) -> None:
    """Let the client come to so many windows, which must all count."""
    stage.produced("north", write_csv(stage.folder / "north.csv", 20 * windows))
    stage.caught_up()
    assert stage.processes["w0"].poll() is None, stage.said("w0")
    assert [state.head.folded for state in stage.partitions()] == [windows]
    assert stage.verified()


@pytest.mark.takes("a worker, a client twice, and as many verifications")
def test_a_name_that_is_no_text_ends_nobody_in_any_topic_however_it_is_packed(stage: Stage) -> None:
    opened(stage, "north")
    for topic in stage.topics.all():
        put(stage, topic.name, b"x", headers=[(Name("...."), b"1")])
        # few bytes that would grow are refused by Kafka
        more = 2 * int(topic.config.get("max.message.bytes", 1 << 20))
        with pytest.raises(MessageSizeTooLargeError):
            put(stage, topic.name, bytes(more), compression_type="gzip")
    stage.worker()
    goes_on(stage)
    with administrator(stage.settings) as admin:
        kind, given = ConfigResourceType.TOPIC, {"compression.type": "zstd"}
        admin.alter_configs(
            [ConfigResource(kind, t.name, t.config | given) for t in stage.topics.all()]
        )
    goes_on(stage, 20)
    [state] = stage.partitions()
    assert state.head.dead_letters == 1
    listed = stage.run("dlq", "list", stage.study)
    assert "undecodable: 1 of 'x'" in listed.stdout
    assert stage.run("client", "list", stage.study).stdout.startswith("north  admitted")
    assert stage.run("watch", stage.study, "--count", 1).returncode == 0


@pytest.mark.slow
def test_in_topics_that_keep_them_they_are_dead_letters_without_their_bytes(stage: Stage) -> None:
    """Topics of earlier versions do."""
    releases = stage.topics.releases
    kept = {key: value for key, value in releases.config.items() if key not in PLAIN}
    ensure_topics(stage.settings, [type(releases)(releases.name, 1, 1, kept)])
    opened(stage, "north")
    assert any(next(iter(PLAIN)) in line for line in check_copies(stage.settings, [releases]))
    put(stage, releases.name, bytes(40 << 20), compression_type="gzip")
    stage.worker()
    goes_on(stage)
    [letter] = stage.dead_letters()
    assert dict(letter.headers)["veil_dlq_reason"] == b"too-large"
    assert (letter.key, letter.value) == (b"x", None)


def test_an_open_study_goes_on_after_one_command_whatever_models_were_forged(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    """The next model must be one that clients take: they refuse what follows a forged version."""
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1)) as stage:
        stage.worker()
        source = write_csv(stage.folder / "north.csv", 200)
        stage.produced("north", source)
        stage.caught_up()
        assert stage.stop("w0") == 0
        far = Model(2**30, stage.task.first_model.lattice + 2**24, (1024, 1024))
        put(stage, stage.topics.models.name, write_model(stage.task, far, "2026-01-01T00:00:00Z"))
        stage.ran("study", "recover", stage.study, "--yes")
        stage.worker()
        write_csv(source, 400)
        stage.produced("north", source)
        # it waits for a newer model on its way
        stage.caught_up()
        assert [state.head.folded for state in stage.partitions()] == [20]
        assert stage.final_estimate().model_version < 1000
        stage.remove()
