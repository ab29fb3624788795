"""Assignments at one price of drift after another, each begun from those at the prices beside it.

What places are worth (the dual variables) changes little from price to price. Taken off the costs
beforehand, it leaves nearly every row a column of its own at once, and long searches to few. It is
advice: the assignment is exact whatever it says.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from scipy.optimize import linear_sum_assignment

from pipeline.types import Integers, Matrix, Vector

#: How often worths are passed on along rows, at most, and what change counts as none.
_STEPS, _LEAST = 200, 1e-13
#: Tables below this size are solved at once; of others, a column's steps for each pair, usually.
_SMALL, _USUAL = 100, 50
#: The first worths are those of a table that has one of so many rows and columns.
_THIN = 2


class Warm:
    """Assignments of a square table whose costs are linear in a price.

    turned: Whether columns take rows in turn, and not rows columns. What is found is the same; it
        is found sooner where what takes its turn has no equals.
    """

    def __init__(self, turned: bool = False) -> None:
        self.solved, self.work = 0, 0.0
        self._turned = turned
        self._prices: list[float] = []
        self._worths: list[Vector] = []

    def solve(self, costs: Matrix, price: float) -> tuple[Integers, Integers]:
        """Return the pairs of row and column of least cost in all; ValueError if there are none.

        costs: At the price, shape (n, k); an infinite one forbids a pair.
        """
        short, long = sorted(costs.shape)
        self.solved += 1
        self.work += short * long * (_USUAL if self._prices else short)
        if short != long or short < _SMALL:
            return linear_sum_assignment(costs)
        if not self._turned:
            return self._warmed(costs, price)
        columns, rows = self._warmed(np.ascontiguousarray(costs.T), price)
        return rows, columns

    def _warmed(self, costs: Matrix, price: float) -> tuple[Integers, Integers]:
        worth = self._between(price) if self._prices else _thinned(costs)
        rows, columns = linear_sum_assignment(costs - worth)
        at = bisect_left(self._prices, price)
        known = self._prices[at : at + 1] == [price]
        self._prices[at : at + known] = [price]
        self._worths[at : at + known] = [_worth(costs, columns, worth)]
        return rows, columns

    def _between(self, price: float) -> Vector:
        """Return what columns are worth, between the two nearest prices; it is convex there."""
        above = bisect_left(self._prices, price)
        low, high = max(above - 1, 0), min(above, len(self._prices) - 1)
        span = self._prices[high] - self._prices[low]
        share = (price - self._prices[low]) / span if span > 0 else 0.0
        return (1 - share) * self._worths[low] + share * self._worths[high]


def _thinned(costs: Matrix) -> Vector:
    """Return what columns are worth to a part of the rows that share a part of them, shape (n,)."""
    if len(costs) < _SMALL:
        return np.zeros(len(costs))
    part = np.ascontiguousarray(costs[::_THIN, ::_THIN])
    worth = _thinned(part)
    try:
        rows, columns = linear_sum_assignment(part - worth)
    except ValueError:
        # what is left out may be all that a row has
        return np.zeros(len(costs))
    own = part[rows, columns] - _worth(part, columns, worth)[columns]
    found = (costs[::_THIN] - own[:, None]).min(axis=0)
    return np.where(np.isfinite(found), found, 0.0)


def _worth(costs: Matrix, columns: Integers, worth: Vector) -> Vector:
    """Return how much less each column may cost before a row would change to it, shape (n,).

    By Bellman and Ford, from a first guess: no row may find another column better than its own.
    """
    own = costs[np.arange(len(costs)), columns]
    extra, least = costs - own[:, None], _LEAST * np.abs(own).max()
    # one table for all steps: fresh ones cost more than what is done with them
    whole = np.empty_like(extra)
    rows = np.arange(len(costs))
    for _ in range(_STEPS):
        table = np.take(extra, rows, axis=0, out=whole[: len(rows)], mode="clip")
        table += worth[columns[rows], None]
        found = table.min(axis=0)
        lower = found < worth - least
        if not lower.any():
            break
        worth = np.where(lower, found, worth)
        rows = np.flatnonzero(lower[columns])
    return worth
