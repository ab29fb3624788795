"""`veilstream predict`, and the model files that `fit` and `watch` write for it."""

from __future__ import annotations

import csv
import io
import json
import re
import stat
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from pipeline.api import feed
from pipeline.cli.main import main
from pipeline.cli.predict import Summary, write_predictions
from pipeline.errors import ConfigError, DataError, NumericError
from pipeline.estimators.estimate import FAR
from pipeline.learning import StreamClassifier
from pipeline.messages.model_file import check_origin
from pipeline.methods import task_of
from pipeline.prediction.estimators import LinearClassifier
from pipeline.study_file.load import parse_study
from producers.sources import open_once
from tests.stage import HEADER, OPEN, Stage, lines, study_text, write_csv

#: Arguments to exit code, standard output and standard error.
Runner: TypeAlias = Callable[..., tuple[int, str, str]]
CANARY = "c4n4ry"
BAD = f"""{CANARY},0,yes
50,,no

50,0,{CANARY}
50,0
"50
",0.5,no
50,nan,yes
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Return a study that no server stands behind, with a model file that `fit` has written."""
    folder = tmp_path_factory.mktemp("predict")
    stage = Stage(folder, "127.0.0.1:9", "redis://127.0.0.1:9/0", study_text(privacy=OPEN))
    source = write_csv(folder / "train.csv", 300)
    done = stage.ran("fit", stage.study, "--input", source, "--save-model", model_of(stage))
    assert f"wrote {model_of(stage)}" in done.stderr
    return stage


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Return what runs the program in this process: arguments to code, output and messages."""
    for name in ("VEILSTREAM_KAFKA", "VEILSTREAM_REDIS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["veilstream", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


def model_of(stage: Stage) -> Path:
    return stage.folder / "model.json"


def arguments(stage: Stage, source: object, *options: object) -> list[object]:
    return ["predict", stage.study, "--input", source, "--model", model_of(stage), *options]


def written(text: str, model: LinearClassifier, *, form: str = "csv", as_json: bool = False) -> str:
    """Return the lines for some input, in this process."""
    out = io.StringIO()
    source = open_once("-", form=form, stream=io.BytesIO(text.encode()))
    write_predictions(model, source, out, as_json=as_json)
    return out.getvalue()


def test_the_lines_are_the_model_s_own_predictions(bare: Stage, run: Runner) -> None:
    source = write_csv(bare.folder / "test.csv", 250, seed=1)
    code, out, err = run(*arguments(bare, source))
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["line", "decision", "class", "probability", "reason"]
    assert [int(row["line"]) for row in rows] == list(range(2, 252))
    model = LinearClassifier.load(model_of(bare))
    records = list(csv.DictReader(source.open()))
    assert [float(row["decision"]) for row in rows] == model.decision_function(records).tolist()
    assert [row["class"] for row in rows] == model.predict(records).tolist()
    chances = model.predict_proba(records)[:, 1].tolist()
    assert [float(row["probability"]) for row in rows] == chances
    hits = [row["class"] == record["failed"] for row, record in zip(rows, records, strict=True)]
    assert "250 records: 250 predictions\n" in err
    assert f"accuracy {sum(hits) / 250:.4f}, balanced accuracy 0." in err
    ups = [c for c, r in zip(chances, records, strict=True) if r["failed"] == "yes"]
    downs = [c for c, r in zip(chances, records, strict=True) if r["failed"] == "no"]
    area = sum(up > down for up in ups for down in downs) / (len(ups) * len(downs))
    # scores are compared in half precision: near ones tie
    assert float(re.findall(r"AUC (0\.\d{4})", err)[0]) == pytest.approx(area, abs=1e-3)
    assert "of 250 records whose class is known" in err


def test_fit_s_model_file_is_that_of_the_classifier_in_this_process(bare: Stage) -> None:
    records = list(csv.DictReader((bare.folder / "train.csv").open()))
    learner = StreamClassifier(bare.study).fit(records, [record["failed"] for record in records])
    written_by_fit = LinearClassifier.load(model_of(bare)).file
    assert written_by_fit.coefficients == learner.to_model().file.coefficients
    # 300 records in windows of 20: the first of them were linearised at fits of their own
    said = learner.estimate_.status, learner.estimate_.reason
    assert (written_by_fit.status, written_by_fit.reason) == said == ("warming", FAR)


def test_values_outside_their_range_are_counted_for_people(
    bare: Stage, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = bare.folder / "wide.csv"
    source.write_text(HEADER + "".join(lines(40)) + "137.25,0,yes\n-1,9,no\n")
    said = "3 values outside the public ranges, cut to them: heat 2, load 1"
    code, out, err = run(*arguments(bare, source))
    assert (code, said in err, said in out) == (0, True, False)
    # a fit's count is for the person at the terminal, not for a log collector
    code, out, err = run("fit", bare.study, "--input", source)
    assert (code, said in out + err) == (0, False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, err = run("fit", bare.study, "--input", source)
    assert (code, said in err, said in out) == (0, True, False)
    assert "137.25" not in out + err


def test_bad_records_get_a_reason_without_their_value_and_the_code_stays_0(bare: Stage) -> None:
    done = bare.run_beside(*arguments(bare, "-", "--json"), stdin=HEADER + lines(1)[0] + BAD)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["line"], row["reason"]) for row in found] == [
        (2, None),
        (3, "column 'heat': not a number"),
        (4, "column 'load': missing"),
        (6, None),
        (7, "2 fields where 3 are needed"),
        (8, None),
        (10, "column 'load': not a finite number"),
    ]
    assert [row["decision"] is None for row in found] == [row["class"] is None for row in found]
    assert [row["decision"] is None for row in found] == [bool(row["reason"]) for row in found]
    assert CANARY not in done.stdout + done.stderr
    assert "7 records: 3 predictions, 4 without (the output says why)" in done.stderr
    assert "of 2 records whose class is known" in done.stderr
    assert not (bare.folder / "home").exists()  # of standard input nothing is kept


def test_a_file_without_records_is_said_to_be_one(bare: Stage) -> None:
    source = bare.folder / "none.csv"
    source.write_text(HEADER)
    done = bare.run("predict", bare.study, "--input", source, "--model", model_of(bare))
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["line,decision,class,probability,reason"]
    assert done.stderr.splitlines()[-1].startswith("WARNING: the input holds no records")


def test_json_lines_are_read_and_the_response_need_not_be_there(bare: Stage) -> None:
    model = LinearClassifier.load(model_of(bare))
    text = '{"heat": 80, "load": "0.5"}\n{"heat": 80}\n{"heat": 80, "load": 0.5, "failed": "yes"}\n'
    found = [
        json.loads(row) for row in written(text, model, form="jsonl", as_json=True).splitlines()
    ]
    assert [row["reason"] for row in found] == [None, "column 'load': missing", None]
    assert found[0]["decision"] == found[2]["decision"] > 0
    # without the response column there is nothing to score
    unscored = Summary(model)
    unscored.records = unscored.predicted = 2
    assert list(unscored.lines()) == ["2 records: 2 predictions"]
    assert written("heat,load\n80,0.5\n", model).splitlines()[1].startswith("2,")
    with pytest.raises(DataError, match="no column 'load'; the study needs heat, load"):
        written("heat,failed\n80,yes\n", model)


def test_generalised_dwd_has_no_column_of_probabilities(bare: Stage) -> None:
    text = bare.study.read_text().replace('"logistic"', '"gdwd"')
    model = StreamClassifier(text).fit([[90, 0.5], [10, -0.5]] * 40, ["yes", "no"] * 40).to_model()
    header, first = written("heat,load\n90,0.5\n", model).splitlines()
    assert header == "line,decision,class,reason"
    assert first.endswith(",yes,")
    [row] = written("heat,load\n90,0.5\n", model, as_json=True).splitlines()
    assert list(json.loads(row)) == ["line", "decision", "class", "reason"]


def test_the_output_file_is_its_owner_s_and_never_the_input(bare: Stage, run: Runner) -> None:
    source, output = write_csv(bare.folder / "in.csv", 3), bare.folder / "out.csv"
    code, out, err = run(*arguments(bare, source, "--output", output))
    assert (code, out) == (0, ""), err
    assert len(output.read_text().splitlines()) == 4
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    before = source.read_bytes()
    code, _, err = run(*arguments(bare, source, "--output", source))
    assert code == 10
    assert "it is the input" in err
    code, _, err = run(*arguments(bare, source, "--output", bare.folder / "none" / "out.csv"))
    assert (code, "--output: cannot write" in err) == (10, True)
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("max = 100", "max = 90", "belongs to revision"),
        ('name = "t-', 'name = "u-', "the operator must name the two that belong together"),
    ],
)
def test_a_model_of_another_study_or_revision_ends_with_10(
    bare: Stage, run: Runner, old: str, new: str, word: str
) -> None:
    other = bare.folder / "other.toml"
    other.write_text(bare.study.read_text().replace(old, new))
    source = bare.folder / "train.csv"
    code, out, err = run("predict", other, "--input", source, "--model", model_of(bare))
    assert (code, out) == (10, "")
    assert word in err


def test_a_model_of_a_trial_is_for_predictions_of_the_trial() -> None:
    task = task_of(parse_study(study_text()))
    with pytest.raises(ConfigError, match="put `veilstream play` in the place of `veilstream`"):
        check_origin(task, f"{task.study.name}-trial", task.revision, "model.json")


def test_without_a_model_and_without_servers_it_says_how_to_name_them(
    bare: Stage, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bare.folder)
    code, _, err = run("predict", bare.study, "--input", bare.folder / "train.csv")
    assert code == 10
    assert "VEILSTREAM_KAFKA" in err


def test_watch_that_saves_a_model_follows_nothing(bare: Stage, run: Runner) -> None:
    code, _, err = run("watch", bare.study, "--save-model", bare.folder / "m.json", "--count", 2)
    assert (code, "--save-model ends at once" in err) == (2, True)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(bare: Stage) -> None:
    model = LinearClassifier.load(model_of(bare))
    # a column of no study makes few records long
    made = [f"{line.strip()},{'z' * 400}\n" for line in lines(1000)]

    def peak(copies: int) -> int:
        path = bare.folder / f"{copies}.csv"
        with path.open("w") as file:
            file.write(f"{HEADER.strip()},note\n")
            for _ in range(copies):
                file.writelines(made)
        with (bare.folder / "lines").open("w") as out:
            tracemalloc.start()
            try:
                source = open_once(str(path))
                assert write_predictions(model, source, out, as_json=False).predicted == (
                    1000 * copies
                )
                return tracemalloc.get_traced_memory()[1]
            finally:
                source.close()
                tracemalloc.stop()

    peak(1)  # what is made once and kept
    # both have more than a source reads at once
    few, many = peak(4), peak(7)
    # 3,000 records that were kept would be six times the allowance, which is for the allocator
    assert many < few + 100_000, (few, many)


@pytest.mark.slow
def test_the_live_estimate_is_the_model_if_none_is_named(
    tmp_path: Path, kafka: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, kafka, redis_url, study_text())
    records = write_csv(tmp_path / "ward.csv", 200)
    try:
        stage.ensure_topics()
        monkeypatch.setattr(feed, "PATIENCE_SECONDS", 0.3)
        with pytest.raises(NumericError, match="has no estimate yet: the operator must"):
            feed.newest_message(stage.task.study, stage.settings)
        stage.start("watch", "watch", stage.study, "--count", 1)
        stage.start("ward", "produce", stage.study, "--client", "ward", "--source", records)
        # neither waits in silence
        stage.until(
            lambda: "no estimate yet, waiting" in stage.said("watch"), "a word of the watch"
        )
        assert "--timeout SECONDS" in stage.said("watch")
        wait = "`veilstream worker` must be running on this study"
        stage.until(lambda: wait in stage.said("ward"), "a word of the client")
        stage.worker()
        stage.ended("ward")
        stage.ended("watch")
        final = stage.final_estimate()
        stage.ran("watch", stage.study, "--save-model", model_of(stage))
        model = LinearClassifier.load(model_of(stage))
        assert model.file.coefficients == final.coefficients
        assert model.file.privacy == final.privacy
        done = stage.ran("predict", stage.study, "--input", records)
        assert done.stdout == written(records.read_text(), model)
        assert len(done.stdout.splitlines()) == 201
    finally:
        stage.remove()
