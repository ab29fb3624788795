"""What a worker holds in memory does not grow with what it has folded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from infra.kafka import record_producer
from pipeline.messages.release import seal
from pipeline.privacy.randomness import SecureStream
from pipeline.records.encoder import Arrays
from pipeline.release.privatise import privatise
from tests.stage import Stage, lent, study_text

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
CLIENTS = 20
#: Releases after which a worker has all that it needs, and how many come then.
WARM, MORE = 30_000, 150_000
#: MiB that memory may move by. Whatever is kept of a release takes 60 bytes at least.
MOST = 2.5


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text(partitions=1, releases=8)))


def send(stage: Stage, first: int, after: int) -> None:
    """Send releases, of one window's bytes, under the next numbers of all clients."""
    task, chance = stage.task, np.random.default_rng(3)
    features = chance.uniform(-1, 1, (task.slots, task.size - 1))
    rows = Arrays(features, np.where(features[:, 0] > 0, 1.0, -1.0))
    answer = privatise(task, task.query(rows, task.first_model), SecureStream())
    producer = record_producer(stage.settings, 60, name="many")
    for number in range(first, after):
        client = f"client-{number % CLIENTS}"
        payload = seal(task, answer, client=client, ledger="many", seq=number // CLIENTS)
        producer.send(stage.topics.releases.name, payload, key=client.encode())
    producer.flush()
    producer.close()


def mib(stage: Stage) -> float:
    """Return the resident set of the worker."""
    said = Path(f"/proc/{stage.processes['w0'].pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in said.splitlines() if "VmRSS" in line)


@pytest.mark.parametrize("begins", [1, 2])
def test_memory_of_a_worker_stays(stage: Stage, begins: int) -> None:
    stage.ensure_topics()
    send(stage, 0, begins)
    stage.worker()
    stage.caught_up()
    assert stage.stop("w0") == 0
    # where reading begins says whether Faust commits
    stage.worker()
    send(stage, begins, WARM)
    stage.caught_up()
    warm = mib(stage)
    send(stage, WARM, WARM + MORE)
    stage.caught_up()
    assert mib(stage) < warm + MOST
