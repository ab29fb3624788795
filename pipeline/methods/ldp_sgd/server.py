"""Gradients of single records at the worker: one of a record after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.errors import PayloadError
from pipeline.estimators.estimate import Estimate
from pipeline.messages.release import OpenRelease, Release
from pipeline.methods.layout import Layout
from pipeline.methods.ldp_sgd.estimate import estimate_sgd
from pipeline.methods.ldp_sgd.settings import rule_of
from pipeline.methods.ldp_sgd.state import GradientBatch, SgdState
from pipeline.methods.ldp_sgd.task import GradientTask
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT, Part, on_lattice

#: Sums of floats may pass the bound of exact ones by this share: 2^17 records, 2^-53 for each.
_ROUNDING = 2.0**-30


class GradientServer:
    """As `methods.base.Server`, for paths, with or without noise."""

    ordered = True

    def __init__(self, task: GradientTask) -> None:
        self._task, self._rule = task, rule_of(task)
        self._slots, self._size = task.slots, task.size
        self._noised, self._unit = task.study.noised, 1.0
        self._largest = task.largest_gradient
        self._furthest = math.ldexp(COEFFICIENT_LIMIT, COEFFICIENT_EXPONENT)
        square = task.slots * task.clipping_norm**2 * (1 + _ROUNDING)
        bounds = [square * task.loss.curvature_bound, square * task.loss.slope_bound**2]
        units = [1.0, 1.0]
        if self._noised:
            self._unit = task.channels.gradient.unit
            matrices = [
                m for m in (task.channels.curvature, task.channels.products) if m is not None
            ]
            units = [m.unit for m in matrices]
            bounds = [m.largest(task.slots) * m.unit for m in matrices]
        # one unit and one bound for each number of each matrix, in the order of a release
        packed = task.size * (task.size + 1) // 2
        self._units = np.repeat(units, packed)[: task.extra_numbers]
        self._bounds = np.repeat(bounds, packed)[: task.extra_numbers]
        numbers = task.slots * task.size + task.extra_numbers
        if self._noised:
            self._expansion = Layout("expansion", "<i8", task.size, (COEFFICIENT_EXPONENT,))
            self._sums = Layout("sums", "<i8", numbers, task.channels.exponents)
        else:
            self._expansion = Layout("expansion", "<f8", task.size, (0,))
            # class counts, which a release of this kind leaves at zero, stand at its end
            self._sums = Layout("sums", "<f8", numbers + 2, (0,))

    @property
    def interval(self) -> str:
        """As `Server.interval`."""
        return (self._task.path).interval

    def check(self, release: Release) -> None:
        """As `Server.check`."""
        if isinstance(release, OpenRelease) and release.records > self._slots:
            raise PayloadError("wrong-claim", "more records than the window has slots")
        self._expansion.check(release.expansion)
        self._sums.check(release.sums)

    def slots(self, releases: Sequence[Release]) -> int:
        """As `Server.slots`: an empty slot moves the path by its noise."""
        return len(releases) * self._slots

    def join(self, releases: Sequence[Release]) -> GradientBatch:
        """As `Server.join`."""
        kind = "<i8" if self._noised else "<f8"
        count, extra = self._slots * self._size, len(self._units)
        width = count + extra + (0 if self._noised else 2)
        sums = np.frombuffer(b"".join([r.sums.data for r in releases]), dtype=kind)
        numbers = sums.reshape(-1, width)
        points = np.frombuffer(b"".join([r.expansion.data for r in releases]), dtype=kind)
        scale = math.ldexp(1.0, COEFFICIENT_EXPONENT) if self._noised else 1.0
        return GradientBatch(
            gradients=(numbers[:, :count] * self._unit).reshape(-1, self._slots, self._size),
            points=(points * scale).reshape(-1, self._size),
            # without a place there is one partition, and all that was seen was seen there
            watermarks=np.array(
                [
                    r.model_watermark if r.partition_watermark is None else r.partition_watermark
                    for r in releases
                ],
                dtype=np.int64,
            ),
            clock=np.array([r.model_watermark for r in releases], dtype=np.int64),
            extra=numbers[:, count : count + extra] * self._units,
        )

    def sound(self, batch: GradientBatch) -> bool:
        """As `Server.sound`; a number that is none is not within any bound."""
        return (
            bool((np.abs(batch.gradients) <= self._largest).all())
            and bool((np.abs(batch.points) <= self._furthest).all())
            and bool((np.abs(batch.extra) <= self._bounds).all())
        )

    def empty(self, *, trace: bool = False) -> SgdState:
        """As `Server.empty`; a trace keeps all iterates, 8 d bytes for each record."""
        state = SgdState(self._rule)
        if trace:
            state.path.kept = []
        return state

    def read(self, fields: dict[str, bytes]) -> SgdState:
        """As `Server.read`."""
        return SgdState.decode(self._rule, fields)

    def fold(self, state: SgdState, batch: GradientBatch) -> None:
        """As `Server.fold`, in the order of the log."""
        state.fold(batch)

    def estimate(
        self, parts: Sequence[tuple[float, SgdState]], partitions: Sequence[int]
    ) -> Estimate:
        """As `Server.estimate`; a path has no age, so there is one bucket."""
        [(_, state)] = parts
        return estimate_sgd(self._task, state, partitions)

    def start_is_over(self, states: Sequence[SgdState], furthest: int) -> bool:
        """As `Server.start_is_over`: a path moves from its first record on."""
        del states, furthest
        return True

    def part(self, slots: int, state: SgdState | None) -> Part | None:
        """As `Server.part`: how far its partition has come, and its own point where paths pool."""
        if self._task.partition_strategy is None:
            return None
        if self._task.partition_strategy == "shared":
            return Part(slots)
        point = self._task.first_model.coefficients if state is None else state.path.theta
        return Part(slots, on_lattice(point))
