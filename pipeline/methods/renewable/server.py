"""Noised releases of a renewable study at the worker: integers within public bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.base import Server
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.estimate import estimate_private
from pipeline.methods.renewable.state import GROUPS, PrivateBatch, PrivateState, Shape
from pipeline.privacy import memory
from pipeline.release.budget import most_releases
from pipeline.release.layout import Rows
from pipeline.types import Integers


class PrivateServer(Server[PrivateState]):
    """As `methods.base.Server`, for integer sums."""

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._shape = task, Shape.of(task)
        self._start, self._later = (task.layout.columns(version) for version in (0, 1))

    def empty(self) -> PrivateState:
        return PrivateState(self._shape)

    def read(self, fields: dict[str, bytes]) -> PrivateState:
        return PrivateState.decode(self._shape, fields)

    def fold(self, state: PrivateState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        state.fold(self.batch(rows))

    def batch(self, rows: Rows) -> PrivateBatch:
        """Return releases part by part, those at the start apart."""
        at_start, slots = rows["version"] == 0, self._task.slots
        some = bool(at_start.any())
        later = rows[~at_start] if some else rows
        first, sums = rows["sums"][at_start], later["sums"]
        counted, nothing = _part(sums, self._later.get("counts")), sums[:, :0]
        # a regression has no classes: what it counts is the sum of squared slopes
        classes, squares = (counted, nothing) if self._shape.classes else (nothing, counted)
        if some:
            classes = np.concatenate([_part(first, self._start.get("counts")), classes])
        # where windows and noise are alike, releases say nothing of their place
        placed = self._task.remembers
        count = len(later)
        return PrivateBatch(
            counts=classes,
            start=first[:, self._start["gradient"]],
            slots=self.slots(rows),
            epochs=memory.epochs_of(later["model_watermark"], slots),
            expansion=later["point"],
            gradient=sums[:, self._later["gradient"]],
            curvature=sums[:, self._later["curvature"]],
            middle=_part(sums, self._later.get("middle")),
            squares=squares,
            blocks=later["records"].astype(np.int64) // slots,
            numbers=later["number"] if placed else np.zeros(count, dtype=np.int64),
            starts=later["starts"] if placed else np.zeros((count, memory.EPOCHS), dtype=np.int64),
            # any bits of a digest will do
            groups=(later["client"][:, 0] % GROUPS).astype(np.int64),
        )

    def estimate(
        self,
        parts: Sequence[tuple[float, PrivateState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        del partitions
        return estimate_private(self._task, parts, missing)

    def start_is_over(self, states: Sequence[PrivateState], furthest: int) -> bool:
        """As `Server.start_is_over`.

        The first model is one step from zero, and its noise falls with the releases behind it only.
        Later estimates leave it slowly in directions whose curvature is below its noise, so a first
        model of one or two releases can spoil a long stream. Waiting costs nothing: releases at the
        start carry less noise than later ones. Nobody is held up either: it is over as soon as one
        client has sent all that `stream.max_in_flight_windows` or `trust.largest_share` allows.
        """
        stream, share = self._task.study.stream, most_releases(self._task.study, 0)
        held_at = [most for most in (self._task.most_at_start, share) if most]
        if any(state.epochs for state in states) or any(furthest >= most for most in held_at):
            return True
        return sum(int(state.start[-1]) for state in states) >= stream.publish.releases


def _part(rows: Integers, columns: slice | None) -> Integers:
    return rows[:, :0] if columns is None else rows[:, columns]
