"""A worker that is being stopped asks a consumer whose thread has just ended: no failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition

from agents.link import ReleasesLog

PLACE = TopicPartition("releases", 0)


class Ended:
    """What the thread of Faust's consumer leaves behind: a loop that is closed."""

    def __init__(self, *, should_stop: bool) -> None:
        self.should_stop = should_stop
        self._loop = asyncio.new_event_loop()
        self._loop.close()

    def assignment(self) -> set[TopicPartition]:
        return {PLACE}

    async def highwaters(self, *_: Any) -> Any:
        self._loop.call_soon_threadsafe(print)

    seek = highwaters


def test_a_question_to_a_consumer_that_is_being_stopped_has_no_answer() -> None:
    log = ReleasesLog(lambda: Ended(should_stop=True), "releases")
    assert asyncio.run(log.left({0: 5})) is None
    asyncio.run(log.reread(0, 5))


def test_a_thread_that_ends_by_itself_is_a_failure() -> None:
    log = ReleasesLog(lambda: Ended(should_stop=False), "releases")
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(log.left({0: 5}))
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(log.reread(0, 5))
