"""What a worker commits to its group in Kafka: a hint, and all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.stage import OPEN, Stage, lent, lines, study_text, write_csv

pytestmark = pytest.mark.kafka
#: Slots of a window.
SLOTS = 10


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    text = study_text(privacy=OPEN, records=SLOTS, partitions=1, releases=1)
    yield from lent(Stage(tmp_path, kafka, redis_url, text))


def committed(stage: Stage) -> int | None:
    """Return the offset that the workers' group has committed."""
    group, place = f"veilstream-{stage.task.study.name}", (stage.topics.releases.name, 0)
    servers = stage.settings.kafka
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    try:
        found: int | None = consumer.committed(TopicPartition(*place))
        return found
    finally:
        consumer.close()


@pytest.mark.parametrize(
    "rounds",
    [(1, 6), *(pytest.param(some, marks=pytest.mark.slow) for some in ((1, 6, 3), (2, 6, 3)))],
)
def test_a_worker_commits_what_it_has_folded_wherever_it_began(
    stage: Stage, rounds: tuple[int, ...]
) -> None:
    """Offsets that no message has, of a batch's other records, hold nothing up."""
    source = write_csv(stage.folder / "data.csv", 0)
    for round_, windows in enumerate(rounds):
        with source.open("a") as file:
            file.writelines(lines(windows * SLOTS, seed=round_))
        stage.worker()
        stage.produced("north", source)
        stage.caught_up()
        [behind] = stage.watermarks()
        stage.until(lambda end=behind: committed(stage) == end, "all of it is committed")
        assert stage.stop("w0") == 0
