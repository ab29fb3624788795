"""When the next estimate and the next model are due, as the worker that publishes sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.release.policy import Rhythm
from pipeline.stream.merge import slots_seen
from pipeline.stream.partition import Summed
from pipeline.study.model import Publish


@dataclass(frozen=True, slots=True)
class Counts:
    """How far all partitions have been folded.

    releases: All that entered sums, those of clients that were taken out, too: an estimate stands
        for them as well.
    slots: Record slots of all releases that came.
    offsets: The sum of the next offsets.
    """

    releases: int = 0
    slots: int = 0
    offsets: int = 0

    @classmethod
    def of(cls, partitions: Iterable[Summed]) -> Counts:
        """Return the counts of all partitions of a study."""
        held = list(partitions)
        heads = [partition.head for partition in held]
        releases = sum(head.folded + head.erased for head in heads)
        return cls(releases, slots_seen(held), sum(head.next_offset for head in heads))


#: An estimate is due, too, when slots have grown by one part in so many: a backlog goes from its
#: first interval to ten times as many records in less time than passes between two estimates.
PART = 10


class Due:
    """Says how long the next estimate and the next model have still to wait.

    publish: The study's rhythm of estimates, which holds no model back.
    rhythm: That of models.
    """

    def __init__(self, publish: Publish, rhythm: Rhythm) -> None:
        self._publish, self._rhythm = publish, rhythm
        self._estimated, self._moved = (Counts(), -math.inf), (Counts(), -math.inf)
        #: Seconds that the last model took: unless slots grow, as long is left for folding.
        self._took = 0.0

    def estimate(self, counts: Counts, now: float) -> float | None:
        """Return in how many seconds an estimate is due; None: not before there are releases.

        now: Seconds of a clock that never goes back.
        """
        before, at = self._estimated
        new, publish = counts.releases - before.releases, self._publish
        if new <= 0:
            return None
        if PART * (counts.slots - before.slots) >= before.slots:
            return 0.0
        wait = 0.0 if new >= publish.releases else publish.seconds
        return max(0.0, at + max(wait, publish.pause) - now)

    def model(self, counts: Counts, most: int, now: float) -> float | None:
        """Return in how many seconds a model is due; None: not before there is something to tell.

        Releases that were refused count, too: their clients wait to hear that they were read.

        most: How many releases of one client have come since the last model.
        """
        before, at = self._moved
        if counts.offsets <= before.offsets:
            return None
        new = counts.releases - before.releases
        wait = self._rhythm.wait(before.slots, counts.slots, new, most, self._took)
        return max(0.0, at + (self._publish.seconds if wait is None else wait) - now)

    def moved(self, counts: Counts, now: float, took: float) -> None:
        """Note that a model was made, or could not be; took: how long that lasted, in seconds."""
        self._moved, self._took = (counts, now), took

    def estimated(self, counts: Counts, now: float) -> None:
        """Note that an estimate was made, or could not be."""
        self._estimated = counts, now
