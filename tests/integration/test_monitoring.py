"""Names that dashboard and alerts ask for, against pages of a worker and a client that run."""

import json
import re

from infra.deploy import alerts, dashboard
from infra.local.processes import free_port
from tests.page.serving import asked
from tests.stage import Stage, send, study_text, until, write_csv

NAME = re.compile(r"veilstream_[a-z_]+")


def names(port: int) -> dict[str, str]:
    """Return the names on a page of metrics, each with its help text."""
    status, headers, text = asked(f"http://127.0.0.1:{port}/metrics")
    assert status == 200
    assert "version=" in headers["Content-Type"]
    found = dict(re.findall(r"# HELP (\S+) (.+)", text))
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
    histograms = {name for name, kind in kinds.items() if kind == "histogram"}
    return found | {f"{name}_bucket": found[name] for name in histograms}


def test_dashboard_and_alerts_ask_for_what_is_there(kafka, redis_url, tmp_path):
    with Stage(tmp_path, kafka, redis_url, study_text(partitions=1)) as stage:
        ports = free_port(), free_port()
        stage.start("w0", "worker", stage.study, "--instance", "w0", "--health-port", ports[0])
        source = write_csv(tmp_path / "a.csv", 200)
        stage.produce("north", source, "--follow", "--metrics-port", ports[1])
        stage.until(lambda: len(stage.releases()) == 10, "all releases")
        send(kafka, stage.topics.releases.name, [{"key": b"x", "value": b"nonsense"}])
        stage.caught_up()
        url = f"http://127.0.0.1:{ports[0]}/metrics"
        until(lambda: 'coefficient="heat"' in asked(url)[2], "an estimate")
        page = asked(url)[2]
        assert 'veilstream_dead_letters_by_reason_total{reason="undecodable"} 1.0' in page
        assert "veilstream_commit_seconds_count" in page
        assert "north" not in page
        client = asked(f"http://127.0.0.1:{ports[1]}/metrics")[2]
        spent = float(re.search(r"^veilstream_client_epsilon_spent (\S+)", client, re.M)[1])
        # the study's epsilon, and what rounding to a lattice leaves over of it
        assert 1.99 < spent <= 2.0
        assert "veilstream_client_releases_total 10.0" in client

        there = names(ports[0]) | names(ports[1])
        assert all(len(text) > 20 for text in there.values())
        queries = [t["expr"] for p in dashboard()["panels"] for t in p.get("targets", [])]
        queries += [rule["expr"] for group in alerts()["groups"] for rule in group["rules"]]
        wanted = {name for query in queries for name in NAME.findall(query)}
        assert wanted - there.keys() == set()
        # and what is there is shown; records of a client are its own business
        untold = {name for name in there if not {name, f"{name}_bucket"} & wanted}
        assert {name for name in untold if not name.startswith("veilstream_client_")} == set()

        done = stage.run(
            "produce",
            stage.study,
            "--client",
            "south",
            "--source",
            source,
            "--metrics-port",
            ports[1],
        )
        assert (done.returncode, "--metrics-port" in done.stderr) == (10, True)
        printed = stage.run("study", "monitoring", "alerts").stdout
        assert json.loads(printed) == alerts()
