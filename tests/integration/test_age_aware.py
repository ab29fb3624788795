"""Rounds of values of planned age, from meters to published values, on a real Kafka and Redis."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import ages
from tests.stage import Stage, lent, until

ROUNDS = 5
CLIENTS = ("north", "south", "west")
TEXT = ages.study_text(
    name=f"meters-{random.Random().getrandbits(48):x}",
    groups=ages.GROUPS.replace('"c", "a-{1..2}"', '"north", "south"').replace('"b"', '"west"'),
    method="capacity = 2",
    records=4,
)


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, TEXT))


def source(folder: Path, client: str, seed: int) -> Path:
    """Write five rounds and a part of a sixth, which is not over."""
    rows = ages.rounds_of(ages.task_of(TEXT), client, ROUNDS + 1, np.random.default_rng(seed))
    path = folder / f"{client}.csv"
    kept = rows.ravel()[: ROUNDS * rows.shape[1] + 7]
    path.write_text("power\n" + "\n".join(f"{value:g}" for value in kept) + "\n")
    return path


def test_rounds_live_through_crash_replay_and_backtest(stage: Stage, tmp_path: Path) -> None:
    """One runtime for all of it: it takes the seconds of a worker's two starts."""
    facts = json.loads(stage.run("study", "check", stage.study, "--json").stdout)
    assert facts["rounds"]["clients"] == 3
    stage.ensure_topics()
    stage.worker()
    sources = {name: source(tmp_path, name, seed) for seed, name in enumerate(CLIENTS)}
    stage.produce("north", sources["north"])
    until(lambda: sum(stage.watermarks()) >= 3, "some rounds are folded")
    stage.kill("w0")
    for name in CLIENTS[1:]:
        stage.produce(name, sources[name])
    for name in CLIENTS:
        assert stage.code(name) == 0, stage.said(name)
    stage.worker()
    stage.caught_up()
    found = stage.final_estimate()
    assert found.status == "ready", found.reason
    assert (found.details["round"], found.details["clients_used"]) == (ROUNDS - 1, 3)
    assert found.releases == 3 * ROUNDS
    [value] = found.coefficients
    assert value.value == pytest.approx(found.details["value"])
    assert value.interval is not None
    assert stage.verified()

    # each round is charged by itself, at what its slot costs
    task = ages.task_of(TEXT)
    for name in CLIENTS:
        spends = stage.query(name, "SELECT scope, event FROM spends ORDER BY seq")
        epsilon = task.of_client(name).budget.per_record
        assert [(scope, json.loads(event)["epsilon"]) for scope, event in spends] == [
            ("individual", epsilon)
        ] * ROUNDS

    seen = stage.run("watch", stage.study, "--json", "--from", "beginning", "--count", 1)
    assert json.loads(seen.stdout)["estimator"] == "age-aware"
    replayed = stage.run("replay", stage.study, "--check", "--json")
    assert replayed.returncode == 0, replayed.stderr
    whole = tmp_path / "all.csv"
    each = [sources[name].read_text().splitlines()[1:] for name in CLIENTS]
    rows = [f"{name},{row}" for name, one in zip(CLIENTS, each, strict=True) for row in one]
    whole.write_text("meter,power\n" + "\n".join(rows) + "\n")
    tested = stage.run(
        "backtest", stage.study, "--input", whole, "--client-column", "meter", "--json"
    )
    assert tested.returncode == 0, tested.stderr

    # whoever is in no group has no slot, and what the owner does not allow is not spent
    other = stage.run("produce", stage.study, "--client", "east", "--source", sources["west"])
    assert other.returncode != 0
    assert "--client" in other.stderr
