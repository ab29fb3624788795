"""What a client knows of the newest model."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kafka import KafkaProducer

from pipeline.messages.model import write_model
from pipeline.release.model import round_model
from producers import models
from producers.models import ModelFeed
from tests.integration.test_lost_topics import anew
from tests.stage import PATIENCE, Stage, study_text, until


def test_the_newest_model_comes_also_in_a_topic_that_was_made_anew(
    tmp_path: Path, kafka: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stage(tmp_path, kafka, redis_url, study_text()) as stage:
        stage.ensure_topics()
        producer = KafkaProducer(bootstrap_servers=kafka, acks="all", linger_ms=0)
        feed = ModelFeed(stage.task, stage.settings, stage.topics, "a")

        def publish(version: int) -> None:
            model = round_model(version, stage.task.first_model.coefficients, (1.0, 1.0))
            value = write_model(stage.task, model, "2026-01-01T00:00:00Z")
            topic = stage.topics.models.name
            producer.send(topic, key=b"study", value=value).get(timeout=PATIENCE)

        try:
            publish(1)
            until(lambda: feed.poll(0.1).version == 1, "the first model comes")
            # a request stays open, and Kafka answers it with version 2: nobody waits for more then
            feed.poll(0.05)
            publish(2)
            time.sleep(0.3)
            publish(3)
            until(lambda: feed.poll().version == 3, "the last one comes")
            # it has come to where this client stands before that looks again
            anew(stage, stage.topics.models)
            monkeypatch.setattr(models, "LAST_SECONDS", 0.5)
            for version in (4, 5, 6):
                publish(version)
            until(lambda: feed.poll(0.1).version == 6, "the newest of the new topic comes")
            assert feed.refused == 0
        finally:
            feed.close()
            producer.close(timeout=5)
