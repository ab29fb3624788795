"""Does a worker get on? What is left of the log, and since when nothing of it has been folded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from agents.folding import Folding

#: How long there may be something left and nothing folded before a worker is called stalled.
STALLED_SECONDS = 60.0
#: Seconds between two looks at the ends of the log.
LOOK_SECONDS = 5.0
#: Returns how many records of each partition are left, given how far each is folded; or None.
Left = Callable[[Mapping[int, int]], Awaitable[Mapping[int, int] | None]]


@dataclass(slots=True)
class Mark:
    """A watermark, and since when it stands there with something left."""

    watermark: int
    since: float


class Progress:
    """Watches the partitions that a worker owns.

    left: Asks Kafka what is left.
    now: A clock in seconds that never goes back.
    """

    def __init__(self, folding: Folding, left: Left, now: Callable[[], float] = monotonic) -> None:
        self._folding, self._ask, self._now = folding, left, now
        self._marks: dict[int, Mark] = {}
        self._looked = now()
        #: Records of each partition that are in the log and not folded, at the last look.
        self.left: dict[int, int] = {}

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Ask what is left, and note which partitions have moved."""
        asked = {n: state.head.next_offset for n, state in self._folding.partitions.items()}
        left = await self._ask(asked)
        if left is None:
            return
        now = self._now()
        for number, watermark in asked.items():
            mark = self._marks.get(number)
            if mark is None or mark.watermark != watermark or not left.get(number):
                self._marks[number] = Mark(watermark, now)
        self._marks = {n: mark for n, mark in self._marks.items() if n in asked}
        self.left = {n: left[n] for n in asked if n in left}
        self._looked = now

    def faults(self) -> list[str]:
        """Return a sentence for each partition that has not moved for `STALLED_SECONDS`."""
        now = self._now()
        if now - self._looked >= STALLED_SECONDS:
            return [f"Kafka has not said for {now - self._looked:.0f} s what is left of the log"]
        return [
            f"partition {number}: {self.left[number]} records are left and none has been folded "
            f"for {now - mark.since:.0f} s"
            for number, mark in sorted(self._marks.items())
            if self.left.get(number) and now - mark.since >= STALLED_SECONDS
        ]
