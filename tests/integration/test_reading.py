"""Estimates of a live study as a program reads them."""

from __future__ import annotations

import uuid
from itertools import islice

import msgspec
import numpy as np
import pytest
from kafka import KafkaProducer

import veilstream as vs
from infra.topics import ensure_topics
from pipeline.messages.estimate import EstimateMessage, write_estimate
from pipeline.messages.topics import Topics
from pipeline.settings import Settings
from tests.builders import simulate, study_text

pytestmark = pytest.mark.kafka


def test_estimates_of_a_topic_come_in_order_and_end_or_are_followed(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = study_text(p=2, private=False, name=f"read-{uuid.uuid4().hex[:8]}")
    study = vs.parse_study(text)
    topics = Topics.of(study)
    monkeypatch.setenv("VEILSTREAM_KAFKA", kafka)
    for read in (vs.newest_estimate, lambda study: next(vs.estimates(study))):
        with pytest.raises(vs.BrokerError, match="has no topics of study"):
            read(study)
    ensure_topics(Settings(kafka=kafka), topics.all())
    assert list(vs.estimates(study)) == []
    with pytest.raises(vs.NumericError, match="no estimate yet"):
        vs.newest_estimate(study)
    X, signs = simulate(np.random.default_rng(0), 200, 2)
    message = vs.fit(study, X, (signs > 0).astype(int)).message
    assert isinstance(message, EstimateMessage)
    producer = KafkaProducer(bootstrap_servers=kafka)

    def publish(*versions: int) -> None:
        for version in versions:
            payload = write_estimate(msgspec.structs.replace(message, state_version=version))
            producer.send(topics.estimates.name, payload)
            producer.send(topics.latest.name, payload, key=b"study")
        producer.flush()

    publish(1, 2, 3)
    found = list(vs.estimates(text, kafka=kafka))
    assert [one.message.state_version for one in found] == [1, 2, 3]
    assert found[0].conf_int() == vs.Result(study, message).conf_int()
    latest = vs.estimates(study, latest=True)
    assert [one.message.state_version for one in latest] == [3]
    assert vs.newest_estimate(text).message.state_version == 3
    # a file of the same name that says something else would lend its own words to these numbers
    other = text.replace("records = ", "records = 9")
    assert vs.parse_study(other) != study
    with pytest.raises(vs.ConfigError, match="runs under revision"):
        vs.newest_estimate(other)
    followed = vs.estimates(study, follow=True)
    assert [one.message.state_version for one in islice(followed, 3)] == [1, 2, 3]
    publish(4)
    assert next(followed).message.state_version == 4
    followed.close()  # type: ignore[attr-defined]
    producer.close()


def test_a_study_without_a_live_stream_has_no_estimates() -> None:
    text = study_text(p=2, private=False).replace("[estimator]", '[estimator]\nkind = "pooled"')
    with pytest.raises(vs.ConfigError, match="reading estimates"):
        next(vs.estimates(text, kafka="nowhere:9"))
