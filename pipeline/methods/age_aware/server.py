"""Uploads of rounds at the worker, kept apart by client."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.estimators.estimate import Estimate
from pipeline.methods.age_aware.client import AgedTask
from pipeline.methods.age_aware.estimate import Members, estimate
from pipeline.methods.age_aware.state import RoundState
from pipeline.methods.base import Server
from pipeline.release.layout import Rows


class RoundServer(Server[RoundState]):
    """As `methods.base.Server`."""

    def __init__(self, task: AgedTask) -> None:
        self._task, self._members = task, Members(task.plan.names)

    def empty(self) -> RoundState:
        return RoundState()

    def read(self, fields: dict[str, bytes]) -> RoundState:
        return RoundState.decode(fields)

    def fold(self, state: RoundState, rows: Rows) -> None:
        """As `Server.fold`; any order gives the same bits."""
        state.fold(rows)

    def estimate(
        self,
        parts: Sequence[tuple[float, RoundState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        """As `Server.estimate`: nothing is forgotten, so that there is one bucket."""
        del partitions, missing
        [(_, state)] = parts
        return estimate(self._task, state, self._members)
