"""Schedules with a certificate: sum of costs plus the square of the total drift, one slot each.

The square is the largest value of 2 theta s - theta^2 over theta, so that each theta gives a lower
bound by one linear assignment. The best theta is a fixed point of the drift of the assignment.
Without drift one assignment is optimal. In general the problem is weakly NP-hard: parts of all
schedules are bounded one by one, the least bound first (branch and bound), until what is found is
as good as asked for. The distance from the least bound says how good a schedule is.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import count

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.local import blend, improve
from pipeline.methods.age_aware.merging import WHOLE, Bracket, Merged, bracket, check
from pipeline.methods.age_aware.objective import Costs, loss
from pipeline.types import Integers

#: Up to this many clients the best schedule is looked for, and beyond one within `NEAR` of it.
FEW = 60
NEAR = 1e-6
#: Differences of the loss that are rounding.
_LEAST = 1e-12
#: How alike columns must be to be taken together: the loosest that costs a tenth of `NEAR`.
_LOOSE, _TIGHT = (1e-3, 1e-4, 1e-5, 1e-6), 1e-8
#: Steps of all assignments that a search may solve, at worst: some seconds.
_WORK = 5e10
#: How many parts a search opens at most.
NODES = 1000


@dataclass(frozen=True)
class Schedule:
    """Who reports when, and how far from the best that can be.

    slots: Column of each client, shape (m,).
    value, lower_bound: Expected loss, and what no schedule can go below.
    assignments: How many linear assignments were solved.
    """

    slots: Integers
    value: float
    lower_bound: float
    assignments: int = 0

    @property
    def gap(self) -> float:
        """How much better the best schedule may be, as a share of this one's loss; 0: it is best.

        Differences of rounding count as none; infinite where a loss is too large for a number.
        """
        if not math.isfinite(self.value):
            return math.inf
        excess = self.value - self.lower_bound
        return 0.0 if excess <= _LEAST * abs(self.value) else excess / self.value


def schedule(table: Costs, node_limit: int = NODES) -> Schedule:
    """Return a schedule of small loss, each column used at most once, with its lower bound.

    table: At least as many columns as clients. An infinite cost forbids a slot.
    node_limit: How many parts to open at most, 0 or more; what bounds them holds at any time.

    Raises ConfigError if no schedule keeps to what is forbidden.
    """
    check(table)
    return _Search(table).run(node_limit)


class _Search:
    """Branch and bound, and the best schedule that it has come across."""

    def __init__(self, table: Costs) -> None:
        few = len(table.cost) <= FEW
        self._table, self._near = table, 0.0 if few else NEAR
        self._merged = Merged(table, _TIGHT if not few and table.drift.any() else 0.0)
        self._slots, self._value, self._tried = np.array([], dtype=np.int64), np.inf, np.inf
        self._solved, self._work = 0, 0.0
        whole = bracket(self._merged, 0.0, WHOLE)
        if whole is None:
            raise ConfigError(
                "schedule: no order gives every client a slot that it may have; allow more "
                "slots for each client"
            )
        self._bound = whole.bound
        self._keep(whole)
        self._root = self._loosened(whole)

    def run(self, node_limit: int) -> Schedule:
        """Return the best schedule found, after so many parts at most."""
        order, done, slack = count(), np.inf, max(self._near / 50, _LEAST)
        heap = [(self._root.bound, next(order), self._root, WHOLE)]
        for _ in range(node_limit):
            if not heap or heap[0][0] >= self._enough or self._merged.work > _WORK:
                break
            least, _, node, part = heapq.heappop(heap)
            sides = self._merged.divide(node.low, node.high, part)
            for side in sides or []:
                below = part + side
                found = bracket(self._merged, node.theta, below, self._enough, slack)
                if found is None:
                    continue
                self._keep(found)
                # a part cannot hold what its whole could not
                bound = max(found.bound, least)
                heapq.heappush(heap, (bound, next(order), found, below))
            if sides is None:
                # both sides differ in what is alike alone: nothing bounds this part better
                done = min(done, least)
        bound = max(self._bound, min([done, self._value, *(entry[0] for entry in heap[:1])]))
        # no loss is below 0, and rounding may put the bound above the schedule itself
        bound = min(max(bound, 0.0), self._value)
        return Schedule(self._slots, self._value, bound, self._solved + self._merged.solved)

    @property
    def _enough(self) -> float:
        return float(self._value * (1 - max(self._near, _LEAST)))

    def _loosened(self, whole: Bracket) -> Bracket:
        """Return the bracket of all schedules where as many columns are one as the aim allows."""
        if self._near == 0 or whole.bound >= self._enough:
            return whole
        tight = self._merged
        for tolerance in _LOOSE:
            loose = Merged(self._table, tolerance)
            if len(loose.alike) == len(tight.alike):
                break
            root = bracket(loose, whole.theta, WHOLE)
            self._solved += loose.solved
            if root and root.bound >= whole.bound - self._near / 10 * self._value:
                self._merged, self._tried = loose, np.inf
                self._solved += tight.solved - loose.solved
                return root
        return whole

    def _keep(self, node: Bracket) -> None:
        """Keep the mixture of both sides of a bracket, or one of them, if it is better."""
        merged, low, high = self._merged, node.low, node.high
        change = merged.drifts(high.slots, node.theta) - merged.drifts(low.slots, node.theta)
        mixed = blend(low.slots, high.slots, change, node.theta - low.drift, len(merged.apart))
        for cut in (merged.cut(mixed, node.theta), low, high):
            # of two schedules a mixture may share more often than there are columns
            if merged.fits(cut.slots) and cut.loss < min(self._tried, self._value):
                self._tried = cut.loss
                slots = improve(self._table, merged.spread(cut.slots, node.theta))
                value = loss(self._table, slots)
                if value < self._value:
                    self._slots, self._value = slots, value
