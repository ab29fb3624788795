"""Noised releases of a renewable study at the worker: integers within public bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.messages.form import Rows
from pipeline.methods.base import Server
from pipeline.methods.renewable.private_estimate import INTERVAL, estimate_private
from pipeline.methods.renewable.private_state import GROUPS, PrivateBatch, PrivateState, Shape
from pipeline.methods.renewable.task import RenewableTask
from pipeline.release.share import most_releases
from pipeline.types import Integers


class PrivateServer(Server[PrivateState]):
    """As `methods.base.Server`, for integer sums."""

    ordered = False
    interval = INTERVAL

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._shape, self._slots = task, Shape.of(task), task.slots
        self._start, self._later = (task.layout.columns(version) for version in (0, 1))

    def slots(self, rows: Rows) -> int:
        """As `Server.slots`: every release has the study's."""
        return int(rows["records"].sum())

    def empty(self, *, trace: bool = False) -> PrivateState:
        """As `Server.empty`; there is nothing to trace."""
        del trace
        return PrivateState(self._shape)

    def read(self, fields: dict[str, bytes]) -> PrivateState:
        """As `Server.read`."""
        return PrivateState.decode(self._shape, fields)

    def fold(self, state: PrivateState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        state.fold(self.batch(rows))

    def batch(self, rows: Rows) -> PrivateBatch:
        """Return releases part by part, those at the start apart."""
        at_start = rows["version"] == 0
        some = bool(at_start.any())
        later = rows[~at_start] if some else rows
        first, sums = rows["sums"][at_start], later["sums"]
        counted, nothing = _part(sums, self._later.get("counts")), sums[:, :0]
        # a regression has no classes: what it counts is the sum of squared slopes
        classes, squares = (counted, nothing) if self._shape.classes else (nothing, counted)
        if some:
            classes = np.concatenate([_part(first, self._start.get("counts")), classes])
        return PrivateBatch(
            counts=classes,
            start=first[:, self._start["gradient"]],
            versions=later["version"],
            expansion=later["point"],
            gradient=sums[:, self._later["gradient"]],
            curvature=sums[:, self._later["curvature"]],
            squares=squares,
            slots=self._slots,
            # any bits of a digest will do
            groups=(later["client"][:, 0] % GROUPS).astype(np.int64),
        )

    def estimate(
        self, parts: Sequence[tuple[float, PrivateState]], partitions: Sequence[int]
    ) -> Estimate:
        """As `Server.estimate`."""
        del partitions
        return estimate_private(self._task, parts)

    def start_is_over(self, states: Sequence[PrivateState], furthest: int) -> bool:
        """As `Server.start_is_over`.

        The first model is one step from zero, and its noise falls with the releases behind it only.
        Later estimates leave it slowly in directions whose curvature is below its noise, so a first
        model of one or two releases can spoil a long stream. Waiting costs nothing: releases at the
        start carry less noise than later ones. Nobody is held up either: it is over as soon as one
        client has sent all that `stream.max_in_flight_windows` or `trust.largest_share` allows.
        """
        stream, share = self._task.study.stream, most_releases(self._task.study, 0)
        held_at = [most for most in (stream.max_in_flight_windows, share) if most]
        if any(state.epochs for state in states) or any(furthest >= most for most in held_at):
            return True
        return sum(int(state.start[-1]) for state in states) >= stream.publish.releases


def _part(rows: Integers, columns: slice | None) -> Integers:
    return rows[:, :0] if columns is None else rows[:, columns]
