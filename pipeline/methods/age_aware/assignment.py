"""Schedules with a certificate: sum of costs plus the square of the total drift, one slot each.

The square is the largest value of 2 theta s - theta^2 over theta, so that each theta gives a lower
bound by one linear assignment. The best theta is a fixed point of the drift of the assignment.
Without drift one assignment is optimal; in general the problem is weakly NP-hard, and the
distance from the bound says how good a schedule is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.objective import Costs, loss
from pipeline.types import Integers, Matrix, Vector

#: Steps of the local search; each looks at all moves and swaps.
_STEPS = 200
#: Improvements below this share of the loss are rounding.
_LEAST = 1e-12


@dataclass(frozen=True)
class Schedule:
    """Who reports when, and how far from the best that can be.

    slots: Column of each client, shape (m,).
    value, lower_bound: Expected loss, and what no schedule can go below.
    theta: Where the bound was found.
    assignments: How many linear assignments were solved.
    """

    slots: Integers
    value: float
    lower_bound: float
    theta: float = 0.0
    assignments: int = 0

    @property
    def gap(self) -> float:
        """How much better the best schedule may be, as a share of this one's loss; 0: it is best.

        Differences of rounding count as none.
        """
        excess = self.value - self.lower_bound
        return 0.0 if excess <= _LEAST * abs(self.value) else excess / self.value


class _Cut(NamedTuple):
    """An assignment that is best for some theta."""

    slots: Integers
    cost: float
    drift: float

    def at(self, theta: float) -> float:
        return self.cost + 2 * theta * self.drift - theta**2


def schedule(table: Costs) -> Schedule:
    """Return a schedule of small loss, each column used at most once, with its lower bound.

    table: At least as many columns as clients. An infinite cost forbids a slot.

    Raises ConfigError if no schedule keeps to what is forbidden.
    """
    _check(table)
    first = _best(table, 0.0)
    if not table.drift.any():
        return _done(table, first.slots, first.at(0.0), 0.0, 1)
    # the drift falls as theta rises, so that the fixed point lies between 0 and the drift at 0
    second = _best(table, first.drift)
    low, high = (first, second) if first.drift >= 0 else (second, first)
    bound = max(first.at(0.0), second.at(first.drift))
    theta, count = _peak(low, high), 2
    while min(low.at(theta), high.at(theta)) > bound + _LEAST * abs(bound) and count < _STEPS:
        cut = _best(table, theta)
        count += 1
        bound = max(bound, cut.at(theta))
        low, high = (cut, high) if cut.drift >= theta else (low, cut)
        theta = _peak(low, high)
    starts = [low.slots, high.slots, _blend(table, low.slots, high.slots, theta)]
    slots = min((_improve(table, start) for start in starts), key=lambda found: loss(table, found))
    return _done(table, slots, bound, theta, count)


def _check(table: Costs) -> None:
    rows, columns = table.cost.shape
    if table.drift.shape != table.cost.shape:
        raise ConfigError("schedule: costs and drifts must have the same shape")
    if not rows:
        raise ConfigError("schedule: there is no client")
    if rows > columns:
        raise ConfigError(
            f"schedule: {rows} clients have {columns} slots; give more slots, let a slot take "
            "several clients, or skip clients at a cost"
        )
    if np.isnan(table.cost).any() or not np.isfinite(table.drift).all():
        raise ConfigError("schedule: costs and drifts must be numbers")


def _best(table: Costs, theta: float) -> _Cut:
    """Return the assignment of least cost when drift is priced at 2 theta."""
    try:
        rows, slots = linear_sum_assignment(table.cost + 2 * theta * table.drift)
    except ValueError:
        raise ConfigError(
            "schedule: no client order keeps to the slots that are allowed; allow more of them"
        ) from None
    cost, drift = table.cost[rows, slots].sum(), table.drift[rows, slots].sum()
    return _Cut(slots.astype(np.int64), float(cost), float(drift))


def _peak(low: _Cut, high: _Cut) -> float:
    """Return where the smaller of two concave parabolas is largest; low.drift >= high.drift."""
    if low.drift == high.drift:
        return low.drift
    crossing = (high.cost - low.cost) / (2 * (low.drift - high.drift))
    # left of the crossing `low` is the smaller one, right of it `high`; each peaks at its drift
    return float(min(max(crossing, high.drift), low.drift))


def _blend(table: Costs, one: Integers, other: Integers, theta: float) -> Integers:
    """Return the mixture of two assignments whose drift is closest to theta, greedily.

    They differ in paths and cycles that can be exchanged one by one; at the fixed point each
    exchange costs nothing but drift.
    """
    rows = np.arange(len(one))
    change = table.drift[rows, other] - table.drift[rows, one]
    groups = _components(one, other)
    drifts = [float(change[group].sum()) for group in groups]
    slots, drift = one.copy(), float(table.drift[rows, one].sum())
    for index in np.argsort(-np.abs(drifts)):
        if abs(drift + drifts[index] - theta) < abs(drift - theta):
            slots[groups[index]] = other[groups[index]]
            drift += drifts[index]
    return slots


def _components(one: Integers, other: Integers) -> list[Integers]:
    """Return groups of clients that must change together to go from one schedule to another."""
    holder = {int(slot): row for row, slot in enumerate(one)}
    taker = {int(slot): row for row, slot in enumerate(other)}
    seen: set[int] = set()
    groups = []
    for first in np.flatnonzero(one != other).tolist():
        if first in seen:
            continue
        stack, group = [first], []
        while stack:
            row = stack.pop()
            if row in seen:
                continue
            seen.add(row)
            group.append(row)
            near = (holder.get(int(other[row])), taker.get(int(one[row])))
            stack += [client for client in near if client is not None]
        groups.append(np.array(group, dtype=np.int64))
    return groups


def _improve(table: Costs, slots: Integers) -> Integers:
    """Return a schedule that no move to a free slot and no swap of two clients makes better."""
    slots, size = slots.copy(), len(slots)
    rows = np.arange(size)
    for _ in range(_STEPS):
        free = np.setdiff1d(np.arange(table.cost.shape[1]), slots)
        cost, drift = (_changes(values, slots, free) for values in table)
        total = table.drift[rows, slots].sum()
        gains = -cost - drift * (2 * total + drift)
        best = int(gains.argmax())
        if gains[best] <= _LEAST * loss(table, slots):
            break
        if best < size * size:
            one, other = divmod(best, size)
            slots[[one, other]] = slots[[other, one]]
        else:
            row, column = divmod(best - size * size, len(free))
            slots[row] = free[column]
    return slots


def _changes(values: Matrix, slots: Integers, free: Integers) -> Vector:
    """Return what single changes add to a sum: swaps of all pairs of clients, then all moves."""
    now = values[np.arange(len(slots)), slots][:, None]
    crossed = values[:, slots] - now
    return np.concatenate([(crossed + crossed.T).ravel(), (values[:, free] - now).ravel()])


def _done(table: Costs, slots: Integers, bound: float, theta: float, count: int) -> Schedule:
    value = loss(table, slots)
    # no loss is below 0, and rounding may put the bound above the schedule itself
    return Schedule(slots, value, min(max(bound, 0.0), value), theta, count)
