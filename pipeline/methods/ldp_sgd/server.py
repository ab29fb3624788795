"""Gradients of single records at the worker: one of a record after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods.base import Server
from pipeline.methods.ldp_sgd.client import GradientTask
from pipeline.methods.ldp_sgd.estimate import estimate_sgd, newest_point
from pipeline.methods.ldp_sgd.state import GradientBatch, SgdState
from pipeline.methods.ldp_sgd.step_rule import rule_of
from pipeline.release.layout import NO_PARTITION, Rows
from pipeline.release.model import Part, on_lattice
from pipeline.types import Vector


class GradientServer(Server[SgdState]):
    """As `methods.base.Server`, for paths, with or without noise."""

    ordered = True
    from_start = (
        'kind = "ldp-sgd" moves one path from the public start through all records in their '
        "order, and each gradient was taken where that path had led"
    )

    def __init__(self, task: GradientTask) -> None:
        self._task, self._rule, layout = task, rule_of(task), task.layout
        gradient, *matrices = layout.later
        self._gradients, self._unit = gradient.length, 2.0**gradient.exponent
        self._point_unit = 2.0**layout.point.exponent
        # one unit for each number of each matrix, in the order of a release
        self._units = np.repeat([2.0**m.exponent for m in matrices], [m.length for m in matrices])

    def slots(self, rows: Rows) -> int:
        """As `Server.slots`: an empty slot moves the path by its noise."""
        return len(rows) * self._task.slots

    def empty(self) -> SgdState:
        return SgdState(self._rule)

    def read(self, fields: dict[str, bytes]) -> SgdState:
        return SgdState.decode(self._rule, fields)

    def fold(self, state: SgdState, rows: Rows) -> None:
        """As `Server.fold`, in the order of the log."""
        state.fold(self.batch(rows))

    def batch(self, rows: Rows) -> GradientBatch:
        """Return releases in real units."""
        count, own, clock = self._gradients, rows["partition_watermark"], rows["model_watermark"]
        numbers = rows["sums"]
        gradients = numbers[:, :count] * self._unit
        return GradientBatch(
            gradients=gradients.reshape(-1, self._task.slots, self._task.size),
            points=rows["point"] * self._point_unit,
            # without a place there is one partition, and all that was seen was seen there
            watermarks=np.where(own == NO_PARTITION, clock, own),
            clock=np.ascontiguousarray(clock),
            extra=numbers[:, count:] * self._units,
        )

    def estimate(
        self,
        parts: Sequence[tuple[float, SgdState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        """As `Server.estimate`; a path has no age, so there is one bucket."""
        [(_, state)] = parts
        return estimate_sgd(self._task, state, partitions)

    def next_point(
        self, parts: Sequence[tuple[float, SgdState]]
    ) -> tuple[Vector, tuple[float, float]]:
        """As `Server.next_point`: the newest iterate, without the intervals of the average."""
        [(_, state)] = parts
        return newest_point(self._task, state.paths), (1.0, 1.0)

    def part(self, slots: int, state: SgdState | None) -> Part | None:
        """As `Server.part`: how far its partition has come, and its own point where paths pool."""
        if self._task.partition_strategy is None:
            return None
        if self._task.partition_strategy == "shared":
            return Part(slots)
        point = self._task.first_model.coefficients if state is None else state.path.theta
        return Part(slots, on_lattice(point))
