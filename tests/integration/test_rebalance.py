"""Workers that join, die and leave: each partition always has one owner, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from tests.stage import Stage, study_text, until, write_csv

CLIENTS, RECORDS, SLOTS = 6, 900, 20
RELEASES = CLIENTS * RECORDS // SLOTS


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, study_text(partitions=4))
    try:
        yield made
    finally:
        made.remove()


def test_partitions_survive_workers_that_join_die_and_leave(stage: Stage) -> None:
    stage.ensure_topics()
    stage.worker("w0")
    for k in range(CLIENTS):
        source = write_csv(stage.folder / f"client-{k}.csv", RECORDS, k)
        stage.produce(f"client-{k}", source, "--rate", 60)
    until(lambda: sum(stage.watermarks()) > 10, "the first worker folds")

    stage.worker("w1")
    until(lambda: _members(stage) == 2, "the second worker has joined")
    moved(stage)

    stage.kill("w0")
    stage.worker("w2")
    until(lambda: _members(stage) >= 2, "the third worker has joined")
    assert stage.stop("w1") in (0, 41), stage.said("w1")

    for k in range(CLIENTS):
        assert stage.code(f"client-{k}", 60) == 0, stage.said(f"client-{k}")
    if stage.processes["w2"].poll() == 41:
        # it met the state of a worker that had just gone, as a supervisor would see it
        stage.worker("w2")
    stage.caught_up(40)
    estimate = stage.final_estimate()
    assert (estimate.releases, estimate.clients) == (RELEASES, CLIENTS)
    assert estimate.diagnostics.missing == estimate.diagnostics.dead_letters == 0
    assert estimate.diagnostics.duplicates == 0
    assert len(estimate.watermark) == 4
    assert stage.verified()


def moved(stage: Stage) -> None:
    """Wait until every partition that has clients moves on."""
    used = [n for n, end in enumerate(stage.ends()) if end]
    before = stage.watermarks()
    until(lambda: all(stage.watermarks()[n] > before[n] for n in used), "all partitions move")


def _members(stage: Stage) -> int:
    name = f"veilstream-{stage.plan.study.name}"
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        described = admin.describe_groups([name])
    group = described[name] if isinstance(described, dict) else described[0]
    return len(group["members"] if isinstance(group, dict) else group.members)
