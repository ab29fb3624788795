"""Noised releases of a renewable study at the worker: integers within public bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.messages.release import Release
from pipeline.methods.layout import Layout
from pipeline.methods.renewable.private_estimate import INTERVAL, estimate_private
from pipeline.methods.renewable.private_state import PrivateBatch, PrivateState, Shape
from pipeline.methods.renewable.task import RenewableTask
from pipeline.privacy.channel import Channel
from pipeline.release.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT, Part
from pipeline.types import Integers


class PrivateServer:
    """As `methods.base.Server`, for integer sums."""

    ordered = False

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._shape, self._slots = task, Shape.of(task), task.slots
        step, start, size = task.update_channels, task.initial_channels, task.size
        packed = size * (size + 1) // 2
        self._expansion = Layout("expansion", "<i8", size, (COEFFICIENT_EXPONENT,))
        first, later = task.groups * size + task.counted(0), size + packed + task.counted(1)
        self._start_sums = Layout("sums", "<i8", first, start.exponents)
        self._step_sums = Layout("sums", "<i8", later, step.exponents)

        def bound(part: Channel | None) -> float:
            return part.largest(task.slots) if part else 0.0

        self._counts = max(bound(start.counts), bound(step.counts))
        self._start = bound(start.gradient)
        self._gradient = bound(step.gradient)
        self._curvature = bound(step.curvature)
        self._squares = bound(step.counts) if not task.classes else 0.0

    @property
    def interval(self) -> str:
        """As `Server.interval`."""
        return INTERVAL

    def check(self, release: Release) -> None:
        """As `Server.check`."""
        self._expansion.check(release.expansion)
        (self._step_sums if release.version else self._start_sums).check(release.sums)

    def sound(self, batch: PrivateBatch) -> bool:
        """As `Server.sound`."""
        return (
            _largest(batch.counts) <= self._counts
            and _largest(batch.start) <= self._start
            and _largest(batch.gradient) <= self._gradient
            and _largest(batch.curvature) <= self._curvature
            and _largest(batch.squares) <= self._squares
            and _largest(batch.expansion) <= COEFFICIENT_LIMIT
        )

    def slots(self, releases: Sequence[Release]) -> int:
        """As `Server.slots`: every release has the study's."""
        return len(releases) * self._slots

    def join(self, releases: Sequence[Release]) -> PrivateBatch:
        """As `Server.join`."""
        shape = self._shape
        size, classes = shape.size, shape.classes
        start = [r for r in releases if not r.version]
        later = [r for r in releases if r.version] if start else releases
        ends = np.cumsum([size, size * (size + 1) // 2, shape.squares, classes])
        first = _stack([r.sums.data for r in start], shape.groups * size + classes)
        sums = _stack([r.sums.data for r in later], int(ends[-1]))
        gradients, start_counts = np.split(first, [shape.groups * size], axis=1)
        gradient, curvature, squares, counts = np.split(sums, ends[:-1], axis=1)
        return PrivateBatch(
            counts=np.concatenate([start_counts, counts]),
            start=gradients,
            versions=np.array([r.version for r in later], dtype=np.int64),
            expansion=_stack([r.expansion.data for r in later], size),
            gradient=gradient,
            curvature=curvature,
            squares=squares,
            slots=self._slots,
        )

    def empty(self, *, trace: bool = False) -> PrivateState:
        """As `Server.empty`; there is nothing to trace."""
        del trace
        return PrivateState(self._shape)

    def read(self, fields: dict[str, bytes]) -> PrivateState:
        """As `Server.read`."""
        return PrivateState.decode(self._shape, fields)

    def fold(self, state: PrivateState, batch: PrivateBatch) -> None:
        """As `Server.fold`; any order gives the same bits."""
        state.fold(batch)

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
        client has sent all that `stream.max_in_flight_windows` allows.
        """
        stream = self._task.study.stream
        if any(state.epochs for state in states) or (
            stream.max_in_flight_windows and furthest >= stream.max_in_flight_windows
        ):
            return True
        return sum(int(state.start[-1]) for state in states) >= stream.publish.releases

    def part(self, slots: int, state: PrivateState | None) -> Part | None:
        """As `Server.part`: all partitions share the model."""
        del slots, state
        return None


def _stack(parts: Sequence[bytes], width: int) -> Integers:
    return np.frombuffer(b"".join(parts), dtype="<i8").reshape(-1, width)


def _largest(values: Integers) -> float:
    """Return the largest absolute value, as a float: the least int64 has no positive twin."""
    if values.size == 0:
        return 0.0
    return max(float(values.max()), -float(values.min()))
