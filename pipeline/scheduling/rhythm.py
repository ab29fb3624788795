"""When the next model is due: the worker, a run of a file and a backtest share the rule.

Clients that work off a backlog wait for models. A release at a point far from the estimate says
less, and where sums grow by a tenth with each window, so does the error of a model that is late.
Counts that are public decide alone.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A model is due when slots have grown by one part in so many, 4 %, or so many releases have come.
PART, RELEASES = 25, 8
#: Seconds from one model to the next where only the number of releases makes it due. What has grown
#: by 4 % waits for nothing: that happens 211 times between 250 slots and a million.
SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Of the models of one study.

    grows: Whether growth of slots counts: in studies whose windows grow or noise remembers.
    releases: So many releases make a model due in any case.
    most_of_one: So do so many of one client, which waits for it; 0: no client waits.
    """

    grows: bool
    releases: int
    most_of_one: int = 0

    def wait(
        self, before: int, slots: int, releases: int, most: int = 0, least: float = 0.0
    ) -> float | None:
        """Return how long after the last model the next one is due, in seconds; None: not yet.

        before, slots: Record slots that the last model had seen, and that have been seen by now.
        releases, most: How many releases have come since, and how many of one client.
        least: Seconds between two models where slots have not grown enough for one.
        """
        if self.grows and PART * (slots - before) >= before:
            return 0.0
        if 0 < self.most_of_one <= most:
            return least
        return max(least, SECONDS) if releases >= self.releases else None
