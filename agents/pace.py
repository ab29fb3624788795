"""How fast record slots come, as the worker that publishes sees it."""

from __future__ import annotations

from collections import deque

#: The rate is that over so many seconds, or since the worker began to publish.
LOOK_BACK_SECONDS = 300.0


class Pace:
    """The rate of record slots over the last minutes of publications."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def rate(self, now: float, slots: int) -> float | None:
        """Note how many slots have come by now; return how many came each second.

        now: Seconds of a clock that never goes back.

        Returns None where there was no publication before this one.
        """
        seen = self._seen
        if seen and slots < seen[-1][1]:
            # another state than before: what came between is not known
            seen.clear()
        seen.append((now, slots))
        while len(seen) > 2 and now - seen[0][0] > LOOK_BACK_SECONDS:
            seen.popleft()
        elapsed = now - seen[0][0]
        return (slots - seen[0][1]) / elapsed if elapsed > 0 else None
