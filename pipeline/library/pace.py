"""When intervals come at the rate at which records have come so far, from one estimate to the next.

A consumer's own arithmetic: estimates themselves are a function of the log alone.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

from pipeline.messages.estimate import EstimateMessage

#: The rate is that over so many estimates.
LOOK_BACK = 20


class Pace:
    """The rate of record slots over the last estimates that were seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=LOOK_BACK)

    def told(self, message: EstimateMessage) -> str:
        """Take the next estimate; return in words when all intervals come, or nothing."""
        now = datetime.fromisoformat(message.published_at).timestamp()
        self._seen.append((now, message.records))
        missing = message.progress.missing_records if message.progress else None
        (since, before), elapsed = self._seen[0], now - self._seen[0][0]
        if not missing or elapsed <= 0 or message.records <= before:
            return ""
        seconds = missing * (now - since) / (message.records - before)
        for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
            if seconds >= 2 * length or unit == "second":
                break
        return f"all intervals in about {seconds / length:,.0f} {unit}s at the present rate"
