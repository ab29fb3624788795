"""Releases of a renewable study without privacy at the worker: bounded floats, added one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.messages.form import Rows
from pipeline.methods.base import Server
from pipeline.methods.renewable.open_estimate import INTERVAL, estimate_open
from pipeline.methods.renewable.open_state import OpenRow, OpenState
from pipeline.methods.renewable.task import RenewableTask


class OpenServer(Server[OpenState]):
    """As `methods.base.Server`, for float sums."""

    ordered = True
    interval = INTERVAL

    def __init__(self, task: RenewableTask) -> None:
        self._task, self._size = task, task.size
        self._columns = task.layout.columns(1)

    def slots(self, rows: Rows) -> int:
        """As `Server.slots`: the records that entered."""
        return int(rows["records"].sum())

    def empty(self, *, trace: bool = False) -> OpenState:
        """As `Server.empty`; there is nothing to trace."""
        del trace
        return OpenState(self._size)

    def read(self, fields: dict[str, bytes]) -> OpenState:
        """As `Server.read`."""
        return OpenState.decode(self._size, fields)

    def fold(self, state: OpenState, rows: Rows) -> None:
        """As `Server.fold`."""
        state.fold([self.row(row) for row in rows])

    def estimate(
        self,
        parts: Sequence[tuple[float, OpenState]],
        partitions: Sequence[int],
        *,
        missing: int = 0,
    ) -> Estimate:
        """As `Server.estimate`."""
        del partitions, missing
        return estimate_open(self._task, list(parts))

    def row(self, row: np.void) -> OpenRow:
        """Return a release as its state takes it."""
        parts = {name: row["sums"][columns] for name, columns in self._columns.items()}
        return OpenRow(
            records=int(row["records"]),
            expansion=row["point"],
            start=row["version"] == 0,
            **parts,
        )
