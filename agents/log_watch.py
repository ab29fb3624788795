"""Whether the releases log still goes as far as what was folded of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from agents.folding import check_log
from pipeline.errors import StoreError
from pipeline.messages.topics import Topics
from state import RedisStore

#: Seconds between two looks.
LOOK_SECONDS = 10.0
#: First and next offset of each partition of a topic.
Bounds = Callable[[str, int], Awaitable[Sequence[tuple[int, int]]]]


class LogWatch:
    """Compares the log with the stored watermarks of all partitions, whoever owns them.

    A client that runs makes a lost topic anew at once. Then a worker hears of no fault: it loses
    its partitions, or takes what comes, at lower offsets, for what it has folded already.

    bounds: Tells how far the log goes; it fails where there is none.
    """

    def __init__(self, topics: Topics, store: RedisStore, bounds: Bounds) -> None:
        self._releases, self._store, self._bounds = topics.releases, store, bounds

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Look once.

        StateError, OffsetGap as `check_log`; BrokerError if Kafka does not answer, or has no such
        topic.
        """
        numbers = range(self._releases.partitions)
        stood = list[int]()
        # where Redis is away, a commit ends this worker, or it comes back
        with suppress(StoreError):
            # before the log is asked: it may only have grown since
            stood = [self._store.standing(number)[0] for number in numbers]
        found = await self._bounds(self._releases.name, self._releases.partitions)
        for number, (watermark, (first, after)) in enumerate(zip(stood, found, strict=False)):
            check_log(self._releases.name, number, watermark, first, after)
