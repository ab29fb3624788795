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


class Warm:
    """Assignments of a square table whose costs are linear in a price."""

    def __init__(self) -> None:
        self.solved, self.work = 0, 0.0
        self._prices: list[float] = []
        self._worths: list[Vector] = []

    def solve(self, costs: Matrix, price: float) -> tuple[Integers, Integers]:
        """Return the pairs of row and column of least cost in all; ValueError if there are none.

        costs: At the price, shape (n, k); an infinite one forbids a pair.
        """
        short, long = sorted(costs.shape)
        warm = short == long >= _SMALL
        self.solved += 1
        self.work += short * long * (_USUAL if self._prices else short)
        worth = self._between(price, long) if warm else np.zeros(costs.shape[1])
        rows, columns = linear_sum_assignment(costs - worth)
        if warm:
            at = bisect_left(self._prices, price)
            known = self._prices[at : at + 1] == [price]
            self._prices[at : at + known] = [price]
            self._worths[at : at + known] = [_worth(costs, columns, worth)]
        return rows, columns

    def _between(self, price: float, size: int) -> Vector:
        """Return what columns are worth, between the two nearest prices; it is convex there."""
        if not self._prices:
            return np.zeros(size)
        above = bisect_left(self._prices, price)
        low, high = max(above - 1, 0), min(above, len(self._prices) - 1)
        span = self._prices[high] - self._prices[low]
        share = (price - self._prices[low]) / span if span > 0 else 0.0
        return (1 - share) * self._worths[low] + share * self._worths[high]


def _worth(costs: Matrix, columns: Integers, worth: Vector) -> Vector:
    """Return how much less each column may cost before a row would change to it, shape (n,).

    By Bellman and Ford, from a first guess: no row may find another column better than its own.
    """
    own = costs[np.arange(len(costs)), columns]
    extra, least = costs - own[:, None], _LEAST * np.abs(own).max()
    rows = np.arange(len(costs))
    for _ in range(_STEPS):
        found = (extra[rows] + worth[columns[rows]][:, None]).min(axis=0)
        lower = found < worth - least
        if not lower.any():
            break
        worth = np.where(lower, found, worth)
        rows = np.flatnonzero(lower[columns])
    return worth
