"""The command line: what it prints where, and the exit code of each kind of fault."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Group
from rich.table import Table

from infra.local import LocalRuntime
from pipeline.cli.context import TIMES, show
from pipeline.messages.estimate import EstimateMessage, read_estimate
from pipeline.records.values import time_of
from pipeline.study_file.load import load_study
from tests.stage import HEADER, OPEN, Stage, lines, study_text, write_csv


@pytest.fixture
def bare(tmp_path: Path) -> Stage:
    """Return a stage that no server stands behind."""
    stage = Stage(tmp_path, "127.0.0.1:9", "redis://127.0.0.1:9/0", study_text())
    for name in ("VEILSTREAM_KAFKA", "VEILSTREAM_REDIS"):
        del stage.environment[name]
    return stage


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, kafka: str, redis_url: str) -> Iterator[Stage]:
    """Yield a study whose stream has been folded to its end, and whose worker has been stopped."""
    stage = Stage(tmp_path_factory.mktemp("cli"), kafka, redis_url, study_text())
    try:
        stage.ensure_topics()
        stage.worker()
        for k in range(3):
            stage.produce(f"c{k}", write_csv(stage.folder / f"c{k}.csv", 200, k))
        assert [stage.code(f"c{k}") for k in range(3)] == [0, 0, 0]
        stage.caught_up()
        stage.final_estimate()
        assert stage.stop("w0") == 0, stage.said("w0")
        yield stage
    finally:
        stage.remove()


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("ridge", "rigde", "estimator.rigde: unknown key (did you mean 'ridge'?)"),
        ("loss", "los", "estimator.los: unknown key (did you mean 'loss'?)"),
        ('"logistic"', '"logit"', "estimator.loss"),
        ("max = 100", "max = -1", "min must be below max"),
        ("[window]", "[window", "not valid TOML"),
    ],
)
def test_a_wrong_study_file_ends_with_10_and_names_the_key(
    bare: Stage, old: str, new: str, word: str
) -> None:
    text = bare.study.read_text().replace('"logistic"', '"logistic"\nridge = 1e-3')
    bare.study.write_text(text.replace(old, new, 1))
    done = bare.run("study", "check", bare.study)
    assert done.returncode == 10, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_check_names_features_as_the_file_has_them(bare: Stage) -> None:
    bare.study.write_text(bare.study.read_text().replace("heat =", "heat_c ="))
    done = bare.run("study", "check", bare.study)
    assert "  heat_c: its coefficient is for a step of" in done.stdout
    source = write_csv(bare.folder / "data.csv", 20)
    source.write_text(source.read_text().replace("heat", "heat c"))
    done = bare.run("study", "check", bare.study, "--sample", source)
    assert "no column 'heat_c'; it has 'heat c': names are compared letter by letter" in done.stderr


def test_the_check_of_a_sample_is_loud(bare: Stage) -> None:
    source = write_csv(bare.folder / "data.csv", 200)
    source.write_text(source.read_text() + "50,0.5,maybe\n")
    done = bare.run("study", "check", bare.study, "--sample", source)
    assert done.returncode == 0, done.stderr
    assert "WARNING: --sample:" in done.stderr
    assert "NOT private" in done.stderr
    assert "sample_not_private:" in done.stdout
    assert "records: 201" in done.stdout
    assert "1 of 201 records cannot be used: 1 x column 'failed': unknown class" in done.stderr
    assert "because: 1 x column 'failed': unknown class" in done.stdout
    plain = bare.run("study", "check", bare.study, "--json")
    assert "NOT private" not in plain.stderr
    assert "sample_not_private" not in json.loads(plain.stdout)
    assert not {"latest:", "usual:"} & set(done.stdout.split())
    source.write_text(source.read_text().replace("yes", "1").replace("no", "0"))
    done = bare.run("study", "check", bare.study, "--sample", source)
    assert (done.returncode, done.stdout) == (20, "")
    assert "201 x column 'failed': unknown class" in done.stderr
    missing = bare.run("study", "check", bare.study, "--sample", bare.folder / "none.csv")
    assert missing.returncode != 0
    assert "none.csv" in missing.stderr


def test_a_study_file_that_is_not_there_ends_with_10(bare: Stage) -> None:
    done = bare.run("study", "check", bare.folder / "none.toml")
    assert (done.returncode, done.stdout) == (10, "")
    assert "No such file" in done.stderr


def test_an_unknown_setting_ends_with_10_and_a_hint(bare: Stage) -> None:
    bare.environment["VEILSTREAM_KAFKKA"] = "x:1"
    done = bare.run("worker", bare.study)
    assert done.returncode == 10
    assert "did you mean VEILSTREAM_KAFKA?" in done.stderr


@pytest.mark.parametrize("command", ["worker", "watch"])
def test_commands_that_need_servers_say_how_to_name_them(bare: Stage, command: str) -> None:
    done = bare.run(command, bare.study)
    assert done.returncode == 10
    both = " and VEILSTREAM_REDIS" if command == "worker" else ""
    assert f"set VEILSTREAM_KAFKA{both}, or run `veilstream up`" in done.stderr
    assert "VEILSTREAM_FOLDER" in done.stderr


def test_a_wrong_option_ends_with_2(bare: Stage) -> None:
    assert bare.run("worker", bare.study, "--instanse", "x").returncode == 2
    assert bare.run("nonsense").returncode == 2


def test_options_that_do_not_go_together_are_named(bare: Stage) -> None:
    done = bare.run("demo", "--study", "trains")
    assert done.returncode == 2
    assert "'shuttle', 'flights'" in done.stderr
    job = ("produce", bare.study, "--client", "x", "--source", "a.csv")
    done = bare.run(*job, "--begin", 1)
    assert done.returncode == 10
    assert "give --rate too" in done.stderr
    assert bare.run(*job, "--rate", 5, "--begin", -1).returncode == 2


def test_a_port_that_is_taken_ends_with_70_and_leaves_nothing_behind(bare: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        folder = bare.folder / "runtime"
        done = bare.run("up", "--folder", folder, "--kafka-port", port)
    assert done.returncode == 70, done.stderr
    assert str(port) in done.stderr
    rows = json.loads(bare.run("status", "--folder", folder, "--json").stdout)
    assert [row["running"] for row in rows] == [False, False]


def test_up_down_and_status_look_where_the_other_commands_look(
    bare: Stage, local_runtime: LocalRuntime
) -> None:
    """Workers find the local runtime in VEILSTREAM_FOLDER; `status` must speak of the same."""
    bare.environment["VEILSTREAM_FOLDER"] = str(local_runtime.folder)
    shown = bare.run("state", "show", bare.study, "--json")
    assert shown.returncode == 0, shown.stderr
    rows = json.loads(bare.run("status", "--json").stdout)
    assert [row["running"] for row in rows] == [True, True]
    again = bare.run("up", "--folder", local_runtime.folder)
    assert again.stderr == "Kafka and Redis run already\n"
    assert "VEILSTREAM_KAFKA=" in again.stdout


def test_a_study_without_privacy_is_loud_on_standard_error(bare: Stage) -> None:
    bare.study.write_text(study_text(privacy=OPEN))
    done = bare.run("study", "check", bare.study, "--json")
    assert done.returncode == 0
    assert "WARNING" in done.stderr
    assert json.loads(done.stdout)["privacy"]["mechanism"] == "none"


def test_study_init_writes_a_file_that_checks_and_never_overwrites(bare: Stage) -> None:
    path = bare.folder / "new.toml"
    assert bare.run("study", "init", path).returncode == 0
    assert bare.run("study", "check", path).returncode == 0
    path.write_text("mine")
    assert bare.run("study", "init", path).returncode == 10
    assert path.read_text() == "mine"


def test_study_init_keeps_a_history_for_ever(bare: Stage) -> None:
    path = bare.folder / "history.toml"
    assert bare.run("study", "init", path, "--event-time", "taken at").returncode == 0
    assert load_study(path).stream.retention == "forever"
    said = re.sub(r"\s*\n#\s*", " ", path.read_text())
    assert f"--event-time taken at, which must hold {TIMES}: " in said
    for command in (("study", "init"), ("produce",), ("backtest",)):
        assert TIMES in " ".join(bare.run(*command, "--help").stdout.split())


@pytest.mark.parametrize("said", ["2026-03-01T08:00:00Z", "1772352000", "1772352000000"])
def test_each_form_of_time_that_is_said_is_read(said: str) -> None:
    assert time_of(said, "at") == 1_772_352_000_000


@pytest.mark.parametrize("command", ["fit", "predict", "backtest", "produce"])
def test_a_source_has_one_name_and_its_earlier_one_is_taken(bare: Stage, command: str) -> None:
    told = bare.run(command, "--help").stdout
    assert "--source" in told
    assert "--input" not in told
    more = ("--client", "a") if command == "produce" else ()
    ends = [
        bare.run(command, bare.study, *more, option, "gone.csv")
        for option in ("--source", "--input")
    ]
    assert "No such option" not in ends[1].stderr
    assert (ends[0].returncode, ends[0].stderr) == (ends[1].returncode, ends[1].stderr)


def test_study_init_writes_a_file_for_many_sites(bare: Stage) -> None:
    path = bare.folder / "sites.toml"
    kind = ("--kind", "noisy-mle", "--clients", "20", "--records", "200000")
    assert bare.run("study", "init", path, *kind).returncode == 0
    done = bare.run("study", "check", path)
    assert (done.returncode, done.stderr) == (0, "")
    study = load_study(path)
    assert study.estimator.kind == "noisy-mle"
    assert study.estimator.method is not None
    assert (study.estimator.method["sites"], study.window.records) == (20, 2000)
    # each key of the table is explained above it
    assert all(f"{key}:" in path.read_text() for key in ("sites", "largest_share"))


@pytest.mark.takes("plans of every kind")
def test_study_init_says_when_there_will_be_no_intervals(
    bare: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.api.planning.EPSILONS", ())
    size = ("--records", "60", "--clients", "3")
    done = bare.run("study", "init", bare.folder / "small.toml", *size)
    assert done.returncode == 0
    [warning] = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert "60 records are too few for intervals at epsilon 1; enough would be about" in warning


def test_fit_gives_an_estimate_message_as_json(bare: Stage) -> None:
    source = write_csv(bare.folder / "data.csv", 400)
    done = bare.run("fit", bare.study, "--input", source, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    message = read_estimate(done.stdout.encode())
    assert set(document) == {*EstimateMessage.__struct_fields__, "type"}
    assert json.loads(msgspec.json.encode(message)) == document
    assert (message.records, message.releases, message.clients) == (400, 20, 1)
    assert [c.name for c in message.coefficients] == ["intercept", "heat", "load"]


def test_fit_reads_standard_input_anew_and_keeps_nothing_of_it(bare: Stage) -> None:
    text = HEADER + "".join(lines(60))
    for _ in range(2):
        done = bare.run_beside(
            "fit", bare.study, "--input", "-", "--json", stdin=text, before=bare.there
        )
        assert json.loads(done.stdout)["records"] == 60
    assert {path.suffix for path in bare.folder.rglob("*")} == {".toml"}


@pytest.mark.takes("plans of every kind")
def test_a_study_is_designed_written_and_checked(
    bare: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # other budgets have rows of their own in `tests/unit/test_design.py`
    monkeypatch.setattr("pipeline.api.planning.EPSILONS", ())
    size = ("--records", "30000", "--clients", "4")
    file = bare.folder / "designed.toml"
    done = bare.run(
        "study", "design", "--features", "4", "--epsilon", "2", *size, "--write", file, "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    study = load_study(file)
    assert (len(study.data.features), study.privacy.epsilon) == (4, 2.0)
    assert study.window.records == found["own"]["design"]["changes"]["window.records"]
    done = bare.run("study", "check", file)
    assert done.returncode == 0, done.stderr
    assert "they come: at first after about " in done.stdout
    kept = file.read_text()
    done = bare.run("study", "design", file, *size, "--write", file)
    assert (done.returncode, file.read_text()) == (10, kept)
    assert "--write" in done.stderr
    done = bare.run("study", "design", bare.study, "--records", "3000", "--clients", "4")
    assert done.returncode == 0, done.stderr
    for text in ("window.records = ", "first", "typical", "+- typical", "renewable", "ldp-sgd"):
        assert text in done.stdout
    assert "3,000 records are too few at epsilon" in done.stdout
    for wrong in ((), (bare.study, "--features", "3")):
        done = bare.run("study", "design", *wrong)
        assert done.returncode == 10, done.stderr
        assert "give a study file, or --features" in done.stderr


def test_fit_without_privacy_says_what_the_noise_costs(bare: Stage) -> None:
    source = write_csv(bare.folder / "plain.csv", 200)
    done = bare.run("fit", bare.study, "--input", source, "--without-privacy", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["privacy"]["mechanism"] == "none"
    assert found["study"] == f"{bare.task.study.name}-open"
    assert found["status"] == "ready"
    done = bare.run("fit", bare.study, "--input", source, "--compare")
    assert done.returncode == 0, done.stderr
    assert "nobody's data is protected" in done.stderr
    assert "what privacy costs" in done.stdout
    assert "exact: ready" in done.stdout
    done = bare.run("fit", bare.study, "--input", source, "--compare", "--json")
    assert done.returncode != 0
    assert "--compare" in done.stderr


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("heat,failed\n1,yes\n", "has no column 'load'"),
        ("heat,load,failed\n", "holds no records"),
        ("", "header"),
    ],
)
def test_fit_on_a_file_that_does_not_fit_ends_with_20(bare: Stage, content: str, word: str) -> None:
    source = bare.folder / "data.csv"
    source.write_text(content)
    done = bare.run("fit", bare.study, "--input", source, "--json")
    assert (done.returncode, done.stdout) == (20, ""), done.stderr
    assert word in done.stderr


def test_watch_prints_the_newest_estimate_and_ends_after_its_count(live: Stage) -> None:
    done = live.run("watch", live.study, "--json", "--count", "1")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert read_estimate(line.encode()) == live.estimates()[-1]


def test_watch_in_lines_from_the_beginning(live: Stage) -> None:
    done = live.run("watch", live.study, "--from", "beginning", "--count", "2")
    assert len(done.stdout.splitlines()) == 2
    assert "heat=" in done.stdout


def test_state_show_prints_each_partition(live: Stage) -> None:
    shown = json.loads(live.run("state", "show", live.study, "--json").stdout)
    assert [row["next_offset"] for row in shown["partitions"]] == live.watermarks()
    assert sum(row["clients"] for row in shown["partitions"]) == 3
    assert live.run("state", "show", live.study).returncode == 0


def test_state_verify_tells_a_damaged_state_and_rebuild_mends_it_bit_by_bit(live: Stage) -> None:
    assert live.verified()
    keys = sorted(live.redis.scan_iter(f"veil:{{{live.task.study.name}}}:[0-9]*"))
    before = {key: live.redis.hgetall(key) for key in keys}
    key = next(key for key in keys if key.endswith(b":state"))
    counts = live.redis.hget(key, "sums.0.counts")
    assert counts is not None
    live.redis.hset(key, "sums.0.counts", counts[:-1] + bytes([counts[-1] ^ 1]))
    done = live.run("state", "verify", live.study, "--json")
    assert done.returncode == 40
    assert "'sums.0.counts'" in done.stderr
    assert "is damaged" in done.stderr
    live.redis.delete(*keys)
    assert live.run("state", "rebuild", live.study, "--yes").returncode == 0
    assert {key: live.redis.hgetall(key) for key in keys} == before
    assert live.verified()


def test_state_verify_says_how_far_the_log_goes_on(live: Stage) -> None:
    done = live.run("state", "verify", live.study, "--json")
    assert [row["unfolded"] for row in json.loads(done.stdout)["partitions"]] == [0, 0]
    keys = list(live.redis.scan_iter(f"veil:{{{live.task.study.name}}}:[0-9]*"))
    held = {key: live.redis.dump(key) for key in keys}
    live.redis.delete(*keys)
    try:
        done = live.run("state", "verify", live.study)
        assert done.returncode == 0
        assert "that no worker has folded" in done.stdout
    finally:
        for key, value in held.items():
            live.redis.restore(key, 0, value)
    assert live.verified()


def test_a_state_of_another_revision_is_refused_with_40(live: Stage) -> None:
    other = live.folder / "other.toml"
    other.write_text(live.study.read_text().replace("epsilon = 2.0", "epsilon = 3.0"))
    done = live.run("state", "show", other)
    assert done.returncode == 40
    assert "revision" in done.stderr
    done = live.run("worker", other, "--instance", "w9")
    assert done.returncode == 40, done.stderr


def test_a_mistyped_source_does_not_bind_the_client_to_it(live: Stage) -> None:
    source = write_csv(live.folder / "right.csv", 20, 10)
    client = ["produce", live.study, "--client", "z", "--quiet", "--source"]
    assert live.run(*client, live.folder / "wrong.csv").returncode == 20
    done = live.run(*client, source)
    assert done.returncode == 0, done.stderr


def test_a_worker_runs_from_a_folder_with_nothing_set_but_the_addresses(
    live: Stage, tmp_path: Path
) -> None:
    """The default folder is relative to where the worker was started, and it moves about."""
    stage = Stage(tmp_path, live.settings.kafka, live.settings.redis, study_text())
    folder = stage.environment.pop("VEILSTREAM_FOLDER")
    stage.start("w", "worker", stage.study.name, before=stage.there)
    stage.environment["VEILSTREAM_FOLDER"] = folder
    try:
        stage.produced("c", write_csv(tmp_path / "c.csv", 20))
        stage.caught_up()
        assert (tmp_path / ".veilstream" / "workers").is_dir()
        assert stage.stop("w") == 0
    finally:
        stage.remove()


def test_tables_and_reports_are_whole_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = Table()
    for name in ("first", "second"):
        grid.add_column(name)
    grid.add_row("x" * 150, "y" * 150)
    show(Group(grid))
    said = capsys.readouterr().out
    assert "x" * 150 in said
    assert "y" * 150 in said
    assert "…" not in said
