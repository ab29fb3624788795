"""`veilstream backtest` with grids of which runs fail, are killed, or are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline.messages.schemas import schema
from tests.cli.test_regression_commands import linear, stage_of, write
from tests.forks import PROGRAM
from tests.stage import Stage, until

#: One response as the records have it, and one of a column that holds no number.
RIGHT = '{name="power",kind="number",min=0,max=100}'
WRONG = '{name="word",kind="number",min=0,max=100}'


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = write(tmp_path / "h.csv", 400)
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},word", *(f"{row},none" for row in rows)]) + "\n")
    return path


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return stage_of(tmp_path, linear())


def begun(stage: Stage, *options: object) -> subprocess.Popen[str]:
    """Start a grid as users do, in a group of its own, as terminals give one."""
    words = [sys.executable, "-m", PROGRAM, "backtest", stage.study, *options]
    return subprocess.Popen(
        [str(word) for word in words], env=stage.environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def children(pid: int) -> list[int]:
    """Return the processes that compute runs for one."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in found
        if "spawn_main" in (Path(f"/proc/{child}/cmdline").read_text(errors="replace"))
    ]


def imports(pid: int) -> bool:
    """Whether a process is in the midst of its imports, or behind them."""
    return "_multiarray_umath" in Path(f"/proc/{pid}/maps").read_text()


def document(text: str) -> dict[str, Any]:
    """Return the one document that a grid has printed, as its published schema has it."""
    told: dict[str, Any] = json.loads(text)
    jsonschema.validate(told, schema("backtest-grid.v1"))
    return told


@pytest.mark.slow
@pytest.mark.takes("processes that import everything, of which one is killed and replaced")
def test_a_killed_process_fails_its_run_alone(stage: Stage, source: Path) -> None:
    process = begun(
        stage, "--input", source, "--grid", "window.records=40,80", "--draws", "3", "--jobs", "1",
        "--json",
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("run 1 of 8"):
            [victim] = children(process.pid)
            os.kill(victim, signal.SIGKILL)
    assert process.stdout is not None
    told = document(process.stdout.read())
    assert process.wait() == 1, said
    [failed] = told["failed"]
    assert "SIGKILL" in failed["error"]
    assert "--jobs" in failed["error"]
    assert "run 8 of 8" in said
    assert "Traceback" not in said
    assert sum(one["draws"] for one in told["settings"]) + sum(
        one["without_privacy"] is not None for one in told["settings"]
    ) == 7  # fmt: skip


@pytest.mark.takes("processes that import everything, and are interrupted")
def test_an_interrupt_ends_all_with_one_line(stage: Stage, source: Path) -> None:
    process = begun(stage, "--input", source, "--grid", "window.records=40,80", "--draws", "50")
    assert process.stderr is not None
    until(lambda: any(map(imports, children(process.pid))), "a process imports numpy")
    # to the whole group, as a terminal does it
    os.killpg(process.pid, signal.SIGINT)
    lines = process.stderr.read().splitlines()
    assert process.wait() == 130, lines
    told = [line for line in lines if line.strip() and not line.startswith(("WARNING", "run "))]
    assert told == ["veilstream: interrupted"]
    until(lambda: not any(group(process.pid)), "no process is left")


def group(number: int) -> Iterator[int]:
    """Yield the processes of a group."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == number and state != "Z":
            yield int(entry.name)


@pytest.mark.slow
@pytest.mark.takes("a process that imports everything")
def test_a_setting_without_usable_records_has_its_reason_in_the_table(
    stage: Stage, source: Path
) -> None:
    grid = ("--grid", f"data.response={WRONG},{RIGHT}", "--jobs", "1")
    done = stage.run("backtest", stage.study, "--input", source, *grid)
    assert done.returncode == 20, done.stderr
    rows = [line for line in done.stdout.splitlines() if "name = " in line]
    assert "2 (1)" in next(row for row in rows if "word" in row)
    assert "2 (1)" not in next(row for row in rows if "power" in row)
    assert "- (1) Failed, and in no number here" in done.stdout
    assert "column 'word' cannot be read in 400" in done.stdout
    assert "recommended: data.response = { name = power" in done.stdout


@pytest.mark.slow
@pytest.mark.takes("a process that imports everything")
def test_a_grid_that_fails_whole_still_prints_its_document(
    stage: Stage, source: Path, tmp_path: Path
) -> None:
    out, page = tmp_path / "runs.jsonl", tmp_path / "report.html"
    grid = ("--grid", f"data.response={WRONG}", "--jobs", "1", "--out", out, "--report", page)
    done = stage.run("backtest", stage.study, "--input", source, *grid, "--json")
    assert done.returncode == 20, done.stderr
    told = document(done.stdout)
    assert [(one["draw"], one["exit_code"]) for one in told["failed"]] == [(None, 20), (0, 20)]
    assert "column 'word'" in told["failed"][0]["error"]
    assert told["recommended"] is None
    assert "Traceback" not in done.stderr
    # there is nothing to write, and that is said
    assert not out.exists()
    assert not page.exists()
    assert done.stderr.count("no run came to a result") == 2


def test_a_history_that_is_not_there_is_said_once(stage: Stage, tmp_path: Path) -> None:
    grid = ("--grid", "window.records=40,80", "--draws", "9")
    done = stage.run("backtest", stage.study, "--input", tmp_path / "nowhere.csv", *grid)
    assert done.returncode == 20, done.stderr
    assert done.stderr.count("nowhere.csv: cannot be opened") == 1
    assert "run 1 of" not in done.stderr
