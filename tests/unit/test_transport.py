"""Places of an assignment that changes while they are looked up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.errors import IllegalStateError, KafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.util import commit_structure_validate
from faust.types.tuples import TP

from agents import app as transport
from agents.app import BatchConsumer, BatchThread, PlainRecords


class Places:
    """Counts assignments and takes down failures."""

    topic = "releases"

    def __init__(self) -> None:
        self.failures: list[Exception] = []

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


class Torn(BatchConsumer):  # type: ignore[misc]
    """A consumer whose partitions are taken away some times while it seeks."""

    def __init__(self, faults: list[Exception]) -> None:
        self.transport = SimpleNamespace(positions=Places())
        self.left, self.sought = faults, 0

    async def _seek_all(self, _positions: object) -> None:
        if self.left:
            raise self.left.pop(0)
        self.sought += 1


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "PAUSE_SECONDS", 0.0)


def run(faults: list[Exception]) -> Torn:
    consumer = Torn(faults)
    asyncio.run(consumer.perform_seek())
    return consumer


def test_a_partition_that_is_taken_away_meanwhile_is_looked_up_no_more() -> None:
    found = run([IllegalStateError("No current assignment for partition 0")] * 3)
    assert (found.sought, found.transport.positions.failures) == (1, [])


def test_an_assignment_that_never_settles_ends_the_worker() -> None:
    found = run([IllegalStateError("no")] * transport.ATTEMPTS)
    assert (found.sought, len(found.transport.positions.failures)) == (0, 1)


@pytest.mark.parametrize("fault", [KafkaError(), TimeoutError()])
def test_a_fault_of_kafka_ends_the_worker_with_its_own_code(fault: Exception) -> None:
    assert run([fault]).transport.positions.failures == [fault]


def test_records_are_handed_out_as_they_were_parsed() -> None:
    """Else aiokafka copies each of them, which takes longer than its fold."""
    built = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1,
        base_sequence=-1, batch_size=1 << 16,
    )  # fmt: skip
    for offset in range(3):
        built.append(offset, timestamp=7, key=b"a", value=b"%d" % offset, headers=[("h", b"x")])
    held = PartitionRecords(
        TopicPartition("t", 0), MemoryRecords(bytes(built.build())), [], 0, None, None, True, 0
    )
    kept = PlainRecords()
    kept[TopicPartition("t", 0)] = FetchResult(
        TopicPartition("t", 0), assignment=None, partition_records=held, backoff=0
    )
    records = list(held)
    assert not any(isinstance(record, ConsumerRecord) for record in records)
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records] == [
        (i, 7, b"a", b"%d" % i, [("h", b"x")]) for i in range(3)
    ]


class Taken(BatchThread):  # type: ignore[misc]
    """The thread of a consumer, as aiokafka's own check of what is to be committed sees it."""

    def __init__(self, mine: set[TP]) -> None:
        self._mine, self.tp_last_committed_at = mine, {}
        self.committed: list[Any] = []
        self.crashes: list[BaseException] = []

    def assignment(self) -> set[TP]:
        return self._mine

    def _ensure_consumer(self) -> Any:
        async def commit(offsets: Any) -> None:
            self.committed.append(commit_structure_validate(offsets))

        return SimpleNamespace(commit=commit)

    async def crash(self, reason: BaseException) -> None:
        self.crashes.append(reason)


@pytest.mark.parametrize("mine", [set(), {TP("releases", 0)}])
def test_a_commit_whose_partitions_are_taken_away_on_its_way_is_no_crash(mine: set[TP]) -> None:
    thread = Taken(mine)
    done = asyncio.run(thread._commit({TP("releases", 0): 7, TP("releases", 1): 3}))
    assert (done, len(thread.committed), thread.crashes) == (bool(mine), len(mine), [])
