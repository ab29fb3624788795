"""Many sites on a real Kafka and Redis: a crash, a site that lies, a replay and a backtest."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sites import name_of
from tests.stage import Stage, lent

SITES, RECORDS = 5, 2400
TEXT = f"""\
[study]
name = "sites-{random.Random().getrandbits(48):x}"
[data]
response = {{ name = "y", positive = "1", negative = "0" }}
[data.features]
x = {{ min = -1, max = 1 }}
z = {{ min = -1, max = 1 }}
[estimator]
kind = "KIND"
loss = "logistic"
method = {{ sites = {SITES} }}
[privacy]
mechanism = "discrete-gaussian"
epsilon = 8.0
delta = 1e-5
[window]
records = 300
[stream]
partitions = 2
max_in_flight_windows = 1
publish = {{ releases = 4, seconds = 0.2, pause = 0.05 }}
"""


@pytest.fixture(params=["noisy-mle", pytest.param("noisy-copies", marks=pytest.mark.slow)])
def stage(
    request: pytest.FixtureRequest, tmp_path: Path, kafka: str, redis_url: str
) -> Iterator[Stage]:
    text = TEXT.replace("sites-", f"{request.param}-").replace("KIND", request.param)
    yield from lent(Stage(tmp_path, kafka, redis_url, text))


def rows(site: int, *, lie: bool) -> list[str]:
    chance, lines = random.Random(site), []
    for _ in range(RECORDS):
        x, z = chance.uniform(-1, 1), chance.uniform(-1, 1)
        one = chance.random() < 1 / (1 + math.exp(-1.5 * x + z))
        lines.append(f"{x:.4f},{z:.4f},{int(one != lie)}\n")
    return lines


def produced(stage: Stage, paths: list[Path]) -> None:
    for site, path in enumerate(paths):
        stage.produce(f"site-{site}", path)
    for site in range(SITES):
        stage.ended(f"site-{site}")


@pytest.mark.takes("backtest, doctor and replay of a whole stream")
def test_sites_live_the_whole_life(stage: Stage, tmp_path: Path) -> None:
    """One runtime for all of it: it takes the seconds of a worker's two starts."""
    facts = json.loads(stage.run("study", "check", stage.study, "--json").stdout)
    assert facts["sites"]["one_site_moves_at_most"] > 0
    stage.ensure_topics()
    stage.worker()
    paths = [tmp_path / f"{site}.csv" for site in range(SITES)]
    found = [rows(site, lie=site == 0) for site in range(SITES)]
    # two windows of each site first, and two last: where one is late, as on a busy machine, the
    # others would begin far from the end, or have ended at models of long ago
    for path, lines in zip(paths, found, strict=True):
        path.write_text("".join(["x,z,y\n", *lines[:600]]))
    produced(stage, paths)
    stage.caught_up()
    for path, lines in zip(paths, found, strict=True):
        with path.open("a") as file:
            file.writelines(lines[600:-600])
    for site in range(SITES):
        stage.produce(f"site-{site}", paths[site])
    stage.until(lambda: sum(stage.watermarks()) >= 3 * SITES + 1, "some releases are folded")
    stage.kill("w0")
    stage.worker()
    for site in range(SITES):
        stage.ended(f"site-{site}")
    stage.caught_up()
    for path, lines in zip(paths, found, strict=True):
        with path.open("a") as file:
            file.writelines(lines[-600:])
    produced(stage, paths)
    stage.caught_up()
    estimate = stage.final_estimate()
    assert estimate.status == "ready", estimate.reason
    assert estimate.details["flagged"] == [name_of(0)]
    assert [row["share"] for row in estimate.details["sites"] if row["flag"]] == [0.0]
    watched = stage.run("watch", stage.study, "--count", 1)
    assert f"1 of {SITES} sites: {name_of(0)} (distance" in watched.stdout, watched.stderr
    assert "what to do" in watched.stdout
    _, x, z = estimate.coefficients
    # 9,600 honest records: a standard error of about 0.05, and as much from noise
    assert (x.value, z.value) == pytest.approx((1.5, -1.0), abs=0.35)
    assert stage.verified()
    stage.ran("replay", stage.study, "--check", "--json")
    stage.ran("backtest", stage.study, "--input", paths[1], "--json", "--simulate", 1)
    doctor = stage.ran(
        "doctor", "coverage", stage.study, "--records", 12_000, "--replications", 3, "--json"
    )
    assert json.loads(doctor.stdout)["coverage"]["ready"] == 1.0
