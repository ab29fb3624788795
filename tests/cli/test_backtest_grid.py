"""`veilstream backtest` with grids: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from pipeline.messages.schemas import schema
from tests.cli.test_regression_commands import linear, stage_of, write

GRID = ("--grid", "window.records=40,80", "--draws", "2", "--jobs", "1")


def test_a_grid_writes_its_runs_and_a_report(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, linear())
    source = write(tmp_path / "h.csv", 400)
    out, page = tmp_path / "runs.jsonl", tmp_path / "report.html"
    done = stage.ran(
        "backtest", stage.study, "--input", source, *GRID, "--json", "--out", out, "--report", page
    )
    told = json.loads(done.stdout)
    jsonschema.validate(told, schema("backtest-grid.v1"))
    assert [one["setting"] for one in told["settings"]] == [
        {"window.records": 40}, {"window.records": 80},
    ]  # fmt: skip
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted((run["setting"]["window.records"], str(run["draw"])) for run in runs) == [
        (40, "0"), (40, "1"), (40, "None"), (80, "0"), (80, "1"), (80, "None"),
    ]  # fmt: skip
    scores = [r["measures"]["mean_absolute_error"] for r in runs[:2]]
    assert told["settings"][0]["means"]["mean_absolute_error"] == pytest.approx(sum(scores) / 2)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert page.stat().st_mode & 0o077 == 0
    assert "run 6 of 6" in done.stderr
    assert "not private" in done.stderr


@pytest.mark.slow
def test_a_report_of_a_single_run(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, linear())
    source, page = write(tmp_path / "h.csv", 200), tmp_path / "report.html"
    stage.ran("backtest", stage.study, "--input", source, "--report", page)
    assert "Backtest of" in page.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--grid", "privacy.epsilom=1,2"), "did you mean 'epsilon'"),
        (("--grid", "privacy.epsilon"), "is not a key with values"),
        (("--jobs", "2"), "--jobs: it goes with --grid or --draws"),
        ((*GRID, "--out", "runs.parquet"), "--out: it must end in .jsonl"),
        (("--report", "report.pdf"), "--report: it must end in .html"),
        (("--report", "nowhere/report.html"), "there is no folder"),
        (("--grid", "estimator.kind=pooled"), "does not keep the guarantee"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    stage = stage_of(tmp_path, linear())
    source = write(tmp_path / "h.csv", 50)
    done = stage.run("backtest", stage.study, "--input", source, *options)
    assert done.returncode == 10, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
