"""`veilstream doctor connect`: one line for each part, and the exit code of the first fault."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewTopic,
    ResourcePattern,
    ResourceType,
)

from agents.preflight import Finding, findings, look
from infra.local.processes import free_port
from infra.topics import administrator
from pipeline.settings import Settings
from producers.source_check import look_at_source
from tests.secured import Secured
from tests.stage import Stage, study_text, write_csv

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    with Stage(tmp_path, kafka, redis_url, study_text()) as made:
        yield made


def looked(stage: Stage, settings: Settings | None = None, **others: Any) -> dict[str, Finding]:
    asked = {"roles": ["client", "worker"], **others}
    found = findings(stage.task, settings or stage.settings, **asked)
    return {finding.part: finding for finding in found}


def of_source(stage: Stage, spec: str) -> Finding:
    return look("source", lambda: look_at_source(stage.task, stage.settings, spec))


def test_all_is_well_and_a_line_says_so_for_each_part(stage: Stage) -> None:
    stage.ensure_topics()
    source = write_csv(stage.folder / "a.csv", 300)
    done = stage.ran("doctor", "connect", stage.study, "--source", source)
    lines = done.stdout.splitlines()
    assert [line.split()[1].rstrip(":") for line in lines if "veil." not in line] == [
        "Kafka", "Redis", "clock", "disk", "source",
    ]  # fmt: skip
    assert all(line.startswith("ok") for line in lines)
    assert lines[-1].endswith("200 of its first 200 records can be used")
    assert any(
        f"veil.{stage.task.study.name}.releases.v1: is there, with" in line for line in lines
    )
    assert stage.ends() == [0, 0]


def test_a_topic_that_is_not_there_is_made_by_the_first_start(stage: Stage) -> None:
    found = looked(stage, roles=["client"])
    said = found[f"veil.{stage.task.study.name}.releases.v1"]
    assert (said.fault, said.said) == (None, "is not there yet; the first start makes it")
    assert "Redis" not in found


def test_a_topic_that_is_not_as_the_study_needs_it_is_a_fault(stage: Stage) -> None:
    stage.ensure_topics()
    models = f"veil.{stage.task.study.name}.models.v1"
    with administrator(stage.settings) as admin:
        settings = {"cleanup.policy": "delete"}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, models, configs=settings)])
    found = looked(stage)
    assert [part for part in found if found[part].fault is not None] == [models]
    assert "the study needs compact" in found[models].said


def test_the_exit_code_is_that_of_the_first_fault(stage: Stage) -> None:
    (stage.folder / "a.csv").write_text("heat,load,failed\n" + "x,0.5,yes\n" * 9)
    source = str(stage.folder / "a.csv")
    done = stage.run("doctor", "connect", stage.study, "--source", source, "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["exit_code"]) == (20, 20)
    assert "none of its first 9 records can be used: " in told["found"][-1]["said"]
    stage.environment["VEILSTREAM_KAFKA"] = f"localhost:{free_port()}"
    done = stage.run("doctor", "connect", stage.study, "--source", source)
    assert done.returncode == 50
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "FAULT", "ok", "ok", "ok", "FAULT",
    ]  # fmt: skip


@pytest.mark.parametrize(("source", "code"), [("no.csv", 20), ("kafka://no-such", 20)])
def test_a_source_that_is_not_there(source: str, code: int, stage: Stage) -> None:
    fault = of_source(stage, source).fault
    assert fault is not None
    assert fault.exit_code == code


@pytest.mark.parametrize("source", ["-", "listen://127.0.0.1:1", "mqtt://localhost/a"])
def test_a_source_that_would_be_used_up_is_not_read(source: str, stage: Stage) -> None:
    assert "taken from it" in of_source(stage, source).said


def test_redis_out_of_reach(stage: Stage) -> None:
    away = replace(stage.settings, redis=f"redis://localhost:{free_port()}/0")
    found = looked(stage, away)
    assert found["Redis"].fault is not None
    assert found["Redis"].fault.exit_code == 60
    assert "clock" not in found


def test_a_clock_an_hour_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    true = time.time
    monkeypatch.setattr("agents.preflight.time.time", lambda: true() + 3600)
    fault = looked(stage)["clock"].fault
    assert fault is not None
    assert "clock is 3600 s ahead of that of Redis" in str(fault)


def test_a_disk_that_is_full_or_not_ours(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(stage.folder)
    with monkeypatch.context() as full:
        full.setattr("shutil.disk_usage", lambda _: usage._replace(free=1 << 20))
        fault = looked(stage)["disk"].fault
    assert fault is not None
    assert fault.exit_code == 61
    assert "1 MiB left: the operator must free disk space" in str(fault)
    # nobody, not even root, writes there
    assert looked(stage, replace(stage.settings, folder="/proc/x"))["disk"].fault is not None


def test_a_right_that_is_missing_is_named_with_its_topic(stage: Stage, secured: Secured) -> None:
    nobody = replace(secured.scram, kafka_username="client")
    found = looked(stage, nobody, roles=["client"])
    name = f"veil.{stage.task.study.name}.releases.v1"
    assert found["Kafka"].fault is None
    assert found[name].fault is not None
    assert found[name].fault.exit_code == 10
    assert "veilstream topics" in str(found[name].fault)
    admin = KafkaAdminClient(bootstrap_servers=secured.plain.kafka)
    admin.create_topics([NewTopic(name, 1, 1)])
    pattern = ResourcePattern(ResourceType.TOPIC, name)
    may = ACLPermissionType.ALLOW
    admin.create_acls([ACL("User:client", "*", ACLOperation.READ, may, pattern)])
    admin.close()
    stage.until(
        lambda: "Write" in looked(stage, nobody, roles=["client"])[name].said, "the right holds"
    )
    fault = looked(stage, nobody, roles=["client"])[name].fault
    assert "does not permit this user DescribeConfigs, Write on it" in str(fault)
    wrong = looked(stage, replace(nobody, kafka_password="wrong"))  # noqa: S106
    assert wrong["Kafka"].fault is not None
    assert name not in wrong
