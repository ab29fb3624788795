"""The best schedule of few clients, by branch and bound; stopped early, its bound still holds."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.assignment import Schedule, schedule
from pipeline.methods.age_aware.objective import Costs
from pipeline.types import Matrix

#: Up to this many clients a service looks for the best schedule, and for a good one beyond.
FEW = 60


def exact(table: Costs, node_limit: int = 1000) -> Schedule:
    """Return the best schedule, or the best found with what bounds it.

    Each node is a set of schedules: some slots fixed, others forbidden. Its own schedule splits
    the rest of it (Murty's partition), and the node of the smallest bound goes first.

    node_limit: How many nodes to open at most, at least 1.

    Raises ConfigError as `assignment.schedule`.
    """
    if node_limit < 1:
        raise ConfigError("node_limit: must be at least 1")
    found = schedule(table)
    best, solved = found, found.assignments
    order = count()
    heap = [(found.lower_bound, next(order), found, table.cost)]
    for _ in range(node_limit):
        if not heap or heap[0][0] >= best.value * (1 - 1e-12):
            break
        _, _, node, cost = heapq.heappop(heap)
        for below in _split(cost, node):
            try:
                child = schedule(Costs(below, table.drift))
            except ConfigError:
                continue  # nothing is left in this part
            solved += child.assignments
            # a part cannot hold what its whole could not
            bound = max(child.lower_bound, node.lower_bound)
            if child.value < best.value:
                best = child
            if bound < best.value:
                heapq.heappush(heap, (bound, next(order), child, below))
    bound = min([best.value, *(entry[0] for entry in heap[:1])])
    return replace(best, lower_bound=bound, assignments=solved)


def scheduled(table: Costs) -> Schedule:
    """Return a schedule as a service makes it: the best one of few clients, a good one of many."""
    return exact(table) if len(table.cost) <= FEW else schedule(table)


def _split(cost: Matrix, node: Schedule) -> Iterator[Matrix]:
    """Yield the costs of disjoint parts of a node that hold all but its own schedule."""
    fixed = cost.copy()
    for row, slot in enumerate(node.slots.tolist()):
        part = fixed.copy()
        part[row, slot] = np.inf
        yield part
        kept = fixed[row, slot]
        fixed[row, :] = np.inf
        fixed[:, slot] = np.inf
        fixed[row, slot] = kept
