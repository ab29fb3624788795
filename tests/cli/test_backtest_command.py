"""The command `veilstream backtest`: input of all forms, output, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from pipeline.backtest import backtest
from pipeline.cli.main import cli
from pipeline.errors import ConfigError, DataError, LocalStoreError
from tests.forks import FORKS, files_below
from tests.stage import PATIENCE

STUDY = """
[study]
name = "visits"
[data]
response = { name = "y", positive = "1", negative = "0" }
[data.features]
a = { min = -1, max = 1 }
b = { min = -1, max = 1 }
[estimator]
loss = "logistic"
[privacy]
mechanism = "insecure-simulation"
epsilon = 4
delta = 1e-6
seed = 1
[window]
records = 40
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a study, and one history as CSV, JSON lines and Parquet."""
    rng = np.random.default_rng(4)
    a, b = rng.uniform(-1.2, 1.2, 3_000), rng.uniform(-1, 1, 3_000)
    times = pd.Timestamp("2013-01-01", tz="UTC") + pd.to_timedelta(np.arange(3_000), unit="min")
    frame = pd.DataFrame({
        "a": a, "b": b, "y": (rng.random(3_000) < 1 / (1 + np.exp(-2 * a))).astype(int),
        "t": times, "who": [f"c{k % 3}" for k in range(3_000)], "more": "x",
    })  # fmt: skip
    (tmp_path / "study.toml").write_text(STUDY)
    frame.to_parquet(tmp_path / "h.parquet")
    text = frame.assign(t=[moment.isoformat() for moment in times])
    text.to_csv(tmp_path / "h.csv", index=False)
    text.to_json(tmp_path / "h.jsonl", orient="records", lines=True, double_precision=15)
    return tmp_path


def run(folder: Path, *arguments: str, source: str = "h.parquet") -> Result:
    command = ["backtest", str(folder / "study.toml"), "--input", str(folder / source)]
    return CliRunner().invoke(cli, [*command, *arguments])


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    del found["seconds"], found["estimate"]["published_at"]
    return found


TIMED = ("--event-time", "t", "--client-column", "who", "--json")


@pytest.mark.slow
def test_all_forms_of_a_history_say_the_same(folder: Path) -> None:
    forms = ("parquet", "csv", "jsonl")
    said = [told(run(folder, *TIMED, "--no-pooled", source=f"h.{form}")) for form in forms]
    # JSON lines of pandas have 15 digits, so the last bit of a feature may differ
    assert said[0]["estimate"] == said[1]["estimate"]
    assert said[0]["scores"] == said[1]["scores"]
    assert said[2]["scores"]["accuracy"] == said[0]["scores"]["accuracy"]
    frame = pd.read_parquet(folder / "h.parquet")
    result = backtest(STUDY, frame, event_time="t", client_column="who")
    assert result.scores.accuracy == said[0]["scores"]["accuracy"]


@pytest.mark.slow
def test_fit_and_predict_read_parquet(folder: Path) -> None:
    fits = []
    for source in ("h.parquet", "h.csv"):
        command = ["fit", str(folder / "study.toml"), "--input", str(folder / source), "--json"]
        found = CliRunner().invoke(cli, command)
        assert found.exit_code == 0, found.output
        fits.append(json.loads(found.stdout)["coefficients"])
    assert fits[0] == fits[1]


def test_standard_input_is_read_once(folder: Path) -> None:
    command = ["backtest", str(folder / "study.toml"), "--input", "-", "--json"]
    data = (folder / "h.csv").read_bytes()
    found = FORKS.run([*command, "--no-pooled"], os.environ, stdin=data)
    assert json.loads(found.stdout)["records"] == 3_000
    refused = FORKS.run(command, os.environ, stdin=data)
    assert refused.returncode == ConfigError.exit_code
    assert "--no-pooled" in refused.stderr


def test_output_says_that_it_is_not_private(folder: Path) -> None:
    found = run(folder, "--out", str(folder / "o.jsonl"), "--freeze", "1000")
    assert found.exit_code == 0, found.output
    assert "not private" in found.stderr
    assert "not private" in " ".join(found.stdout.split())
    rows = [json.loads(line) for line in (folder / "o.jsonl").read_text().splitlines()]
    assert sum(row["records"] for row in rows) == 3_000
    assert (folder / "o.jsonl").stat().st_mode & 0o777 == 0o600
    document = run(folder, "--json", "--out", str(folder / "o.parquet"), "--freeze", "1000")
    assert "not private" in told(document)["not_private"]
    assert pq.read_table(folder / "o.parquet").to_pylist() == rows


def test_a_range_of_time(folder: Path) -> None:
    part = ("--from", "2013-01-01T10:00:00Z", "--to", "2013-01-01T12:00:00+02:00")
    whole = told(run(folder, *TIMED, "--from", "2013-01-02T00:00:00Z"))
    assert whole["records"] == 3_000 - 24 * 60
    assert whole["first"] == "2013-01-02T00:00:00.000000Z"
    found = run(folder, *TIMED, *part)
    assert isinstance(found.exception, ConfigError)  # 12:00+02:00 is 10:00 in UTC
    found = run(folder, *TIMED, "--from", "2014-01-01T00:00:00Z")
    assert isinstance(found.exception, DataError)
    assert "range" in str(found.exception)
    assert isinstance(run(folder, "--json", "--from", "2014-01-01").exception, ConfigError)


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("t", ["2013-01-01T00:00:00"] * 200, "none of the first 200 records has a time"),
        ("t", ["2013-01-01T00:00:00Z", "17"] * 100, "record 2: the time .* sort the history"),
        ("t", [1.6e15 + k for k in range(200)], "must convert other units"),
        ("y", ["maybe"] * 200, "could be used: column 'y' cannot be read in 200"),
        ("a", ["x"] * 200, "could be used: column 'a' cannot be read in 200"),
        ("who", ["x" * 300] * 200, "more than 200 characters"),
        ("a", None, "no column 'a'"),
        ("t", None, "no column 't'"),
    ],
)
def test_bad_histories_are_refused(column: str, values: list[object] | None, said: str) -> None:
    table: dict[str, list[Any]] = {
        "a": [0.1] * 200, "b": [0.2] * 200, "y": [0, 1] * 100, "t": list(range(200)),
        "who": ["w"] * 200,
    }  # fmt: skip
    if values is None:
        del table[column]
    else:
        table[column] = values
    with pytest.raises(DataError, match=said):
        backtest(STUDY, table, event_time="t", client_column="who")


def test_empty_histories_are_refused(folder: Path) -> None:
    (folder / "empty.csv").write_text("a,b,y\n")
    (folder / "none.csv").write_text("")
    (folder / "none.parquet").write_text("")
    pd.read_parquet(folder / "h.parquet").iloc[:0].to_parquet(folder / "empty.parquet")
    for name in ("empty.csv", "none.csv", "empty.parquet", "none.parquet", "absent.parquet"):
        found = run(folder, source=name)
        assert isinstance(found.exception, DataError), name


def test_late_and_untimed_records_are_kept_and_counted() -> None:
    times: list[object] = [float(k) for k in range(200)]
    times[50], times[60], times[61] = 3.0, None, "?"
    table = {"a": [0.1] * 200, "b": [0.2] * 200, "y": [0, 1] * 100, "t": times}
    found = backtest(STUDY, table, event_time="t", late="keep")
    assert (found.late, found.untimed, found.unusable, found.records) == (1, 2, 2, 200)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay": "3 parsecs"}, "--delay"),
        ({"event_time": "t", "delay": "3 records"}, "--delay"),
        ({"label_delay": "3s"}, "--label-delay"),
        ({"label_delay": "exponential:3 records"}, "--label-delay"),
        ({"split": 4, "client_column": "who"}, "--split"),
        ({"by": "blocks:3"}, "--by"),
        ({"split": 3, "by": "alphabet"}, "--by.*dirichlet"),
        ({"freeze": "noon"}, "--freeze"),
        ({"late": "drop"}, "--late"),
        ({"bins": 1}, "--bins"),
        ({"without_privacy": True, "simulate": 1}, "--simulate"),
        ({"speed": 3}, "speed is not an option"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    table = {"a": [0.1] * 80, "b": [0.2] * 80, "y": [0, 1] * 40, "t": list(range(80))}
    with pytest.raises(ConfigError, match=said):
        backtest(STUDY, table, **options)


@pytest.mark.parametrize(
    "rule",
    [
        *(
            pytest.param(rule, marks=pytest.mark.slow)
            for rule in ("round-robin", "blocks:100", "range:a")
        ),
        "dirichlet:0.3",
    ],
)
def test_rules_deal_records_to_clients(folder: Path, rule: str) -> None:
    words = ("--split", "4", "--by", rule, "--json", "--seed", "2", "--no-pooled")
    found = told(run(folder, *words))
    assert found["clients"] == 4
    assert told(run(folder, *words)) == found


def test_a_full_disk_is_an_error_and_leaves_nothing(folder: Path) -> None:
    words = ["backtest", folder / "study.toml", "--input", folder / "h.parquet"]
    there = set(folder.iterdir())
    # the bins take more
    refused = FORKS.run([*words, "--out", folder / "o.jsonl"], os.environ, before=files_below(2000))
    assert refused.returncode == ConfigError.exit_code
    assert "--out: cannot write" in refused.stderr
    assert set(folder.iterdir()) == there


@pytest.mark.slow
def test_a_standard_output_that_takes_no_more_is_an_error(folder: Path) -> None:
    # a start of its own, and a short one: Parquet brings pandas
    words = ["backtest", folder / "study.toml", "--input", folder / "h.csv", "--no-pooled"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "pipeline.cli.main", *map(str, words), "--json"],
            stdout=full, stderr=subprocess.PIPE, check=False,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert ended.returncode == LocalStoreError.exit_code
    assert b"standard output" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"ignored" not in ended.stderr


@pytest.mark.parametrize("name", ["o.txt", "no/o.jsonl", "h.parquet"])
def test_outputs_are_checked_before_the_run(folder: Path, name: str) -> None:
    found = run(folder, "--out", str(folder / name))
    assert isinstance(found.exception, ConfigError)
    assert "--out" in str(found.exception)


@pytest.mark.slow
def test_an_interrupt_ends_it_cleanly(folder: Path) -> None:
    # standard input that stays open: it waits for records
    program = [sys.executable, "-m", "pipeline.cli.main", "backtest", str(folder / "study.toml")]
    out = folder / "o.jsonl"
    process = subprocess.Popen(
        [*program, "--input", "-", "--no-pooled", "--out", str(out)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # a shell lets what it runs behind it ignore interrupts, and that is inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stderr is not None
    header, rows = (folder / "h.csv").read_bytes().split(b"\n", 1)
    process.stdin.write(header + b"\n")
    # far more than a pipe holds: it has read most of it then, and imports nothing any more, which
    # might swallow the interrupt; a second one may come when Python itself is on its way out
    for _ in range(8):
        process.stdin.write(rows)
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    _, said = process.communicate()
    assert b"Traceback" not in said
    assert list(folder.glob("o.jsonl*")) == []


def test_without_pyarrow_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"veilstream\[arrow\]"):
        backtest(STUDY, folder / "h.parquet")


def test_results_are_frames_and_figures(folder: Path) -> None:
    result = backtest(STUDY, folder / "h.parquet", event_time="t", freeze="2013-01-02T00:00:00Z")
    frame = result.to_pandas()
    assert frame["records"].sum() == 3_000
    assert str(frame["start"].dtype).startswith("datetime64")
    figure = result.plot()
    assert len(figure.axes) == 2
    figure.savefig(folder / "figure.png")
    assert "not private" in repr(result)
