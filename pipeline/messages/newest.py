"""The newest model on the topic that an honest worker can have published.

Versions rise by one with each publication, and each publication puts one message on the models
topic; one follows another only after a release, but for the first of a worker's start. So offsets
and the length of the releases topic explain every honest version, also where the models topic was
made anew, and compaction and the marks of transactions only leave room. Record slots that a model
says it has seen came in releases. Where both topics were made anew, nothing explains an honest
model, but the clock still bounds it: then the newest possible one is taken, until one comes that is
explained. The successor of a model that passes, passes too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pipeline.release.model import VERSION_LIMIT, Model
from pipeline.release.task import Task

#: Publications that no release led to: those of a worker's starts, and of two workers at once.
SPARE = 1024
#: No study is older, in seconds since 1970, and no worker publishes more often in a second.
OLDEST, OFTEN = 1_577_836_800, 1000
Outcome = Literal["taken", "older", "refused"]


def is_possible(version: int, now: float) -> bool:
    """Whether a worker can have come to a version by now, seconds since 1970."""
    return version <= min(VERSION_LIMIT, OFTEN * max(0.0, now - OLDEST))


class Newest:
    """The newest believable model among those that it is shown, in the order of the log.

    ends: Returns how far the releases topic reaches: the sum of the next offsets of its partitions.
    clock: Seconds since 1970.

    model: The newest; at first the public start.
    explained: Whether the logs can hold what led to it.
    """

    def __init__(self, task: Task, ends: Callable[[], int], clock: Callable[[], float]) -> None:
        self._slots, self._ends, self._clock = task.slots, ends, clock
        #: Whether ages matter: where they do not, the topic is not asked for its length.
        self._aged = task.counts_slots
        self._releases, self._offset = 0, -1
        self.model: Model = task.first_model
        self.explained = False

    def take(self, offset: int, model: Model) -> Outcome:
        """Look at one model, and say what became of it.

        offset: Where it stands in the models topic.

        Returns: "refused" is one that would be the newest, and that nobody can have published.
        """
        if not self._fits(offset, model):
            ends = self._ends()
            if ends < self._releases or offset <= self._offset:
                # what was explained by logs that are gone is no better than what is new
                self.explained = False
            self._releases = ends
        explained = self._fits(offset, model)
        if not is_possible(model.version, self._clock()) or self.explained > explained:
            return "refused" if model.version > self.model.version else "older"
        if (explained, model.version) <= (self.explained, self.model.version):
            return "older"
        self.model, self.explained, self._offset = model, explained, offset
        return "taken"

    def _fits(self, offset: int, model: Model) -> bool:
        if model.version > offset + 1 + self._releases + SPARE:
            return False
        watermark = max([model.watermark, *(part.partition_watermark for part in model.parts)])
        return not self._aged or watermark <= self._releases * self._slots
