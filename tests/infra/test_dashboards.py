"""The dashboard and the alert rules of one study, and of all."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from infra.deploy import alerts, dashboard
from pipeline.cli.main import cli
from tests.stage import study_text


def test_those_of_a_study_have_its_name_and_look_at_its_job_alone(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(study_text("wards"))
    made = {
        what: json.loads(
            CliRunner()
            .invoke(cli, ["study", "monitoring", what, str(path)], catch_exceptions=False)
            .stdout
        )
        for what in ("dashboard", "alerts")
    }
    assert made == {"dashboard": dashboard("wards"), "alerts": alerts("wards")}
    board = made["dashboard"]
    assert board["title"] == "veilstream: wards"
    assert board["uid"] not in (dashboard()["uid"], dashboard("words")["uid"])
    assert len(dashboard("x" * 200)["uid"]) <= 40
    assert board["templating"]["list"][1]["current"]["value"] == "wards"
    rules = [rule["expr"] for rule in made["alerts"]["groups"][0]["rules"]]
    for rule in rules:
        # every metric of every rule, also of one that has a filter of its own
        assert len(re.findall(r'veilstream_\w+\{job="wards"[,}]', rule)) == len(
            re.findall(r"veilstream_\w+", rule)
        )
        # nothing else is changed
        assert rule.count("{") == rule.count("}")
    bare = [re.sub(r'job="wards",|\{job="wards"\}', "", rule) for rule in rules]
    assert bare == [rule["expr"] for rule in alerts()["groups"][0]["rules"]]


def test_without_a_study_they_are_of_all_jobs() -> None:
    done = CliRunner().invoke(cli, ["study", "monitoring", "dashboard"], catch_exceptions=False)
    assert json.loads(done.stdout) == dashboard()
    assert dashboard()["templating"]["list"][1]["current"]["value"] == "$__all"
