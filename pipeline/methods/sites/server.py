"""Releases of sites at the worker: integers within public bounds, kept apart by site.

Which of them count, and where the next ones are taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.base import Server
from pipeline.methods.sites.client import LONGEST_STEP, WeighedTask
from pipeline.methods.sites.state import BLOCKS, KEPT, Room, Shape, SiteState, epochs_of
from pipeline.release.layout import Rows
from pipeline.types import Integers, Matrix, Vector

#: Older epochs are left out only where so large a share of the sites that go on stays.
STAYING = 0.75
#: A site has stopped that is so many epochs behind the one that more than half have reached: they
#: are at a model of twice its number, or the third where it is at the first.
SILENT = 2
#: No epoch is later.
LAST = 2**40
#: How far a stream is on the way in which the interval of a coefficient has no end.
UNSURE = 0.9


def gathered(
    parts: Sequence[tuple[float, SiteState]], kept: Collection[int]
) -> tuple[list[str], Integers, Vector, Integers, Integers]:
    """Return the sums of the epochs `kept` of all buckets, row by row.

    Names of the M sites, sorted; of each row its site's place in them, its bucket's weight and its
    epoch, shape (n,); and the sums, shape (n, width).
    """
    names: list[str] = []
    weights, epochs, rows = [], [], []
    for weight, state in parts:
        which, epoch, row = state.held()
        own, known = np.isin(epoch, list(kept)), list(state.sites)
        names += [known[place] for place in which[own].tolist()]
        weights.append(np.full(int(own.sum()), weight))
        epochs.append(epoch[own])
        rows.append(row[own])
    found = sorted(set(names))
    place = {name: index for index, name in enumerate(found)}
    return (
        found,
        np.array([place[name] for name in names], dtype=np.int64),
        np.concatenate(weights),
        np.concatenate(epochs),
        np.concatenate(rows),
    )


def recent_epochs(parts: Sequence[tuple[float, SiteState]]) -> set[int]:
    """Return the epochs that enter the estimate: the newest, and the start for as long as it must.

    The newest that count are those that more than a quarter of the sites have reached, and all
    behind them: a few sites that send more, or say newer versions, push nobody out. Scores of the
    public start are the farthest from the estimate. They leave it when as many slots at models have
    come, of most sites.
    """
    counts, reached = Counter[int](), newest_epochs(parts)
    for _, state in parts:
        _, epochs, rows = state.held()
        for epoch in np.unique(epochs).tolist():
            counts[epoch] += int(rows[epochs == epoch, BLOCKS].sum())
    if not reached:
        return set()
    come = sorted(reached.values(), reverse=True)[len(reached) // 4]
    known = sorted(counts)
    last = [epoch for epoch in known if epoch <= come][-KEPT:]
    last += [epoch for epoch in known if epoch > come]
    later = sum(counts[epoch] for epoch in last if epoch)
    moved_on = 2 * sum(epoch > 0 for epoch in reached.values()) > len(reached)
    return {epoch for epoch in last if epoch or counts[0] > later or not moved_on}


def newest_epochs(parts: Sequence[tuple[float, SiteState]]) -> dict[str, int]:
    """Return the newest epoch of each site."""
    reached: dict[str, int] = {}
    for _, state in parts:
        newest = state.epochs[: len(state.sites)].max(axis=1, initial=-1)
        for name, epoch in zip(state.sites, newest.tolist(), strict=True):
            reached[name] = max(epoch, reached.get(name, -1))
    return reached


def needed_sites(parts: Sequence[tuple[float, SiteState]], names: Collection[str]) -> int:
    """Return how many of some sites must stay where older epochs are left out.

    Three quarters of those that go on, and more than half of all: the first few at a new model are
    no majority alone. Those have stopped that are `SILENT` epochs behind what most have reached.
    """
    newest, held = newest_epochs(parts), [state.epochs[: len(state.sites)] for _, state in parts]
    # start and first model are behind the second one, whatever its epoch is
    second = min(int(np.min(epochs, initial=LAST, where=epochs > 1)) for epochs in held)
    each = (newest[name] + (second - 2) * (newest[name] <= 1) for name in names)
    reached = sorted(each, reverse=True)
    most = reached[len(reached) // 2]
    going = sum(epoch > most - SILENT for epoch in reached)
    return max(math.ceil(STAYING * going), len(reached) // 2 + 1)


def next_point(
    norm_bound: float, coefficients: Vector, points: Matrix | None, *, settled: bool
) -> Vector:
    """Return where the next releases are taken: the estimate, or a step on the way there.

    points: Where those of the sites were taken, shape (M, d); None: at 0.
    """
    if settled:
        return coefficients
    middle = np.zeros(len(coefficients)) if points is None else np.median(points, axis=0)
    moved = norm_bound * float(np.linalg.norm(coefficients - middle))
    found: Vector = middle + (coefficients - middle) * min(1.0, LONGEST_STEP / max(moved, 1e-300))
    return found


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
