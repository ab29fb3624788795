"""An event loop whose time jumps to the next thing that is due: seconds of a stream in none."""

from __future__ import annotations

import asyncio
import time
from typing import Any

#: Where the simulation's calendar begins, in seconds since 1970: a real Kafka takes no other times.
EPOCH = float(int(time.time()))


class Clock(asyncio.SelectorEventLoop):
    """An event loop in simulated time; also what a module has in the place of `time`."""

    _scheduled: list[Any]
    _ready: Any

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        """Return the simulated time, seconds from the start of the simulation."""
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


class Calendar:
    """Stands for the module `time` where simulated code asks it."""

    def __init__(self, clock: Clock) -> None:
        self.monotonic = clock.time
        self._clock = clock

    def time(self) -> float:
        """Return seconds since 1970."""
        return EPOCH + self._clock.time()

    def sleep(self, seconds: float) -> None:
        """Pass no time: who sleeps here is alone in its process."""
