"""The study's record on the broker: a file of another revision spends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from infra.topics import announce, known_revision
from pipeline.cli.main import cli
from pipeline.errors import ConfigError
from pipeline.messages.admission import StudyMessage
from pipeline.methods import task_of
from pipeline.release.task import Task
from pipeline.study_file.load import parse_study
from producers.client import Progress
from producers.database import vault_path
from producers.start import Job, run_client
from tests.stage import Stage, lent, lines, send, study_text, write_csv


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text()))


def other_than(stage: Stage) -> Task:
    """Return the study with another budget."""
    text = stage.study.read_text().replace("epsilon = 2.0", "epsilon = 1.0")
    return task_of(parse_study(text))


def run(
    stage: Stage, task: Task, source: Path, said: list[str] | None = None, *, follow: bool = False
) -> Progress:
    job = Job("site", str(source), follow=follow)
    say = (lambda _: None) if said is None else said.append
    return run_client(task, stage.settings, job, report=lambda *_: None, say=say)


def test_a_client_with_another_file_is_refused_before_it_spends_or_binds_itself(
    stage: Stage,
) -> None:
    source, other = write_csv(stage.folder / "data.csv", 60), other_than(stage)
    stage.ensure_topics()
    announce(stage.task, stage.settings, overrule=False, say=pytest.fail)
    with pytest.raises(ConfigError) as caught:
        run(stage, other, source)
    assert stage.task.revision in str(caught.value)
    assert other.revision in str(caught.value)
    # nothing was begun, so there is no client
    assert not vault_path(stage.settings.home, "site").exists()
    assert stage.ends() == [0, 0]
    assert run(stage, stage.task, source).releases == 3


def test_a_client_that_found_no_record_stops_before_its_next_spend_when_one_differs(
    stage: Stage,
) -> None:
    source, other = write_csv(stage.folder / "data.csv", 60), other_than(stage)
    job, told = Job("site", str(source), follow=True), []

    def report(progress: Progress) -> None:
        if told:
            with source.open("a") as file:
                file.writelines(lines(20, len(told)))
        if progress.releases == 3:
            told.append(True)
            announce(other, stage.settings, overrule=True, say=lambda _: None)

    with pytest.raises(ConfigError, match=f"runs under revision {other.revision}"):
        run_client(stage.task, stage.settings, job, report=report)
    # Kafka may need a second to hand the record out; the file would have given windows for ever
    [(spent,)] = stage.query("site", "SELECT count(*) FROM ledger")
    assert 3 <= spent <= 5


def test_a_worker_refuses_another_record_unless_the_state_is_its_own(stage: Stage) -> None:
    other = other_than(stage)
    stage.ensure_topics()
    announce(other, stage.settings, overrule=False, say=pytest.fail)
    stage.worker()
    assert stage.code("w0") == 10
    assert f"runs under revision {other.revision}" in stage.said("w0")
    # what is folded says which one is right, so that a forged record stops nobody for long
    said: list[str] = []
    announce(stage.task, stage.settings, overrule=True, say=said.append)
    assert other.revision in said[0]
    assert known_revision(stage.task, stage.settings) == stage.task.revision


def test_the_first_worker_writes_the_record_and_one_with_state_restores_it(stage: Stage) -> None:
    # slow: a worker as a process, twice
    source = write_csv(stage.folder / "data.csv", 60)
    stage.ensure_topics()
    assert known_revision(stage.task, stage.settings) is None
    stage.worker()
    stage.produced("site", source)
    stage.caught_up()
    assert known_revision(stage.task, stage.settings) == stage.task.revision
    assert stage.stop("w0") == 0
    announce(other_than(stage), stage.settings, overrule=True, say=lambda _: None)
    before = len(stage.read(stage.topics.study.name))
    stage.worker()
    stage.until(
        lambda: len(stage.read(stage.topics.study.name)) == before + 1, "the record is restored"
    )
    assert known_revision(stage.task, stage.settings) == stage.task.revision


def test_records_that_cannot_be_read_are_passed_over_and_said(stage: Stage, kafka: str) -> None:
    stage.ensure_topics()
    alien = StudyMessage("another-study", "0" * 16, "2026-01-01T00:00:00Z")
    payloads = [b"\xff\x00", b"{}", b'{"type": "study/9"}', json.dumps(None).encode()]
    payloads.append(json.dumps({**{f: getattr(alien, f) for f in alien.__struct_fields__},
                                "type": "study/1"}).encode())  # fmt: skip
    send(kafka, stage.topics.study.name, [{"key": b"k", "value": value} for value in payloads])
    said: list[str] = []
    done = run(stage, stage.task, write_csv(stage.folder / "data.csv", 40), said)
    assert done.releases == 2
    assert any("5 records of" in line and "cannot be read" in line for line in said)


def test_the_command_makes_the_topics_and_the_record_and_replaces_it_when_told(
    stage: Stage,
) -> None:
    def topics(*options: str) -> Result:
        return CliRunner().invoke(
            cli, ["topics", str(stage.study), *options], env=stage.environment
        )

    done = topics("--json")
    assert done.exit_code == 0, done.stderr
    facts = json.loads(done.stdout)
    own = {topic.name for topic in stage.topics.all()}
    assert set(facts["created"]) == own | {stage.settings.ledger_topic}
    assert known_revision(stage.task, stage.settings) == facts["revision"] == stage.task.revision
    other = other_than(stage)
    stage.study.write_text(stage.study.read_text().replace("epsilon = 2.0", "epsilon = 1.0"))
    refused = topics()
    assert isinstance(refused.exception, ConfigError)
    assert "veilstream topics STUDY --replace" in str(refused.exception)
    assert topics("--replace").exit_code == 0
    assert known_revision(stage.task, stage.settings) == other.revision
