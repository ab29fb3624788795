"""Every query of the dashboard and of the alerts, asked of a Prometheus that scrapes a stream."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from infra.deploy import alerts, dashboard
from infra.local.processes import free_port
from tests.page.serving import asked
from tests.prometheus import Prometheus, scraping
from tests.stage import Stage, lines, send, study_text, until, write_csv

#: What Grafana puts in place of its variables.
VARIABLES = {"$job": ".*", "$__rate_interval": "10s"}
METRIC = re.compile(r"veilstream_[a-z_]+")


def queries() -> dict[str, str]:
    """Return the dashboard's queries as Grafana sends them, by panel."""
    found = {}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            assert "$" not in text
            found[panel["title"]] = text
    return found


def firing(prometheus: Prometheus) -> set[str]:
    found = prometheus.get("alerts")["alerts"]
    return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}


def rules(prometheus: Prometheus) -> list[Any]:
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]


@pytest.mark.slow
def test_every_query_has_an_answer(kafka: str, redis_url: str, tmp_path: Path) -> None:
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1)) as stage:
        ports = {"worker": free_port(), "client": free_port()}
        stage.start(
            "w0", "worker", stage.study, "--instance", "w0", "--health-port", ports["worker"],
            "--verify", "every=2s",
        )  # fmt: skip
        source = write_csv(tmp_path / "a.csv", 400)
        stage.produce("north", source, "--follow", "--metrics-port", ports["client"])
        url = f"http://127.0.0.1:{ports['worker']}/metrics"
        stage.until(stage.releases, "a release")
        stage.caught_up()
        until(lambda: 'coefficient="heat"' in asked(url)[2], "an estimate")
        with scraping(tmp_path, alerts(), ports) as prometheus:
            until(lambda: len(prometheus.query("up == 1")) == 2, "both pages are scraped")
            until(lambda: rules(prometheus)[-1].get("lastEvaluation", "0") > "1", "rules are tried")
            # a look later, so that it is a new series
            send(kafka, stage.topics.releases.name, [{"key": b"x", "value": b"nonsense"}])
            until(lambda: "VeilstreamDeadLetters" in firing(prometheus), "the alert fires")
            with source.open("a") as file:
                file.writelines(lines(400, 1))
            waiting = queries()

            def answered() -> bool:
                for title in [t for t, query in waiting.items() if prometheus.query(query)]:
                    del waiting[title]
                return not waiting

            try:
                until(answered, "an answer to every query", 60)
            except AssertionError:
                pytest.fail(f"no answer to {waiting}")
            found = rules(prometheus)
            assert {rule["name"] for rule in found} == {
                rule["alert"] for group in alerts()["groups"] for rule in group["rules"]
            }
            assert {
                rule["name"]: rule.get("lastError") for rule in found if rule["health"] != "ok"
            } == {}
            for rule in found:
                for metric in set(METRIC.findall(rule["query"])):
                    assert prometheus.query(f"count({metric}) > 0"), (rule["name"], metric)
            # nothing else is wrong with this stream
            assert firing(prometheus) <= {"VeilstreamDeadLetters", "VeilstreamBudget"}
            with pytest.raises(OSError, match="400"):
                prometheus.query("sum(veilstream_lag_records")
