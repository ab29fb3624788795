"""`veilstream replay` on a real log: the live estimates again, and nothing of the study touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from pipeline.messages.estimate import write_estimate
from tests.stage import OPEN, PRIVATE, Stage, study_text, write_csv

CLIENTS = ("north", "south", "west")


def filled(stage: Stage, records: int = 400) -> None:
    """Let three clients release, and a worker fold it and stop."""
    stage.ensure_topics()
    stage.worker("w0")
    for seed, client in enumerate(CLIENTS):
        stage.produce(client, write_csv(stage.folder / f"{client}.csv", records, seed))
    stage.ended(*CLIENTS)
    stage.caught_up()
    stage.final_estimate()
    assert stage.stop("w0") == 0


@pytest.fixture(scope="module", params=["private", pytest.param("open", marks=pytest.mark.slow)])
def stage(
    tmp_path_factory: pytest.TempPathFactory,
    kafka: str,
    redis_url: str,
    request: pytest.FixtureRequest,
) -> Iterator[Stage]:
    text = study_text(privacy=OPEN if request.param == "open" else PRIVATE, records=10)
    made = Stage(tmp_path_factory.mktemp("replay"), kafka, redis_url, text)
    try:
        filled(made)
        yield made
    finally:
        made.remove()


def replayed(stage: Stage, *options: object) -> list[dict[str, Any]]:
    done = stage.ran("replay", stage.study, "--json", *options)
    return [json.loads(line) for line in done.stdout.splitlines()]


def outside(stage: Stage) -> tuple[dict[bytes, bytes], dict[str, Any], list[Any]]:
    """Return all that a replay must leave alone: Redis, groups and their offsets, the logs."""
    keys = stage.stored_copy()
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        name = f"veilstream-{stage.task.study.name}"
        found = sorted(group["group_id"] for group in admin.list_groups())
        # other tests begin and end groups of their own studies on the same Kafka
        groups = [one for one in found if name in one or not one.startswith("veilstream-")]
        assert name in groups
        offsets = {name: str(admin.list_group_offsets(name))}
    ends = [[(r.partition, r.offset) for r in stage.read(t.name)] for t in stage.topics.all()]
    return keys, {"groups": groups, **offsets}, ends


def test_the_last_estimate_of_a_replay_is_the_live_one_bit_by_bit(stage: Stage) -> None:
    live = json.loads(write_estimate(stage.final_estimate()))
    *_, last = replayed(stage)
    for name in ("published_at", "model_version"):
        live.pop(name), last.pop(name)
    for estimate in (live, last):
        # how fast records came is what a worker saw on its clock
        (estimate["progress"] or {}).update(records_per_second=None, seconds=None)
    assert last == live


def test_every_published_estimate_is_what_a_replay_to_its_positions_gives(stage: Stage) -> None:
    done = stage.ran("replay", stage.study, "--check", "--json")
    found = json.loads(done.stdout)
    assert found["equal"]
    assert found["compared"] == len(stage.estimates()) > 5
    assert (found["different"], found["not_compared"], found["first_difference"]) == (0, {}, None)


@pytest.mark.slow
def test_a_replay_touches_nothing_of_the_live_study(stage: Stage, tmp_path: Path) -> None:
    before = outside(stage)
    files = sorted(stage.settings.home.rglob("*.db*"))
    stamps = [(file, file.stat().st_mtime_ns) for file in files]
    assert files
    replayed(stage, "--every", "7")
    done = stage.ran("replay", stage.study, "--out", tmp_path / "x.parquet", "--every", "1s")
    assert ("privacy spent: 0. The clients noised" in done.stderr) == stage.task.study.private
    assert stage.run("replay", stage.study, "--check").returncode == 0
    assert outside(stage) == before
    assert [(file, file.stat().st_mtime_ns) for file in files] == stamps
