"""Workers that join, die and leave: each partition always has one owner, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from tests.stage import HEADER, Stage, lent, lines, study_text, until, write_csv

#: Kafka puts each of these keys on a partition of its own.
CLIENTS = ("client-0", "client-2", "client-7", "client-8")
PARTITIONS, SLOTS = 4, 20
#: Windows of each client between two events, and in the middle of one.
FEW, MANY = 3, 12
#: Kafka misses a worker that dies after ten seconds, and tells others of it every two: here after
#: six, the least that it takes, and at once.
SOON = """\
import faust
whole = faust.App.__init__
def begin(self, *words, **how):
    soon = {"broker_session_timeout": 6.0, "broker_heartbeat_interval": 0.3}
    whole(self, *words, **{**how, **soon})
faust.App.__init__ = begin
"""


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    made = Stage(tmp_path, kafka, redis_url, study_text(partitions=PARTITIONS))
    made.before = SOON
    yield from lent(made)


def test_partitions_survive_workers_that_join_die_and_leave(stage: Stage) -> None:
    stage.ensure_topics()
    stage.worker("w0")
    for client in CLIENTS:
        source(stage, client).write_text(HEADER)
        stage.produce(client, source(stage, client), "--follow", "--rate", 60)
    folds_everywhere(stage)

    stage.worker("w1")
    stage.until(lambda: shared(stage, {"w0", "w1"}), "both workers own partitions")
    folds_everywhere(stage)

    feed(stage, MANY)
    stage.kill("w0")
    stage.worker("w2")
    until(lambda: "w2" in members(stage), "the third worker has joined")
    # it may meet the state of the one that has just gone
    assert stage.stop("w1") in (0, 41), stage.said("w1")
    del stage.processes["w0"], stage.processes["w1"]
    releases = len(CLIENTS) * (2 * FEW + MANY)
    until(lambda: _folded(stage, releases), "nothing that the others have left is lost")
    stage.until(lambda: shared(stage, {"w2"}), "the third worker owns all partitions")
    folds_everywhere(stage)

    for client in CLIENTS:
        assert stage.stop(client) == 0, stage.said(client)
    estimate = stage.final_estimate()
    assert (estimate.releases, estimate.clients) == (releases + FEW * len(CLIENTS), len(CLIENTS))
    assert estimate.diagnostics.missing == estimate.diagnostics.dead_letters == 0
    assert estimate.diagnostics.duplicates == 0
    assert len(estimate.watermark) == PARTITIONS
    assert stage.verified()


def test_a_second_worker_of_one_name_is_refused_and_a_killed_one_is_followed_at_once(
    stage: Stage,
) -> None:
    stage.ensure_topics()
    stage.worker("w0")
    stage.until(lambda: "w0" in members(stage), "the first worker has joined")
    again = stage.run_beside("worker", stage.study, "--instance", "w0")
    assert again.returncode == 43
    assert "--instance" in again.stderr
    stage.kill("w0")
    stage.worker("w0")
    stage.produce("north", write_csv(stage.folder / "north.csv", 2 * SLOTS))
    stage.caught_up()
    assert stage.processes["w0"].poll() is None, stage.said("w0")


def source(stage: Stage, client: str) -> Path:
    """Return the file that a client follows."""
    return stage.folder / f"{client}.csv"


def feed(stage: Stage, windows: int) -> None:
    """Give every client new records: a stream of fixed length might end before it is looked at."""
    for seed, client in enumerate(CLIENTS):
        with source(stage, client).open("a") as file:
            file.write("".join(lines(windows * SLOTS, seed)))


def folds_everywhere(stage: Stage) -> None:
    """Wait until releases that are not in the log yet are folded, on every partition."""
    ends = stage.ends()
    feed(stage, FEW)
    stage.until(
        lambda: all(now > end for now, end in zip(stage.watermarks(), ends, strict=True)),
        "every partition moves",
    )
    stage.caught_up()


def _folded(stage: Stage, releases: int) -> bool:
    stage.revive({41})
    return sum(stage.watermarks()) == releases


def shared(stage: Stage, workers: set[str]) -> bool:
    """Whether these workers, and no others, own all partitions, each partition once."""
    owned = members(stage)
    found = sorted(partition for mine in owned.values() for partition in mine)
    return owned.keys() == workers and all(owned.values()) and found == list(range(PARTITIONS))


def members(stage: Stage) -> dict[str, list[int]]:
    """Return the partitions of each worker, as the group has agreed; none while it has not."""
    name = f"veilstream-{stage.task.study.name}"
    with KafkaAdminClient(bootstrap_servers=stage.settings.kafka) as admin:
        group = admin.describe_groups([name])[name]
    return {member["group_instance_id"]: _assigned(member) for member in group["members"]}


def _assigned(member: dict[str, Any]) -> list[int]:
    topics = (member["member_assignment"] or {}).get("assigned_partitions", [])
    return [partition for topic in topics for partition in topic["partitions"]]
