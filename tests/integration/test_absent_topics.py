"""A topic that is not there: whoever reads it is told so, at whatever moment Kafka is asked."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import infra.kafka
from infra.kafka import read_all
from pipeline.errors import NoTopic
from pipeline.methods import task_of
from pipeline.settings import Settings
from pipeline.study_file.load import parse_study
from producers.membership import counted
from tests.builders import study_text


@pytest.mark.kafka
def test_a_topic_that_is_not_there_is_told_whenever_its_reader_gives_up(
    kafka: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the reader asks again and again, and is told by Kafka that it is not there."""
    settings = Settings(kafka=kafka)
    for milliseconds in range(50, 450, 80):
        monkeypatch.setattr(infra.kafka, "APPEARS_MS", milliseconds)
        with pytest.raises(NoTopic):
            list(read_all(settings, f"veil.absent.{uuid.uuid4().hex}"))


@pytest.mark.kafka
def test_who_asks_what_counts_of_a_client_is_told_that_the_study_has_no_topic(
    kafka: str, tmp_path: Path
) -> None:
    task = task_of(parse_study(study_text(name=f"absent-{uuid.uuid4().hex}")))
    with pytest.raises(NoTopic, match="there is no topic"):
        counted(task, Settings(kafka=kafka), "c", tmp_path / "none", None)
