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
#: A stream without estimates has stopped after so many seconds, and so many of its longest pauses.
STOPPED_SECONDS, PAUSES = 60.0, 3
#: Nor is it said to go on as fast where what was promised has not come for so long.
SOON_SECONDS = 5.0
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
        self._times: deque[float] = deque(maxlen=LOOK_BACK)
        self._newest: EstimateMessage | None = None
        self._came = 0.0

    def take(self, message: EstimateMessage, *, live: bool = True) -> None:
        """Take the next estimate.

        live: It has just been published; the age of an older one is told from its own time.
        """
        published = datetime.fromisoformat(message.published_at).timestamp()
        self._came = self._steady() - (0.0 if live else max(0.0, self._clock() - published))
        self._newest = message
        self._times.append(published)
        found = message.progress
        if found is None or found.missing_records is None or found.share >= 1:
            self._needed.clear()
        else:
            self._needed.append(message.records + found.missing_records)

    @property
    def age(self) -> float | None:
        """Seconds since the newest estimate; None before the first."""
        return None if self._newest is None else max(0.0, self._steady() - self._came)

    def told(self) -> str:
        """Return in words when all intervals come, or nothing.

        The middle half of what the last estimates have said counts: single ones jump. Where no
        estimate comes any more no record does, or no worker runs, and time alone brings none.
        """
        message, age = self._newest, self.age
        if message is None or age is None or not self._needed or message.progress is None:
            return ""
        if age >= self._patience():
            return (
                f"no new estimate for {_range(age, age)}: the records have ended, or no worker "
                "runs; without new records there will be no intervals"
            )
        if not (rate := message.progress.records_per_second):
            return ""
        ordered, quarter = sorted(self._needed), len(self._needed) // 4
        ends = (ordered[quarter], ordered[-1 - quarter])
        soon, late = (max(1.0, end - message.records) / rate for end in ends)
        if age >= max(late + self._pause(), SOON_SECONDS):
            # by now one would have come, had the rate lasted
            return (
                f"all intervals after about {ends[1] - message.records:,} more records; "
                f"no new estimate for {_range(age, age)}"
            )
        return f"all intervals in about {_range(soon, late)} at the present rate"

    def _patience(self) -> float:
        return max(STOPPED_SECONDS, PAUSES * self._pause())

    def _pause(self) -> float:
        """Return the longest time between two of the last estimates."""
        return max((after - before for before, after in pairwise(self._times)), default=0.0)


def _range(soon: float, late: float) -> str:
    """Return a range of seconds in the unit of its end."""
    unit, length = next((u for u in UNITS if late >= 2 * u[1]), UNITS[-1])
    first, last = (f"{max(1.0, seconds / length):,.0f}" for seconds in (soon, late))
    if late <= ALIKE * soon or first == last:
        return f"{last} {unit}{'' if last == '1' else 's'}"
    return f"{first} to {last} {unit}s"
