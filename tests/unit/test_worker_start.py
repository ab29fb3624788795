"""What a worker's end means that comes before its first batch."""

from __future__ import annotations

import asyncio

import mode
import pytest
from aiokafka.errors import KafkaConnectionError

from agents import worker
from pipeline.errors import BrokerError
from pipeline.settings import Settings


class Ended(Exception):
    """Stands for the end of the process."""


class Failing(mode.Service):  # type: ignore[misc]
    """A part of Faust that cannot begin."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self._fault = fault

    async def on_start(self) -> None:
        """Fail."""
        raise self._fault


def started(fault: Exception) -> None:
    loop = asyncio.new_event_loop()
    running = mode.Worker(Failing(fault), loop=loop, loglevel="critical", redirect_stdouts=False)
    worker.begin(running, Settings(kafka="a:1"))


def test_a_kafka_that_goes_away_as_faust_begins_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[BaseException] = []

    def stop(error: BaseException) -> None:
        told.append(error)
        raise Ended

    monkeypatch.setattr(worker, "stop", stop)
    with pytest.raises(Ended):
        started(KafkaConnectionError("no bootstrap"))
    assert [type(error) for error in told] == [BrokerError]
    assert "a:1" in str(told[0])
    assert told[0].exit_code == 50
    bug = RuntimeError("a bug")
    with pytest.raises(Ended):
        started(bug)
    assert told[1] is bug
