"""Releases of a batch as arrays: joined once, bounded at once, added at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pipeline.estimators.open_state import OpenRow, OpenState
from pipeline.estimators.private_state import PrivateBatch, PrivateState
from pipeline.local.model import COEFFICIENT_LIMIT
from pipeline.local.plan import Plan, integer_bound
from pipeline.messages.release import OpenRelease, PrivateRelease, Release, Tensor
from pipeline.privacy.channel import Channel
from pipeline.types import Integers, Vector

Batch = PrivateBatch | list[OpenRow]


class Rows(Protocol):
    """How releases of one kind of study become rows of a state."""

    def join(self, releases: Sequence[Release]) -> Batch:
        """Join the arrays of some releases, in order."""
        ...

    def sound(self, batch: Batch) -> bool:
        """Whether all its numbers are ones that an honest client can send."""
        ...


class PrivateRows:
    """Rows of a private study: integers within public bounds."""

    def __init__(self, plan: Plan) -> None:
        self._size, self._slots = plan.size, plan.slots
        step, start = plan.step, plan.start

        def bound(part: Channel | None) -> float:
            return integer_bound(part, plan.slots) if part else 0.0

        self._counts = max(bound(start.counts), bound(step.counts))
        self._start = bound(start.gradient)
        self._gradient = bound(step.gradient)
        self._curvature = bound(step.curvature)

    def sound(self, batch: Batch) -> bool:
        """As `Rows.sound`."""
        return (
            isinstance(batch, PrivateBatch)
            and _largest(batch.counts) <= self._counts
            and _largest(batch.start) <= self._start
            and _largest(batch.gradient) <= self._gradient
            and _largest(batch.curvature) <= self._curvature
            and _largest(batch.expansion) <= COEFFICIENT_LIMIT
        )

    def join(self, releases: Sequence[Release]) -> PrivateBatch:
        """As `Rows.join`."""
        size = self._size
        private = [r for r in releases if isinstance(r, PrivateRelease)]
        later = [r for r in private if r.version > 0]
        return PrivateBatch(
            counts=_stack([r.counts for r in private], 2),
            start=_stack([r.gradient for r in private if r.version == 0], 2 * size),
            versions=np.array([r.version for r in later], dtype=np.int64),
            expansion=_stack([r.expansion for r in later], size),
            gradient=_stack([r.gradient for r in later], size),
            curvature=_stack(
                [r.curvature for r in later if r.curvature is not None], size * (size + 1) // 2
            ),
            slots=self._slots,
        )


#: No float of an open release may be larger: products of two must stay finite.
LARGEST_FLOAT = 1e100


class OpenRows:
    """Rows of a study without privacy: bounded floats, added one by one."""

    def join(self, releases: Sequence[Release]) -> list[OpenRow]:
        """As `Rows.join`."""
        return [_row(r) for r in releases if isinstance(r, OpenRelease)]

    def sound(self, batch: Batch) -> bool:
        """As `Rows.sound`."""
        return isinstance(batch, list) and all(
            bool((np.abs(part) <= LARGEST_FLOAT).all())
            for row in batch
            for part in (row.expansion, row.gradient, row.curvature, row.scores, row.counts)
        )


def add(sums: PrivateState | OpenState, batch: Batch) -> None:
    """Add a batch to a state of the same kind."""
    if isinstance(sums, PrivateState):
        if isinstance(batch, PrivateBatch):
            return sums.fold(batch)
    elif isinstance(batch, list):
        return sums.fold(batch)
    raise TypeError("a state folds releases of its own kind")


def _row(release: OpenRelease) -> OpenRow:
    return OpenRow(
        records=release.records,
        expansion=_floats(release.expansion),
        gradient=_floats(release.gradient),
        curvature=_floats(release.curvature),
        scores=_floats(release.scores),
        counts=_floats(release.counts),
    )


def _stack(tensors: Sequence[Tensor], width: int) -> Integers:
    joined = b"".join([tensor.data for tensor in tensors])
    return np.frombuffer(joined, dtype="<i8").reshape(-1, width)


def _largest(values: Integers) -> float:
    """Return the largest absolute value, as a float: the least int64 has no positive twin."""
    if values.size == 0:
        return 0.0
    return max(float(values.max()), -float(values.min()))


def _floats(tensor: Tensor) -> Vector:
    return np.frombuffer(tensor.data, dtype="<f8")
