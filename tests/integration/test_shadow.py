"""The second state of a study, while what it is compared with is rebuilt behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from agents.history import Compared, Shadow, refold
from pipeline.privacy.randomness import SecureStream
from pipeline.stream.release import release_of
from tests.stage import Stage, send, study_text


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1)) as made:
        made.ensure_topics()
        payloads = [
            release_of(
                made.task, [], made.task.first_model, SecureStream(), client="c", ledger="l", seq=n
            )
            for n in range(60)
        ]
        records = [{"key": b"c", "value": payload} for payload in payloads]
        send(kafka, made.topics.releases.name, records)
        yield made
        made.remove()


def cut(stage: Stage, offset: int) -> None:
    """Take the beginning of the log, as retention does."""
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        admin.delete_records({TopicPartition(stage.topics.releases.name, 0): offset})


def store(stage: Stage, until: int) -> None:
    """Store what `state rebuild --accept-loss` would, up to an offset."""
    state = refold(stage.task, stage.settings, 0, until=until, accept_loss=True)
    stage.store.replace(0, state)


def test_a_rebuild_without_what_is_lost_is_no_difference(stage: Stage) -> None:
    shadow = Shadow(stage.task, stage.settings, lambda: False)
    store(stage, 30)
    assert shadow.compare() == [Compared(0, 0, 30, [])]
    cut(stage, 10)
    assert shadow.compare() == [Compared(0, 0, 30, [])]
    store(stage, 40)
    assert shadow.compare() == [Compared(0, 10, 40, [])]
    # what it was rebuilt from is gone before a comparison has seen it
    cut(stage, 20)
    store(stage, 45)
    cut(stage, 30)
    assert shadow.compare() == [Compared(0, 45, 45, [])]
    assert not stage.store.standing(0)[1]


@pytest.mark.parametrize("lost", [0, 10])
def test_a_state_that_says_it_begins_behind_the_log_is_found_out(stage: Stage, lost: int) -> None:
    cut(stage, lost)
    shadow = Shadow(stage.task, stage.settings, lambda: False)
    store(stage, 30)
    assert shadow.compare() == [Compared(0, lost, 30, [])]
    state = stage.store.load(0)
    state.head = msgspec.structs.replace(state.head, begun=12)
    stage.store.replace(0, state)
    assert shadow.compare() == [Compared(0, lost, 30, ["head"])]
    assert stage.store.standing(0)[1]
