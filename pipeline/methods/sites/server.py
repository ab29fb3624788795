"""Releases of sites at the worker: integers within public bounds, kept apart by site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.base import Server
from pipeline.methods.sites.client import WeighedTask
from pipeline.methods.sites.state import Room, Shape, SiteState, epochs_of
from pipeline.release.layout import Rows
from pipeline.types import Integers

T = TypeVar("T", bound=WeighedTask)
#: Releases that are added at once, in memory that is kept.
BLOCK = 1024


class SiteServer(Server[SiteState]):
    """As `methods.base.Server`; `estimate` says what the sums of a task's sites are."""

    def __init__(
        self, task: T, estimate: Callable[[T, Sequence[tuple[float, SiteState]]], Estimate]
    ) -> None:
        self._task, self._estimate = task, partial(estimate, task)
        self._room = Room()
        self._shape = Shape(task.size, task.squares, moving=task.moving)

    def empty(self) -> SiteState:
        return SiteState(self._shape, self._task.slots)

    def read(self, fields: dict[str, bytes]) -> SiteState:
        return SiteState.decode(self._shape, self._task.slots, fields)

    def fold(self, state: SiteState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        for first in range(0, len(rows), BLOCK):
            some = rows[first : first + BLOCK]
            blocks = some["records"].astype(np.int64) // self._task.slots
            found = self._shape.rows_of(some["point"], some["sums"], blocks, self._room)
            state.fold(some["client"], self._epochs(some), found, self._room)

    def _epochs(self, rows: Rows) -> Integers:
        """Return the epochs of releases, shape (n,): one for all that are taken at 0.

        Where windows grow, models come with records, and half of these may be behind the last few:
        epochs are those of the slots that a model had seen, and the first model's one of its own.
        """
        task, versions = self._task, rows["version"]
        if not task.at_models:
            return np.zeros(len(rows), dtype=np.int64)
        if not task.growth.divisor:
            return epochs_of(versions)
        seen = np.maximum(rows["model_watermark"] // task.slots, 1)
        return np.where(versions > 1, 1 + epochs_of(seen), versions)

    def estimate(
        self,
        parts: Sequence[tuple[float, SiteState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        del partitions, missing
        return self._estimate(parts)

    def start_is_over(self, states: Sequence[SiteState], furthest: int) -> bool:
        """As `Server.start_is_over`: enough releases, or one site has used up its windows.

        Which version a release gives does not count: one that was forged would be enough.
        """
        if 0 < self._task.most_at_start <= furthest:
            return True
        releases = self._task.study.stream.publish.releases
        return sum(state.releases for state in states) >= releases
