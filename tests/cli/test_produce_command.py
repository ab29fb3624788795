"""What `veilstream produce` says where there is no terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline.cli.main import cli
from pipeline.errors import DataError, WaitTimeout
from tests.stage import Stage, lent, study_text, write_csv


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, kafka: str, redis_url: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("produce")
    yield from lent(Stage(folder, kafka, redis_url, study_text(stream="max_in_flight_windows = 0")))


def produce(stage: Stage, client: str, *options: str) -> Result:
    source = stage.folder / f"{client}.csv"
    arguments = ["produce", str(stage.study), "--client", client, "--source", str(source)]
    return CliRunner().invoke(cli, [*arguments, *options], env=stage.environment)


def test_a_run_begins_and_ends_with_a_line(stage: Stage) -> None:
    with write_csv(stage.folder / "a.csv", 100).open("a") as file:
        file.write("900,0,yes\n" + "1,0,maybe\n" * 7)
    done = produce(stage, "a")
    assert done.exit_code == 0, done.output
    first, *_, last = done.stderr.splitlines()
    assert first.startswith(f"a: study {stage.task.study.name} (revision {stage.task.revision}), ")
    assert "source csv:a.csv from its start, to its end; epsilon 0 of 2 spent, 2 left" in first
    assert last == (
        "a: 101 records used, 1 value clipped to the public range, 7 records set aside (7 x column "
        "'failed': unknown class; allowed: 'yes', 'no'), 6 releases; epsilon 2 of 2 spent, "
        "nothing is left (charged once: further records of this study cost no more)"
    )
    again = produce(stage, "a", "--from-start").stderr.splitlines()
    [warning] = [line for line in again if "--from-start has no effect here" in line]
    assert "follows none" in warning
    assert "behind 108 record slots" in again[0]
    assert "0 records used" in again[-2]
    assert "the source had nothing new" in again[-1]
    assert done.stdout == ""


def test_a_run_ends_with_the_columns_that_are_outside_their_range(stage: Stage) -> None:
    # under the share of a jump if all columns were counted together, and fewer than a block
    lines = ["50,0,yes\n"] * 25 + ["50,9,no\n"] * 3
    (stage.folder / "far.csv").write_text("heat,load,failed\n" + "".join(lines))
    [warning] = [
        line for line in produce(stage, "far").stderr.splitlines() if "cut to it: load 11%." in line
    ]
    assert "heat" not in warning
    assert "`min` and `max`" in warning


@pytest.mark.parametrize(
    "given",
    [
        "--epsilon-limit=nan",
        "--rate=nan",
        "--begin=inf",
    ],
)
def test_what_is_no_number_is_no_limit(stage: Stage, given: str) -> None:
    """NaN lies in every range, and a database that holds it has no limit."""
    write_csv(stage.folder / "nan.csv", 20, 5)
    done = produce(stage, "nan", given, *(["--rate=9"] if "begin" in given else []))
    assert done.exit_code == 2
    assert "is not a finite number" in done.stderr
    assert not stage.database("nan").exists()


def test_the_same_as_json_at_the_end_and_nothing_when_quiet(stage: Stage) -> None:
    write_csv(stage.folder / "b.csv", 60, 1)
    done = produce(stage, "b", "--json", "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    assert (facts["records_used"], facts["releases"], facts["exit_code"]) == (60, 3, 0)
    assert (facts["finished"], facts["read"]) == (True, 1.0)
    assert facts["epsilon"] == pytest.approx({"limit": 2.0, "spent": 2.0, "remaining": 0.0})
    again = json.loads(produce(stage, "b", "--json").stdout)
    assert (again["records_used"], again["in_all"]["records_used"]) == (0, 60)


def test_a_file_that_a_signal_cut_off_is_told_from_a_finished_one(stage: Stage) -> None:
    source = write_csv(stage.folder / "h.csv", 2000, 7)
    stage.produce("h", source, "--rate", 100, "--json")
    stage.until(lambda: b"h" in {record.key for record in stage.releases()}, "a release")
    assert stage.stop("h") == 0
    facts = json.loads(stage.said("h"))
    assert (facts["finished"], facts["exit_code"]) == (False, 0)
    assert 0 < facts["read"] < 1
    rest = produce(stage, "h", "--json")
    assert json.loads(rest.stdout)["finished"]
    assert json.loads(rest.stdout)["in_all"]["records_used"] == 2000
    assert "NOT finished" not in rest.stderr


def test_who_waits_for_a_model_waits_no_longer_than_it_was_told(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    with Stage(tmp_path, kafka, redis_url, study_text(stream="max_in_flight_windows = 1")) as stage:
        write_csv(tmp_path / "w.csv", 200)
        done = produce(stage, "w", "--timeout", "1", "--json")
        assert isinstance(done.exception, WaitTimeout)
        facts = json.loads(done.stdout)
        assert (facts["finished"], facts["exit_code"]) == (False, 26)
        stage.remove()


def test_a_source_without_records_is_said_to_be_one(stage: Stage) -> None:
    (stage.folder / "e.csv").write_text("heat,load,failed\n")
    done = produce(stage, "e")
    assert done.exit_code == 0
    assert "WARNING: nothing is released: the source had no records" in done.stderr


@pytest.mark.parametrize(
    ("header", "options"),
    [
        ("heat,failed\n", ()),
        ("heat,load,failed\n", ("--event-time", "then")),
        ("heat,load,failed\n", ("--source-name", "x", "--skip-lost", "--source", "absent.csv")),
    ],
)
def test_a_start_that_is_refused_leaves_no_client(
    stage: Stage, header: str, options: tuple[str, ...]
) -> None:
    (stage.folder / "f.csv").write_text(header + "1,0,yes\n" * 100)
    assert isinstance(produce(stage, "f", *options).exception, DataError)
    assert not list((stage.folder / "home" / "clients").glob("f.*"))


def test_an_empty_source_is_no_address(stage: Stage) -> None:
    done = produce(stage, "h", "--source", "")
    assert isinstance(done.exception, DataError)
    assert "--listen" not in str(done.exception)


def test_a_refused_start_keeps_what_an_earlier_one_has_made(stage: Stage) -> None:
    write_csv(stage.folder / "g.csv", 60, 2)
    assert produce(stage, "g").exit_code == 0
    kept = (stage.folder / "home" / "clients" / "g.db").read_bytes()
    for options in (("--event-time", "then"), ("--source", "absent.csv")):
        assert isinstance(produce(stage, "g", *options).exception, DataError)
    assert (stage.folder / "home" / "clients" / "g.db").read_bytes() == kept


def test_a_run_that_is_refused_says_what_stands_and_its_code(stage: Stage) -> None:
    (stage.folder / "c.csv").write_text("heat,load,failed\n" + "1,0,maybe\n" * 100)
    done = produce(stage, "c", "--json")
    facts = json.loads(done.stdout)
    assert (facts["exit_code"], facts["releases"], facts["epsilon"]["spent"]) == (20, 0, 0.0)
    assert "0 releases; epsilon 0 of 2 spent, 2 left" in done.stderr
    assert "nothing is released" not in done.stderr
