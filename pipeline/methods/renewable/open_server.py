"""Releases of a renewable study without privacy at the worker: bounded floats, added one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.errors import PayloadError
from pipeline.estimators.estimate import Estimate
from pipeline.messages.release import Numbers, OpenRelease, Release
from pipeline.methods.layout import Layout
from pipeline.methods.renewable.open_estimate import INTERVAL, estimate_open
from pipeline.methods.renewable.open_state import OpenRow, OpenState
from pipeline.methods.renewable.task import RenewableTask
from pipeline.release.model import Part
from pipeline.types import Vector

#: No float of a release may be larger: products of two must stay finite.
LARGEST_FLOAT = 1e100


class OpenServer:
    """As `methods.base.Server`, for float sums."""

    ordered = True

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._size = task, task.size
        packed = task.size * (task.size + 1) // 2
        self._expansion = Layout("expansion", "<f8", task.size, (0,))
        self._sums = Layout("sums", "<f8", task.size + 2 * packed + 2, (0,))

    @property
    def interval(self) -> str:
        """As `Server.interval`."""
        return INTERVAL

    def check(self, release: Release) -> None:
        """As `Server.check`."""
        if isinstance(release, OpenRelease) and release.records > self._task.slots:
            raise PayloadError("wrong-claim", "more records than the window has slots")
        self._expansion.check(release.expansion)
        self._sums.check(release.sums)

    def slots(self, releases: Sequence[Release]) -> int:
        """As `Server.slots`: the records that entered."""
        return sum(r.records for r in releases if isinstance(r, OpenRelease))

    def join(self, releases: Sequence[Release]) -> list[OpenRow]:
        """As `Server.join`."""
        return [self._row(r) for r in releases if isinstance(r, OpenRelease)]

    def sound(self, batch: list[OpenRow]) -> bool:
        """As `Server.sound`."""
        return all(
            bool((np.abs(part) <= LARGEST_FLOAT).all())
            for row in batch
            for part in (row.expansion, row.gradient, row.curvature, row.scores, row.counts)
        )

    def empty(self, *, trace: bool = False) -> OpenState:
        """As `Server.empty`; there is nothing to trace."""
        del trace
        return OpenState(self._size)

    def read(self, fields: dict[str, bytes]) -> OpenState:
        """As `Server.read`."""
        return OpenState.decode(self._size, fields)

    def fold(self, state: OpenState, batch: list[OpenRow]) -> None:
        """As `Server.fold`."""
        state.fold(batch)

    def estimate(
        self, parts: Sequence[tuple[float, OpenState]], partitions: Sequence[int]
    ) -> Estimate:
        """As `Server.estimate`."""
        del partitions
        return estimate_open(self._task, list(parts))

    def start_is_over(self, states: Sequence[OpenState], furthest: int) -> bool:
        """As `Server.start_is_over`: exact sums need no more of them."""
        del states, furthest
        return True

    def part(self, slots: int, state: OpenState | None) -> Part | None:
        """As `Server.part`: all partitions share the model."""
        del slots, state
        return None

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


def _floats(numbers: Numbers) -> Vector:
    return np.frombuffer(numbers.data, dtype="<f8")
