"""When all intervals come, in words, from the last estimates of a stream."""

from __future__ import annotations

from collections import deque

from pipeline.messages.estimate import EstimateMessage

#: A forecast looks at so many estimates: what one says is missing hangs on its noise.
LOOK_BACK = 20
#: Both ends of a range are alike up to this ratio.
ALIKE = 1.25
UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


class Forecast:
    """The range of what the last estimates have said that all intervals need."""

    def __init__(self) -> None:
        self._needed: deque[int] = deque(maxlen=LOOK_BACK)

    def told(self, message: EstimateMessage) -> str:
        """Take the next estimate; return in words when all intervals come, or nothing.

        The middle half of what the last ones have said counts: single ones jump.
        """
        found = message.progress
        if found is None or found.missing_records is None or found.share >= 1:
            self._needed.clear()
            return ""
        self._needed.append(message.records + found.missing_records)
        if not found.records_per_second:
            return ""
        ordered, quarter = sorted(self._needed), len(self._needed) // 4
        ends = (ordered[quarter], ordered[-1 - quarter])
        soon, late = (max(1.0, end - message.records) / found.records_per_second for end in ends)
        return f"all intervals in about {_range(soon, late)} at the present rate"


def _range(soon: float, late: float) -> str:
    """Return a range of seconds in the unit of its end."""
    unit, length = next((u for u in UNITS if late >= 2 * u[1]), UNITS[-1])
    first, last = (f"{max(1.0, seconds / length):,.0f}" for seconds in (soon, late))
    if late <= ALIKE * soon or first == last:
        return f"{last} {unit}{'' if last == '1' else 's'}"
    return f"{first} to {last} {unit}s"
