"""Regression studies at the command line: check, fit, predict, and a live stream."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from pathlib import Path

import msgspec
import pytest

from pipeline.api.table import spread_line, title
from pipeline.learning import StreamRegressor
from pipeline.messages.estimate import read_estimate
from pipeline.prediction.estimators import LinearRegressor
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRecord
from pipeline.stream.merge import estimate_of
from pipeline.stream.partition import Partition
from tests.stage import OPEN, PRIVATE, Stage, study_text

RESPONSE = '{ name = "failed", positive = "yes", negative = "no" }'
NUMBER = '{ name = "power", kind = "number", min = 0, max = 100 }'
COUNT = '{ name = "visits", kind = "count", max = 20 }'
CANARY = "c4n4ry"


def linear(privacy: str = PRIVATE, more: str = "") -> str:
    text = study_text(privacy=privacy).replace(RESPONSE, NUMBER)
    return text.replace('loss = "logistic"', f'loss = "linear"\n{more}')


def poisson(privacy: str = PRIVATE) -> str:
    text = study_text(privacy=privacy).replace(RESPONSE, COUNT)
    return text.replace('loss = "logistic"', 'loss = "poisson"')


def write(path: Path, count: int, *, counts: bool = False) -> Path:
    """Write good records: 40 + 0.3 heat + 5 load and noise, or counts of a few."""
    chance = random.Random(1)
    with path.open("w") as file:
        file.write(f"heat,load,{'visits' if counts else 'power'}\n")
        for _ in range(count):
            heat, load = chance.uniform(0, 100), chance.uniform(-1, 1)
            value = 40 + 0.3 * heat + 5 * load + chance.gauss(0, 3)
            shown = int(value / 20) if counts else f"{value:.4f}"
            file.write(f"{heat:.4f},{load:.4f},{shown}\n")
    return path


def stage_of(folder: Path, text: str) -> Stage:
    """Return a study that no server stands behind."""
    return Stage(folder, "127.0.0.1:9", "redis://127.0.0.1:9/0", text)


def test_fit_predict_and_their_files(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, linear(OPEN))
    source, model = write(tmp_path / "train.csv", 400), tmp_path / "model.json"
    done = stage.ran("fit", stage.study, "--input", source, "--save-model", model)
    assert "linear regression, unit scaling" in done.stdout
    assert "noise scale (standard deviation of the residuals): 3." in done.stdout
    assert "(estimated)" in done.stdout
    records = list(csv.DictReader(source.open()))
    done = stage.ran("predict", stage.study, "--input", source, "--model", model)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert list(rows[0]) == ["line", "prediction", "reason"]
    said = [float(row["prediction"]) for row in rows]
    assert said == LinearRegressor.load(model).predict(records).tolist()
    off = [abs(float(r["power"]) - value) for r, value in zip(records, said, strict=True)]
    absolute, square = sum(off) / 400, math.sqrt(sum(error * error for error in off) / 400)
    assert f"MAE {absolute:.6g}, RMSE {square:.6g}, of 400 records whose response" in done.stderr
    assert "outside the public range" not in done.stderr
    learner = StreamRegressor(stage.study).fit(records, [record["power"] for record in records])
    assert LinearRegressor.load(model).file.coefficients == learner.estimate_.coefficients


@pytest.mark.parametrize("privacy", [OPEN, PRIVATE], ids=["open", "private"])
@pytest.mark.parametrize("counts", [False, True], ids=["linear", "poisson"])
def test_an_estimate_is_json(tmp_path: Path, counts: bool, privacy: str) -> None:
    stage = stage_of(tmp_path, poisson(privacy) if counts else linear(privacy))
    source = write(tmp_path / "train.csv", 400, counts=counts)
    done = stage.ran("fit", stage.study, "--input", source, "--json")
    dispersion = json.loads(done.stdout)["dispersion"]
    if privacy == OPEN and not counts:
        # the variance of the noise is 9, and 400 records tell it with an error of 0.64
        assert 9 - 4 * 0.64 < dispersion < 9 + 4 * 0.64


def test_bad_records_get_a_reason_and_clipped_responses_are_said(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, linear(OPEN))
    model = tmp_path / "model.json"
    source = write(tmp_path / "train.csv", 100)
    assert stage.run("fit", stage.study, "--input", source, "--save-model", model).returncode == 0
    odd = tmp_path / "odd.csv"
    odd.write_text(f"heat,load,power\n50,0,1000\n{CANARY},0,5\n50,0,{CANARY}\n50,0,nan\n50,0,55\n")
    done = stage.ran("predict", stage.study, "--input", odd, "--model", model, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(row) for row in rows] == [["line", "prediction", "reason"]] * 5
    assert [row["reason"] for row in rows] == [
        None,
        "column 'heat': not a number",
        None,
        None,
        None,
    ]
    assert rows[1]["prediction"] is None
    assert "5 records: 4 predictions, 1 without" in done.stderr
    assert "of 2 records whose response is known" in done.stderr
    assert "outside the public range of the study: 1 of these responses" in done.stderr
    assert CANARY not in done.stdout + done.stderr


@pytest.mark.parametrize("rows", ["50,0,-3\n", f"50,0,{CANARY}\n"])
def test_fit_leaves_the_slots_of_bad_counts_empty(tmp_path: Path, rows: str) -> None:
    stage = stage_of(tmp_path, poisson(OPEN))
    source = write(tmp_path / "counts.csv", 200, counts=True)
    source.write_text(source.read_text() + rows)
    done = stage.ran("fit", stage.study, "--input", source)
    assert "1 of 201 records could not be used" in done.stderr
    assert "poisson regression, unit scaling, in log mean of" in done.stdout
    assert "dispersion (variance / mean): 0." in done.stdout
    assert CANARY not in done.stdout + done.stderr


def test_study_check_warns_of_a_threshold_above_the_range(tmp_path: Path) -> None:
    wide = stage_of(tmp_path, linear(more="residual_bound = 150"))
    done = wide.run("study", "check", wide.study)
    assert done.returncode == 0, done.stderr
    assert "WARNING: estimator.residual_bound: 150 is more than the width" in done.stderr
    usual = stage_of(tmp_path, linear(more="residual_bound = 100"))
    assert "residual_bound" not in usual.run("study", "check", usual.study).stderr


@pytest.mark.parametrize(
    ("half_life", "advice"),
    # three coefficients: private intervals need 10 releases of 20 slots, open ones 30 records
    [(69, "half_life = 70 or more"), (70, None)],
)
def test_study_check_says_on_how_many_records_a_half_life_lets_an_estimate_rest(
    tmp_path: Path, half_life: int, advice: str | None
) -> None:
    for privacy in (PRIVATE, OPEN):
        text = study_text(privacy=privacy).replace(
            'loss = "logistic"',
            f'loss = "logistic"\nforgetting = {{ half_life = {half_life}, of = "records" }}',
        )
        stage = stage_of(tmp_path, text)
        found = json.loads(stage.run("study", "check", stage.study, "--json").stdout)["forgetting"]
        # 1 + r over 1 - r buckets of an eighth of a half-life, r = 2^-(1/8), but for the buckets
        r = 2**-0.125
        wanted = (1 + r) / (1 - r) * half_life / 8
        assert found["effective_records_at_most"] == pytest.approx(wanted, rel=1e-3)
        said = found.get("advice")
        if privacy == OPEN or advice is None:
            assert said is None
        else:
            assert advice in said


CLASSES = "standard deviation, in its class counts: "


@pytest.mark.parametrize(
    ("text", "said", "unsaid"),
    [
        (linear(), ["sum of squared slopes: ", "residual bound: 100", "advice: the"], CLASSES),
        (linear(more="noise_scale = 2"), ["counts: record slots"], "squared slopes: "),
        pytest.param(
            poisson(), ["sum of squared slopes: ", "largest mean: 20", "lower it to"], "residual",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            study_text(), [CLASSES, "all noise grows in proportion: 1"], "sum of squared",
            marks=pytest.mark.slow,
        ),
        (linear(OPEN), ["kind: number", "mechanism: none"], "noise:"),
    ],
)  # fmt: skip
def test_study_check_speaks_of_the_study_s_own_noise(
    tmp_path: Path, text: str, said: list[str], unsaid: str
) -> None:
    stage = stage_of(tmp_path, text)
    done = stage.ran("study", "check", stage.study)
    for words in said:
        assert words in done.stdout
    assert unsaid not in done.stdout
    assert "None" not in done.stdout
    numbers = [word for word in done.stdout.split() if word.replace(".", "", 1).isdigit()]
    assert max(len(word) for word in numbers) < 12
    exact = json.loads(stage.run("study", "check", stage.study, "--json").stdout)
    if "noise" in exact:
        assert (
            exact["noise"]["gradient_sd"] == stage.task.update_channels.gradient.standard_deviation
        )


def test_what_a_table_says_of_the_spread(tmp_path: Path) -> None:
    source = write(tmp_path / "train.csv", 100)
    stage = stage_of(tmp_path, linear(more="noise_scale = 2.5"))
    done = stage.run("fit", stage.study, "--input", source, "--json")
    message, study = read_estimate(done.stdout.encode()), stage.task.study
    assert title(message, study).endswith("linear regression, unit scaling, in the unit of power")
    assert spread_line(message, study).endswith("2.5 (known)")
    unknown = stage_of(tmp_path, linear()).task.study
    told = msgspec.structs.replace(message, dispersion=0.0)
    assert spread_line(told, unknown).endswith("residuals): 0 (estimated)")
    classes = stage_of(tmp_path, study_text()).task.study
    assert spread_line(message, classes) == ""


@pytest.mark.slow
def test_a_live_linear_study_ends_in_the_fold_of_its_log(
    tmp_path: Path, kafka: str, redis_url: str
) -> None:
    stage = Stage(tmp_path, kafka, redis_url, linear(more="residual_bound = 30"))
    source, model = write(tmp_path / "ward.csv", 400), tmp_path / "model.json"
    try:
        stage.ensure_topics()
        stage.worker()
        stage.produced("ward", source)
        final = stage.final_estimate()
        assert final.releases == 20
        assert final.loss == "linear"
        assert final.class_weights == {}
        assert stage.verified()
        folded = [Partition.empty(stage.task) for _ in range(2)]
        for number, partition in enumerate(folded):
            log = [
                OfflineRecord(r.offset, r.key, r.value)
                for r in stage.releases()
                if r.partition == number
            ]
            assert Reducer(stage.task).fold(partition, log) == []
        offline = estimate_of(stage.task, folded)
        values = [50 + 50 * value for value in offline.coefficients.tolist()[:1]]
        values += [50 * value for value in offline.coefficients.tolist()[1:]]
        assert [coefficient.value for coefficient in final.coefficients] == values
        assert (final.status, final.records) == (offline.status, offline.records)
        stage.ran("watch", stage.study, "--save-model", model)
        done = stage.ran("predict", stage.study, "--input", source)
        assert "MAE " in done.stderr
        assert LinearRegressor.load(model).file.coefficients == final.coefficients
    finally:
        stage.remove()
