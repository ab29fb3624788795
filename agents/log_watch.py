"""Whether the releases log still goes on behind a watermark, and as far as it was folded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from pipeline.errors import OffsetGap, StateError, StoreError
from pipeline.messages.topics import Topics
from state import RedisStore
from state.stored import RECOVER


def check_log(topic: str, partition: int, watermark: int, first: int, after: int) -> None:
    """Refuse to continue where the log does not.

    Raises OffsetGap if retention has passed the watermark; StateError as `check_end`.
    """
    if watermark < first:
        raise OffsetGap(
            f"{topic}[{partition}]: offsets {watermark} to {first - 1} were removed from the log "
            "before they were folded; `veilstream state rebuild --accept-loss` starts from what "
            "is left"
        )
    check_end(topic, partition, watermark, after)


def check_end(topic: str, partition: int, watermark: int, after: int) -> None:
    """Refuse a log that ends before what was folded: StateError, which says how to go on."""
    if watermark > after:
        raise StateError(
            f"{topic}[{partition}]: the state stands at {watermark} and the log ends at {after}; "
            f"the topic was made anew: {RECOVER}"
        )


#: Seconds between two looks.
LOOK_SECONDS = 10.0
#: First and next offset of each partition of a topic.
Bounds = Callable[[str, int], Awaitable[Sequence[tuple[int, int]]]]


class LogWatch:
    """Compares the log with the stored watermarks of all partitions, whoever owns them.

    A client that runs makes a lost topic anew at once. Then a worker hears of no fault: it loses
    its partitions, or takes what comes, at lower offsets, for what it has folded already. A log
    that has grown beyond the watermarks by then looks sound here; the releases that are missing
    are counted.

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

        StateError if the log ends before a watermark; BrokerError if Kafka does not answer in time,
        or has no such topic.
        """
        name, count = self._releases.name, self._releases.partitions
        stood = list[int]()
        # where Redis is away, a commit ends this worker, or it comes back
        with suppress(StoreError):
            # before the log is asked: it may only have grown since
            stood = await asyncio.to_thread(self._watermarks, count)
        found = await self._bounds(name, count)
        for number, (watermark, (_, after)) in enumerate(zip(stood, found, strict=False)):
            check_end(name, number, watermark, after)

    def _watermarks(self, count: int) -> list[int]:
        return [self._store.standing(number)[0] for number in range(count)]
