"""Clients without privacy that send their sums again: the live estimate becomes the exact fit."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.messages.estimate import EstimateMessage
from pipeline.messages.release import read
from tests.databases import sqlite_file
from tests.integration.test_admission import opened
from tests.stage import HEADER, OPEN, Stage, lines, study_text
from tests.trusted import TRUST

CLIENTS, RECORDS = ("north", "south"), 1500


def text(name: str | None = None, *, reexpand: bool = True) -> str:
    made = study_text(name, privacy=OPEN, records=50, stream="max_in_flight_windows = 8")
    again = 'loss = "logistic"\nmethod = { reexpand = true }'
    return made.replace('loss = "logistic"', again) if reexpand else made


def values(estimate: EstimateMessage) -> list[float]:
    return [row.value for row in estimate.coefficients]


def test_live_estimates_become_the_exact_fit_through_crashes(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    files = {c: tmp_path / f"{c}.csv" for c in CLIENTS}
    pooled = tmp_path / "all.csv"
    for seed, path in enumerate(files.values()):
        path.write_text(HEADER + "".join(lines(RECORDS, seed)))
    pooled.write_text(HEADER + "".join("".join(lines(RECORDS, seed)) for seed in (0, 1)))
    with Stage(tmp_path, kafka, redis_url, text()) as stage:
        stage.ensure_topics()
        stage.worker()
        for client, path in files.items():
            stage.produce(client, path, "--rate", 600)
        stage.until(lambda: sum(stage.watermarks()) > 10, "the worker folds")
        stage.kill("w0")
        stage.kill("south")
        stage.worker()
        stage.produce("south", files["south"])
        for client in CLIENTS:
            assert stage.code(client) == 0, stage.said(client)
        stage.caught_up()
        found = stage.final_estimate()
        exact = json.loads(
            stage.run("fit", stage.study, "--input", pooled, "--without-privacy", "--json").stdout
        )
        # a slope's standard error is about .1: between two clients' rounds models move by .001
        for value, row in zip(values(found), exact["coefficients"], strict=True):
            assert abs(value - row["value"]) < 2e-3 * max(1.0, abs(value))
        assert found.status == "ready"
        assert found.records == 2 * RECORDS
        for ours, theirs in zip(found.coefficients, exact["coefficients"], strict=True):
            assert ours.standard_error is not None
            assert abs(ours.standard_error / theirs["standard_error"] - 1) < 0.02
        again = [r for r in stage.releases() if read(stage.task, r.value).parts["again"][0]]
        assert {r.key.decode() for r in again} == set(CLIENTS)
        assert (found.diagnostics.missing, found.diagnostics.dead_letters) == (0, 0)
        assert stage.verified()
        checked = stage.run("replay", stage.study, "--check", "--json")
        assert checked.returncode == 0, checked.stderr
        partly = stage.run("replay", stage.study, "--from", "offset:0=5")
        assert partly.returncode != 0

        # what a client has kept is all that it needs: a second run has nothing more to say
        before = stage.ends()
        stage.produce("south", files["south"])
        assert stage.code("south") == 0
        assert sum(stage.ends()) - sum(before) <= 1


def test_sums_are_sent_again_where_releases_are_authenticated(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    """A ticket stands for the model that a client knew, and not for the point on the way there."""
    with Stage(tmp_path, kafka, redis_url, text() + TRUST) as stage:
        opened(stage, "north")
        stage.worker()
        source = tmp_path / "north.csv"
        source.write_text(HEADER + "".join(lines(600)))
        stage.produce("north", source)
        assert stage.code("north") == 0, stage.said("north")
        again = [r for r in stage.releases() if r.value[:1] == b"V"]
        assert sum(read(stage.task, r.value).parts["again"][0] for r in again) >= 2
        found = stage.final_estimate()
        assert (found.records, found.diagnostics.dead_letters) == (600, 0)
        assert found.status == "ready"
        stage.remove()


def test_a_client_that_has_lost_records_leaves_what_it_has_sent(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    source = tmp_path / "data.csv"
    source.write_text(HEADER + "".join(lines(400)))
    with Stage(tmp_path, kafka, redis_url, text()) as stage:
        stage.produce("north", source)
        # no worker: nothing is sent again
        assert stage.code("north") == 0, stage.said("north")
        with sqlite_file(stage.database("north")) as database:
            database.execute("DELETE FROM kept WHERE seq = 3")
        stage.worker("w0")
        # in its topic: a worker stores it first
        stage.until(lambda: stage.read(stage.topics.models.name), "a model")
        stage.start("north", "produce", stage.study, "--client", "north", "--source", source)
        assert stage.code("north") == 0, stage.said("north")
        assert "the records of 1 releases of this client are lost" in stage.said("north")
        assert sum(stage.ends()) == 8
