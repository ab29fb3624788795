"""Where Kafka and Redis are: who needs which, and what is said where nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.local import connected
from pipeline.errors import ConfigError
from pipeline.settings import Settings


def test_a_client_that_knows_its_kafka_needs_no_redis(tmp_path: Path) -> None:
    alone = Settings(folder=str(tmp_path), kafka="kafka.example:9092")
    assert connected(alone) == alone


@pytest.mark.parametrize(
    ("kafka", "redis", "told"),
    [
        ("", False, "nothing says where Kafka is: set VEILSTREAM_KAFKA, or"),
        ("", True, "where Kafka and Redis are: set VEILSTREAM_KAFKA and VEILSTREAM_REDIS, or"),
        ("kafka.example:9092", True, "where Redis is: set VEILSTREAM_REDIS, or"),
    ],
)
def test_what_is_not_known_is_named_with_the_folder_that_was_looked_in(
    tmp_path: Path, kafka: str, redis: bool, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        connected(Settings(folder=str(tmp_path), kafka=kafka), redis=redis)
    assert told in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "VEILSTREAM_FOLDER" in str(caught.value)
