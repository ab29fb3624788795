"""An authenticated study before its first worker, and before a client's first admission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.admissions import read_roll
from infra.topics import announce
from pipeline.api.feed import Feed
from pipeline.errors import ConfigError
from pipeline.methods import task_of
from pipeline.page.content import Watched
from pipeline.page.server import Reading
from pipeline.study_file.load import parse_study
from producers.start import Job, run_client
from tests.stage import PATIENCE, Stage, send, study_text, write_csv
from tests.trusted import TRUST


@pytest.fixture
def stage(kafka: str, redis_url: str, tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, kafka, redis_url, study_text() + TRUST) as made:
        made.ensure_topics()
        yield made
        made.remove()


def test_who_watches_before_anybody_has_a_key_waits_and_sees_the_first_estimate(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.kafka.APPEARS_MS", 200)
    feed = Feed(stage.task.study, stage.settings, beginning=True)
    try:
        assert not feed.ready(0.3)
        # nor is a page refused
        page = Reading(stage.task.study, stage.settings, Watched(stage.task.study))
        page.stop()
        with pytest.raises(ConfigError, match="study keys"):
            read_roll(stage.task.study, stage.settings)
        assert stage.run("study", "keys", stage.study).returncode == 0
        done = stage.run("client", "enrol", "--client", "north")
        enrolment = stage.folder / "north.json"
        enrolment.write_text(done.stdout)
        assert stage.run("client", "admit", stage.study, enrolment).returncode == 0
        stage.worker()
        stage.produced("north", write_csv(stage.folder / "north.csv", 100))
        assert feed.ready(PATIENCE)
        assert feed.refused == 0
    finally:
        feed.close()


def test_a_topic_with_keys_that_follow_from_none_is_no_reason_to_wait(stage: Stage) -> None:
    send(stage.settings.kafka, stage.topics.clients.name, [{"key": b"/keys", "value": b"{}"}])
    with pytest.raises(ConfigError, match="study keys"):
        Feed(stage.task.study, stage.settings, beginning=True)


def test_a_client_with_another_file_is_refused_before_it_is_admitted(stage: Stage) -> None:
    text = stage.study.read_text().replace("epsilon = 2.0", "epsilon = 1.0")
    other = task_of(parse_study(text))
    announce(stage.task, stage.settings, overrule=False, say=pytest.fail)
    job = Job("site", str(write_csv(stage.folder / "data.csv", 60)))
    with pytest.raises(ConfigError, match=f"runs under revision {stage.task.revision}"):
        run_client(
            other, stage.settings, job, report=lambda *_: None,
            admit=lambda: pytest.fail("it was admitted"),
        )  # fmt: skip


@pytest.mark.slow
def test_who_watches_before_there_are_topics_is_told_and_waits(
    kafka: str, redis_url: str, tmp_path: Path
) -> None:
    with Stage(tmp_path, kafka, redis_url, study_text() + TRUST) as stage:
        stage.before = "import infra.kafka\ninfra.kafka.APPEARS_MS = 200"
        stage.start("watch", "watch", stage.study)
        stage.start("page", "page", stage.study, "--port", 0)
        for name in ("watch", "page"):
            stage.until(
                lambda name=name: "no topics of study" in stage.said(name), "what it waits for"
            )
        short = ("watch", stage.study, "--count", 1, "--timeout", 0.1)
        assert stage.run(*short).returncode == 26
        assert stage.run("page", *short[1:2], *short[4:]).returncode == 26
        stage.ensure_topics()
        stage.until(lambda: "no estimate yet" in stage.said("watch"), "the topics")
        done = stage.run(*short)
        assert done.returncode == 26
        assert "--timeout: 0.1 s without an estimate: it takes a `veilstream worker`" in done.stderr
        stage.until(lambda: "http://127.0.0.1" in stage.said("page"), "the page")
        stage.kill("watch")
        stage.kill("page")
        stage.remove()
