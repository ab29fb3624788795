"""When a client sends its sums again, at a newer model: in studies without privacy that say so.

It does where the stream has doubled since, and for as long as models move while no client sends new
records. So all clients together take the steps of Newton's method, and what they have sent becomes
the sums of one fit to all records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.release.model import Model
from pipeline.release.task import Task
from pipeline.types import Vector
from producers.client_store import ClientStore

#: A model has moved if predictors can have, by more than this: half its square is what is left out.
MOVED = 1e-3
#: Rounds at most while nobody sends new records.
MOST_ROUNDS = 20
#: How long models must have seen no new records, in seconds beyond a turn of the study.s rhythm,
#: and how long an ended client then waits for a newer model.
STILL_SECONDS, PATIENCE_SECONDS = 0.5, 2.0


@dataclass(slots=True)
class Again:
    """Decides for one client of one study, and says so if it never will."""

    task: Task
    store: ClientStore
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _last: Model | None = None
    _point: Vector | None = None
    _seen: int = -1
    _since: float = 0.0
    _rounds: int = 0
    _told: bool = False

    @property
    def patience(self) -> float:
        """How long an ended client waits for something to send again, in seconds."""
        return self._still + PATIENCE_SECONDS + 2 * self._turn

    def point(self, model: Model) -> Vector | None:
        """Return where sums are to be taken again, if it is time to."""
        if not (self.task.reexpands and self._due(model)):
            return None
        self._last, self._rounds = model, self._rounds + 1
        before = self.task.first_model.coefficients if self._point is None else self._point
        point = self.task.point_again(self.store.kept.windows(self.task.study.name), before, model)
        self._point = before if point is None else point
        return point

    def _due(self, model: Model) -> bool:
        now, last = self.clock(), self._last
        if model.watermark > self._seen:
            self._seen, self._since, self._rounds = model.watermark, now, 0
        if model.version == 0 or (last is not None and model.version <= last.version):
            return False
        doubled = last is None or model.watermark >= 2 * last.watermark
        still = now - self._since >= self._still and self._rounds < MOST_ROUNDS
        return (doubled or still) and self._moved(model) and self._whole()

    @property
    def _turn(self) -> float:
        rhythm = self.task.study.stream.publish
        return rhythm.seconds + rhythm.pause

    @property
    def _still(self) -> float:
        return STILL_SECONDS + self._turn

    def _moved(self, model: Model) -> bool:
        if self._point is None or self._last is None:
            return True
        weights = np.abs(np.subtract(self._last.class_weights, model.class_weights))
        moved = np.abs(self._point - model.coefficients) @ np.append(1.0, self.task.magnitudes)
        return bool(max(moved, *weights) > MOVED)

    def _whole(self) -> bool:
        """Whether the records of all releases are there."""
        study = self.task.study.name
        kept, records = self.store.kept.counted(study)
        missing = self.store.peek(study).next_seq - kept
        if missing and not self._told:
            self._told = True
            self.say(
                f"WARNING: the records of {missing} releases of this client are lost, so it cannot "
                "send its sums again (estimator.method.reexpand): what it has sent stays"
            )
        return not missing and 0 < records <= self.task.most_records
