"""A method of one file and one line of a registry has the whole life of every other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.methods import Registry
from pipeline.study_file.load import parse_study
from tests import toy_mean
from tests.stage import Stage

KIND = "private-mean"
#: What an installer would write beside the module of a package of one's own.
METADATA = "Metadata-Version: 2.1\nName: private-mean\nVersion: 1.0\n"
ENTRY_POINTS = f"[veilstream.methods]\n{KIND} = private_mean:METHOD\n"
#: What Python finds on its way where it is started with the package.
INSTALLED = """\
import sys
from pipeline import methods
from pipeline.study_file import load
sys.path.insert(0, {folder!r})
methods.METHODS = load.METHODS = methods.Registry()
"""
TEXT = f"""\
[study]
name = "toy-{random.Random().getrandbits(48):x}"
[data]
response = {{ name = "y", kind = "number", min = 0, max = 10 }}
[data.features]
x = {{ min = 0, max = 1 }}
[estimator]
kind = "{KIND}"
loss = "linear"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 2.0
delta = 1e-6
[window]
records = 50
[stream]
partitions = 2
max_in_flight_windows = 0
publish = {{ releases = 4, seconds = 0.2, pause = 0.05 }}
"""
MEAN, RECORDS = 4.0, 1500


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the toy as a package that somebody else has installed."""
    folder = tmp_path / "site"
    described = folder / "private_mean-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / "private_mean.py").write_text(Path(toy_mean.__file__).read_text())
    (described / "METADATA").write_text(METADATA)
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("pipeline.methods.METHODS", registry := Registry())
    monkeypatch.setattr("pipeline.study_file.load.METHODS", registry)
    return folder


@pytest.fixture
def stage(installed: Path, tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, TEXT)
    made.before = INSTALLED.format(folder=str(installed))
    made.environment["PYTHONPATH"] = str(installed)
    try:
        yield made
    finally:
        made.remove()


def source(folder: Path, name: str, seed: int) -> Path:
    chance = random.Random(seed)
    rows = [f"{chance.random():.4f},{chance.gauss(MEAN, 1):.4f}" for _ in range(RECORDS)]
    path = folder / f"{name}.csv"
    path.write_text("x,y\n" + "\n".join(rows) + "\n")
    return path


def test_a_toy_method_lives_the_whole_life(stage: Stage, tmp_path: Path) -> None:
    """One runtime for all of it: it takes the seconds of a worker's two starts."""
    checked = stage.ran("study", "check", stage.study, "--json", apart=True)
    facts = json.loads(checked.stdout)
    assert facts["estimator"] == {"kind": KIND, "method": "the mean of the response"}
    assert facts["noise"]["sum_sd"] > 0

    stage.ensure_topics()
    stage.worker()
    one, two = (source(tmp_path, name, seed) for seed, name in enumerate(("north", "south")))
    stage.produce("north", one)
    stage.until(lambda: sum(stage.watermarks()) >= 5, "some releases are folded")
    stage.kill("w0")
    stage.produce("south", two)
    stage.ended("north")
    stage.ended("south")
    stage.worker()
    stage.caught_up()
    estimate = stage.final_estimate()
    assert estimate.status == "ready"
    mean, slope = estimate.coefficients
    assert mean.interval is not None
    assert mean.interval[0] < MEAN < mean.interval[1]
    assert slope.interval is None
    assert estimate.records == 2 * RECORDS
    assert stage.verified()
    [(spent,)] = stage.query("north", "SELECT epsilon FROM charged")
    assert spent == 2.0

    seen = stage.run("watch", stage.study, "--json", "--from", "beginning", "--count", 1)
    assert json.loads(seen.stdout)["estimator"] == KIND
    stage.ran("replay", stage.study, "--check", "--json")

    tested = stage.ran("backtest", stage.study, "--input", one, "--json", "--simulate", 1)
    pooled = json.loads(tested.stdout)["pooled"]["coefficients"]
    # what a backtest compares with is what the method says that it aims at
    rows = [float(line.split(",")[1]) for line in one.read_text().splitlines()[1:]]
    assert pooled[0] == pytest.approx(sum(rows) / len(rows), abs=1e-3)
    doctor = stage.ran(
        "doctor", "coverage", stage.study, "--records", 4000, "--replications", 8, "--json"
    )
    assert json.loads(doctor.stdout)["coverage"]["ready"] == 1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('loss = "linear"', 'loss = "poisson"'),
        ("[privacy]", "path = { eta0 = 1.0 }\n[privacy]"),
        ("[privacy]", "method = { least = 200 }\n[privacy]"),
    ],
)
def test_its_study_file_is_strict(installed: Path, change: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"estimator\.(method|loss|path)|data\.response"):
        parse_study(TEXT.replace(change, words))
    parse_study(TEXT)
