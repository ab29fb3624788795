"""When all intervals come, in words, from the last estimates of a stream and the time since."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

from pipeline.messages.estimate import EstimateMessage

#: A forecast looks at so many estimates: what one says is missing hangs on its noise.
LOOK_BACK = 20
#: Both ends of a range are alike up to this ratio.
ALIKE = 1.25
#: A stream without estimates has stopped after so many of its longest pauses, and so many seconds;
#: after more of them where two pauses are not known.
PAUSES, QUIET_SECONDS, STOPPED_SECONDS = 3, 5.0, 60.0
UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


class Forecast:
    """The range of what the last estimates have said that all intervals need.

    clock: Seconds since 1970; `steady`: seconds that never go back.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._steady = clock, steady
        self._needed: deque[int] = deque(maxlen=LOOK_BACK)
        #: When they were published, and how many records were behind them.
        self._seen: deque[tuple[float, int]] = deque(maxlen=LOOK_BACK)
        self._newest: EstimateMessage | None = None
        self._came = 0.0

    def take(self, message: EstimateMessage, *, live: bool = True) -> None:
        """Take the next estimate.

        live: It has just been published; the age of an older one is told from its own time.
        """
        published = datetime.fromisoformat(message.published_at).timestamp()
        self._came = self._steady() - (0.0 if live else max(0.0, self._clock() - published))
        self._newest = message
        self._seen.append((published, message.records))
        found = message.progress
        if found is None or found.missing_records is None or found.share >= 1:
            self._needed.clear()
        else:
            self._needed.append(message.records + found.missing_records)

    @property
    def age(self) -> float | None:
        """Seconds since the newest estimate; None before the first."""
        return None if self._newest is None else max(0.0, self._steady() - self._came)

    @property
    def stopped(self) -> bool:
        """Whether no estimate comes any more, as no record does, or no worker runs."""
        least = QUIET_SECONDS if len(self._seen) > 2 else STOPPED_SECONDS
        return self.age is not None and self.age >= max(least, PAUSES * self._pause())

    def told(self) -> str:
        """Return in words when all intervals come, or nothing.

        The middle half of what the last estimates have said counts: single ones jump. What was
        promised comes nearer with time, and time alone brings no intervals. Before the first model
        nothing is promised.
        """
        message, age = self._newest, self.age
        if message is None or age is None or not self._needed:
            return ""
        ordered, quarter = sorted(self._needed), len(self._needed) // 4
        ends = (ordered[quarter], ordered[-1 - quarter])
        if self.stopped:
            return (
                f"no new estimate for {_range(age, age)}: no more records are coming, or no worker "
                "runs; without new records there will be no further intervals"
            )
        if message.status == "starting" or not (rate := self._rate(message)):
            return ""
        soon, late = (max(1.0, end - message.records) / rate - age for end in ends)
        if late < 0:
            # by now one would have come, had the rate lasted
            return "" if age < QUIET_SECONDS else f"no new estimate for {_range(age, age)}"
        each = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"all intervals in about {_range(soon, late)} if {each} records a second keep coming"

    def _rate(self, message: EstimateMessage) -> float:
        """Return how many records come each second.

        A client that has ended is still in the rate of the last minutes, and soon no longer in that
        of the last estimates: the lower one counts.
        """
        found = (message.progress and message.progress.records_per_second) or 0.0
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        return min(found, max(0.0, now - before) / (last - first)) if last > first else found

    def _pause(self) -> float:
        """Return the longest time between two of the last estimates."""
        return max((after - before for (before, _), (after, _) in pairwise(self._seen)), default=0)


def _range(soon: float, late: float) -> str:
    """Return a range of seconds in the unit of its end."""
    unit, length = next((u for u in UNITS if late >= 2 * u[1]), UNITS[-1])
    first, last = (f"{max(1.0, seconds / length):,.0f}" for seconds in (soon, late))
    if late <= ALIKE * soon or first == last:
        return f"{last} {unit}{'' if last == '1' else 's'}"
    return f"{first} to {last} {unit}s"
