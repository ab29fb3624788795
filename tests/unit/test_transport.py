"""Places of an assignment that changes while they are looked up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from aiokafka.errors import IllegalStateError, KafkaError

from agents import transport
from agents.transport import BatchConsumer


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
