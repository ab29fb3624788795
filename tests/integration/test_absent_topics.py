"""A topic that is not there: whoever reads it is told so, at whatever moment Kafka is asked."""

from __future__ import annotations

import uuid

import pytest

import infra.kafka
from infra.kafka import read_all
from pipeline.errors import NoTopic
from pipeline.settings import Settings


@pytest.mark.kafka
def test_a_topic_that_is_not_there_is_told_whenever_its_reader_gives_up(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the reader asks again and again, and is told by Kafka that it is not there."""
    settings = Settings(kafka=kafka)
    for milliseconds in range(50, 450, 20):
        monkeypatch.setattr(infra.kafka, "APPEARS_MS", milliseconds)
        with pytest.raises(NoTopic):
            list(read_all(settings, f"veil.absent.{uuid.uuid4().hex}"))
