"""A trial is apart from all that counts, and says what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from pipeline.settings import Settings, begin_trial
from tests.program import run_here
from tests.stage import Stage, study_text, write_csv

TRUST = f'\n[trust]\nreleases = "authenticated"\nkey = "{"ab" * 64}"\n'


@pytest.mark.kafka
@pytest.mark.redis
@pytest.mark.takes("a Kafka of its own")
def test_a_trial_spends_nothing_that_counts_and_leaves_nothing(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    text = study_text(stream="max_in_flight_windows = 0") + TRUST
    with Stage(tmp_path, kafka, redis_url, text) as stage:
        name, source = stage.task.study.name, write_csv(tmp_path / "a.csv", 100)
        folder = stage.settings.home / "trial"

        def play(*words: object) -> str:
            done = stage.run_beside("play", *words)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "trial" in done.stderr.lower()
            return done.stdout

        try:
            play("up")
            sent = ("--client", "a", "--source", source, "--json")
            facts = json.loads(play("produce", stage.study, *sent))
            assert (facts["study"], facts["releases"]) == (f"{name}-trial", 5)
            [spent] = json.loads(play("privacy", "ledger", "--json"))["a"].values()
            assert spent["studies"][0]["study"] == f"{name}-trial"
            assert (folder / "clients" / "a.db").exists()
        finally:
            play("end")
        # the real study has its own name, whether there is a trial or not
        folder.mkdir()
        assert "-trial" not in stage.run("study", "check", stage.study).stdout
        folder.rmdir()
        assert not stage.database("a").exists()
        with KafkaAdminClient(bootstrap_servers=kafka) as admin:
            assert not [topic for topic in admin.list_topics() if name in topic]


def test_a_trial_takes_no_address_and_no_key_of_the_real_studies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"KAFKA": "h:1", "KAFKA_CA": "ca", "REDIS": "redis://h", "STUDY_KEY": "k",
             "FOLDER": str(tmp_path), "SOURCE_KAFKA": "s:1", "KAFKA_HOME": "/opt"}  # fmt: skip
    for key, value in given.items():
        monkeypatch.setenv(f"VEILSTREAM_{key}", value)
    assert not Settings.read().trial
    found = begin_trial()
    assert (found.kafka, found.kafka_ca, found.redis, found.study_key) == ("", "", "", "")
    assert (found.source_kafka, found.kafka_home) == ("s:1", "/opt")
    assert found.trial
    # a trial within one is the same
    assert begin_trial().home == found.home == tmp_path / "trial"


def test_a_trial_holds_no_other_command_that_begins_one(tmp_path: Path) -> None:
    done = run_here(["play", "play", "status"], {"VEILSTREAM_FOLDER": str(tmp_path)})
    assert done.returncode == 2
    assert "leave the second `play` out" in done.stderr
