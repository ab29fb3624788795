"""Releases of a batch as arrays: joined once, bounded at once, added at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pipeline.estimators.buckets import State
from pipeline.estimators.open_state import OpenRow
from pipeline.estimators.private_state import PrivateBatch, PrivateState, Shape
from pipeline.estimators.sgd.state import GradientBatch, SgdState
from pipeline.local.model import COEFFICIENT_EXPONENT, COEFFICIENT_LIMIT
from pipeline.local.plan import Plan
from pipeline.messages.release import Numbers, OpenRelease, Release
from pipeline.privacy.channel import Channel
from pipeline.types import Integers, Vector

Batch = PrivateBatch | list[OpenRow] | GradientBatch


class Rows(Protocol):
    """How releases of one kind of study become rows of a state."""

    def join(self, releases: Sequence[Release]) -> Batch:
        """Join the arrays of some releases, in order."""
        ...

    def slots(self, releases: Sequence[Release]) -> int:
        """Return how many record slots some releases have."""
        ...

    def sound(self, batch: Batch) -> bool:
        """Whether all its numbers are ones that an honest client can send."""
        ...


class PrivateRows:
    """Rows of a private study: integers within public bounds."""

    def __init__(self, plan: Plan) -> None:
        self._shape, self._slots = Shape.of(plan), plan.slots
        step, start = plan.step, plan.start

        def bound(part: Channel | None) -> float:
            return part.largest(plan.slots) if part else 0.0

        self._counts = max(bound(start.counts), bound(step.counts))
        self._start = bound(start.gradient)
        self._gradient = bound(step.gradient)
        self._curvature = bound(step.curvature)
        self._squares = bound(step.counts) if not plan.classes else 0.0

    def sound(self, batch: Batch) -> bool:
        """As `Rows.sound`."""
        return (
            isinstance(batch, PrivateBatch)
            and _largest(batch.counts) <= self._counts
            and _largest(batch.start) <= self._start
            and _largest(batch.gradient) <= self._gradient
            and _largest(batch.curvature) <= self._curvature
            and _largest(batch.squares) <= self._squares
            and _largest(batch.expansion) <= COEFFICIENT_LIMIT
        )

    def slots(self, releases: Sequence[Release]) -> int:
        """As `Rows.slots`: every release has the study's."""
        return len(releases) * self._slots

    def join(self, releases: Sequence[Release]) -> PrivateBatch:
        """As `Rows.join`."""
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


#: No float of an open release may be larger: products of two must stay finite.
LARGEST_FLOAT = 1e100


class OpenRows:
    """Rows of a study without privacy: bounded floats, added one by one."""

    def __init__(self, plan: Plan) -> None:
        self._size = plan.size

    def slots(self, releases: Sequence[Release]) -> int:
        """As `Rows.slots`: the records that entered."""
        return sum(r.records for r in releases if isinstance(r, OpenRelease))

    def join(self, releases: Sequence[Release]) -> list[OpenRow]:
        """As `Rows.join`."""
        return [self._row(r) for r in releases if isinstance(r, OpenRelease)]

    def sound(self, batch: Batch) -> bool:
        """As `Rows.sound`."""
        return isinstance(batch, list) and all(
            bool((np.abs(part) <= LARGEST_FLOAT).all())
            for row in batch
            for part in (row.expansion, row.gradient, row.curvature, row.scores, row.counts)
        )

    def _row(self, release: OpenRelease) -> OpenRow:
        size, packed = self._size, self._size * (self._size + 1) // 2
        sums = _floats(release.sums)
        gradient, curvature, scores, counts = np.split(
            sums, [size, size + packed, size + 2 * packed]
        )
        return OpenRow(
            records=release.records,
            expansion=_floats(release.expansion),
            gradient=gradient,
            curvature=curvature,
            scores=scores,
            counts=counts,
            start=release.version == 0,
        )


class GradientRows:
    """Rows of a study with locally private gradients: one of a record after the other.

    Parameters
    ----------
    plan
        The study, with or without noise.
    """

    def __init__(self, plan: Plan) -> None:
        self._slots, self._size = plan.slots, plan.size
        self._noised, self._unit = plan.study.noised, 1.0
        self._largest = plan.radius * plan.loss.slope_bound
        self._furthest = math.ldexp(COEFFICIENT_LIMIT, COEFFICIENT_EXPONENT)
        if self._noised:
            # the worker does not know a slot's level: any of them may have made its noise
            parts = plan.record_channels
            largest = max(part.largest(plan.summed) for part in parts)
            self._unit, self._largest = parts[0].unit, largest * parts[0].unit

    def slots(self, releases: Sequence[Release]) -> int:
        """As `Rows.slots`: an empty slot moves the path by its noise."""
        return len(releases) * self._slots

    def join(self, releases: Sequence[Release]) -> GradientBatch:
        """As `Rows.join`."""
        kind = "<i8" if self._noised else "<f8"
        count = self._slots * self._size
        # class counts, which an open release of this kind leaves at zero, stand at its end
        width = count if self._noised else count + 2
        sums = np.frombuffer(b"".join([r.sums.data for r in releases]), dtype=kind)
        numbers = sums.reshape(-1, width)[:, :count]
        points = np.frombuffer(b"".join([r.expansion.data for r in releases]), dtype=kind)
        scale = math.ldexp(1.0, COEFFICIENT_EXPONENT) if self._noised else 1.0
        return GradientBatch(
            gradients=(numbers * self._unit).reshape(-1, self._slots, self._size),
            points=(points * scale).reshape(-1, self._size),
            seen=np.array([r.seen for r in releases], dtype=np.int64),
        )

    def sound(self, batch: Batch) -> bool:
        """As `Rows.sound`; a number that is none is not within any bound."""
        return (
            isinstance(batch, GradientBatch)
            and bool((np.abs(batch.gradients) <= self._largest).all())
            and bool((np.abs(batch.points) <= self._furthest).all())
        )


def rows_of(plan: Plan) -> Rows:
    """Return how the releases of a study become rows."""
    if plan.by_record:
        return GradientRows(plan)
    return PrivateRows(plan) if plan.study.noised else OpenRows(plan)


def add(sums: State, batch: Batch) -> None:
    """Add a batch to a state of the same kind."""
    if isinstance(sums, PrivateState):
        if isinstance(batch, PrivateBatch):
            return sums.fold(batch)
    elif isinstance(sums, SgdState):
        if isinstance(batch, GradientBatch):
            return sums.fold(batch)
    elif isinstance(batch, list):
        return sums.fold(batch)
    raise TypeError("a state folds releases of its own kind")


def _stack(parts: Sequence[bytes], width: int) -> Integers:
    return np.frombuffer(b"".join(parts), dtype="<i8").reshape(-1, width)


def _largest(values: Integers) -> float:
    """Return the largest absolute value, as a float: the least int64 has no positive twin."""
    if values.size == 0:
        return 0.0
    return max(float(values.max()), -float(values.min()))


def _floats(numbers: Numbers) -> Vector:
    return np.frombuffer(numbers.data, dtype="<f8")
