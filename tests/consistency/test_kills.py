"""I9: SIGKILL at any moment, any number of times, ends in the state of an uninterrupted run."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.history import refold
from pipeline.stream.fold import Reducer
from pipeline.stream.in_process import OfflineRecord
from pipeline.stream.partition import Partition, differences
from tests.log_checks import noised_twice, payloads
from tests.stage import PATIENCE, Stage, lent, study_text, write_csv

CLIENTS = 6
RELEASES = 24
SLOTS = 20
RATE = 30.0
#: The second worker joins for the last third of the kills.
WORKER_KILLS, PRODUCER_KILLS = 9, 11
KILLS = WORKER_KILLS + PRODUCER_KILLS
SEED = 20260417


@pytest.fixture
def stage(tmp_path: Path, kafka: str, redis_url: str) -> Iterator[Stage]:
    yield from lent(Stage(tmp_path, kafka, redis_url, study_text(records=SLOTS, partitions=3)))


@pytest.mark.slow
def test_random_kills_of_workers_and_producers_lose_and_repeat_nothing(stage: Stage) -> None:
    clients = {f"client-{k}": RELEASES * SLOTS - 7 * k for k in range(CLIENTS)}
    sources = {
        name: write_csv(stage.folder / f"{name}.csv", count, seed)
        for seed, (name, count) in enumerate(clients.items())
    }
    stage.ensure_topics()
    play = Play(stage, sources)
    play.run()
    stage.ended(*sources)
    stage.caught_up()
    seconds = sorted(round(value, 2) for value in play.recoveries)
    # evidence for the record of measurements; a worker that is killed again before its first
    # commit has no recovery to measure
    print(
        f"\nkills: {play.kills} ({play.counts}), worker recoveries from start to first commit: "
        f"{seconds} s; longest {max(seconds, default=None)} s"
    )
    assert play.kills >= 15

    log = stage.releases()
    _check_ledgers(stage, clients, log)
    stored = stage.partitions()
    assert sum(p.head.dead_letters for p in stored) == 0
    assert sum(entry.missing for p in stored for entry in p.clients.values()) == 0
    for number, partition in enumerate(stored):
        assert differences(partition, refold(stage.task, stage.settings, number)) == []
    _check_shuffled(stage, stored, log)
    assert stage.verified()


class Play:
    """Starts everything, kills at random, restarts at once."""

    def __init__(self, stage: Stage, sources: dict[str, Path]) -> None:
        self.stage, self.sources = stage, sources
        self.chance = random.Random(SEED)
        self.roles = ["worker"] * WORKER_KILLS + ["producer"] * PRODUCER_KILLS
        self.chance.shuffle(self.roles)
        self.kills = 0
        self.counts = {"worker": 0, "producer": 0}
        self.recoveries: list[float] = []
        self._recovering: tuple[float, list[int]] | None = None

    def run(self) -> None:
        deadline = time.monotonic() + 2 * PATIENCE
        self.stage.worker("w0")
        for name in self.sources:
            self._produce(name)
        next_kill = time.monotonic() + 2
        while self._streaming():
            assert time.monotonic() < deadline, f"{self.kills} kills, the stream does not end"
            self._restart_the_ended()
            self._watch_recovery()
            if time.monotonic() >= next_kill and self.kills < KILLS:
                self._kill()
                next_kill = time.monotonic() + self.chance.uniform(0.1, 1.2)
            if self.kills >= 2 * KILLS // 3 and "w1" not in self.stage.processes:
                self.stage.worker("w1")
            time.sleep(0.02)

    def _kill(self) -> None:
        role = self.roles[self.kills]
        alive = [n for n, p in self.stage.processes.items() if p.poll() is None]
        pool = [n for n in alive if n.startswith("w") == (role == "worker")]
        if not pool:
            return
        name = self.chance.choice(pool)
        self.stage.kill(name)
        self.kills += 1
        self.counts[role] += 1
        if role == "producer":
            self._produce(name)
            return
        # with a second worker, nobody outside can tell whose commit it was
        alone = "w1" not in self.stage.processes
        self._recovering = (time.monotonic(), self.stage.watermarks()) if alone else None
        self.stage.worker(name)

    def _restart_the_ended(self) -> None:
        """Do as a supervisor does: a worker that found its state moved on stops with 41."""
        for name, process in list(self.stage.processes.items()):
            code = process.poll()
            if name.startswith("w") and code is not None:
                assert code == 41, f"{name} ended with {code}: {self.stage.said(name)}"
                self.stage.worker(name)
            if not name.startswith("w"):
                assert code in (None, 0), f"{name} ended with {code}: {self.stage.said(name)}"

    def _watch_recovery(self) -> None:
        if self._recovering is None:
            return
        started, before = self._recovering
        if self.stage.watermarks() != before:
            self.recoveries.append(time.monotonic() - started)
            self._recovering = None
        elif not self._streaming():
            self._recovering = None

    def _streaming(self) -> bool:
        return any(self.stage.processes[name].poll() is None for name in self.sources)

    def _produce(self, name: str) -> None:
        self.stage.produce(name, self.sources[name], "--rate", RATE)


def _check_ledgers(stage: Stage, clients: dict[str, int], log: list[Any]) -> None:
    """Every record is in exactly one release, and every release is in the log."""
    found = payloads(log)
    assert noised_twice(found) == []
    for name, count in clients.items():
        windows = -(-count // SLOTS)
        assert sorted(seq for client, _, seq in found if client == name) == list(range(windows))
        [(next_seq, records, rejected, position)] = stage.query(
            name, "SELECT next_seq, records, rejected, position FROM streams"
        )
        assert (next_seq, records, rejected) == (windows, count, 0)
        size = (stage.folder / f"{name}.csv").stat().st_size
        assert f'"at":{size}' in bytes(position).decode()
        numbers = [seq for (seq,) in stage.query(name, "SELECT seq FROM ledger ORDER BY seq")]
        assert numbers == list(range(windows))
        assert stage.query(name, "SELECT count(*) FROM outbox") == [(0,)]


def _check_shuffled(stage: Stage, stored: list[Partition], log: list[Any]) -> None:
    """Another order over another number of partitions gives the same sums and progress."""
    shuffled = list(log)
    random.Random(SEED + 1).shuffle(shuffled)
    others = [Partition.empty(stage.task) for _ in range(2)]
    reducer = Reducer(stage.task)
    for record in shuffled:
        other = others[sum(record.key) % 2]
        item = OfflineRecord(other.head.next_offset, record.key, record.value, record.timestamp)
        assert reducer.fold(other, [item]) == []
    assert _merged(stage, others) == _merged(stage, stored)


def _merged(stage: Stage, partitions: list[Partition]) -> tuple[dict[str, bytes], Any, int]:
    sums = Partition.empty(stage.task).sums
    progress = {}
    for partition in partitions:
        sums.add(partition.sums)
        for name, entry in partition.clients.items():
            assert name not in progress
            progress[name] = entry.encode()
    return sums.encode(), progress, sum(p.head.duplicates for p in partitions)
