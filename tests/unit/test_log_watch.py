"""What a worker finds out about a log from how far it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaConnectionError

from agents import link
from agents.log_watch import LogWatch
from pipeline.errors import StateError, StoreError
from pipeline.messages.topics import Topics
from tests.builders import task_of

TOPICS = Topics.of(task_of(p=2, records=50).study)


class Store:
    def __init__(self, stood: int | StoreError) -> None:
        self._stood = stood

    def standing(self, _partition: int) -> tuple[int, str]:
        if isinstance(self._stood, StoreError):
            raise self._stood
        return self._stood, ""


def look(stood: int | StoreError, first: int, after: int) -> None:
    async def bounds(_topic: str, partitions: int) -> Sequence[tuple[int, int]]:
        return [(first, after)] * partitions

    asyncio.run(LogWatch(TOPICS, cast("Any", Store(stood)), bounds).look())


def test_a_log_that_ends_before_what_was_folded_was_made_anew() -> None:
    with pytest.raises(StateError, match="study recover"):
        look(40, 0, 39)
    look(40, 0, 40)
    look(40, 0, 41)


def test_what_retention_took_while_the_worker_folds_on_is_for_who_folds_it() -> None:
    # the watermark was read before it moved on
    look(100, 300, 400)
    # a log that ends with the end of a transaction, all of which is gone
    look(100, 101, 101)


def test_a_redis_that_is_away_is_no_reason_to_stop() -> None:
    look(StoreError("away"), 0, 0)


def test_a_broker_that_starts_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    class Consumer:
        async def start(self) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise KafkaConnectionError

    async def asleep(_seconds: float) -> None:
        return

    monkeypatch.setattr(link.asyncio, "sleep", asleep)
    asyncio.run(link._started(Consumer()))
    assert len(tries) == 3
