"""Better schedules from given ones: mixtures of two, then moves and swaps of single clients."""

from __future__ import annotations

import numpy as np

from pipeline.methods.age_aware.objective import Costs, loss
from pipeline.types import Integers, Matrix, Vector

#: Steps of the local search; each looks at all moves and swaps.
_STEPS = 200
#: How many of them a step tries, the best first.
_TRIED = 32
#: Improvements below this share of the loss are rounding.
_LEAST = 1e-12


def blend(one: Integers, other: Integers, change: Vector, wanted: float, shared: int) -> Integers:
    """Return the mixture of two schedules whose drift is about as far from `one`'s as is wanted.

    They differ in paths and cycles that can be exchanged one by one; where both are best at the
    same price of drift, each exchange costs nothing else.

    change: What each client's drift changes by from one to the other, shape (m,).
    shared: From this column on any number of clients may have the same one.
    """
    groups = _components(one, other, shared)
    drifts = [float(change[group].sum()) for group in groups]
    slots, moved = one.copy(), 0.0
    for index in np.argsort(-np.abs(drifts)):
        if abs(moved + drifts[index] - wanted) < abs(moved - wanted):
            slots[groups[index]] = other[groups[index]]
            moved += drifts[index]
    return slots


def _components(one: Integers, other: Integers, shared: int) -> list[Integers]:
    """Return groups of clients that must change together to go from one schedule to another."""
    holder = {slot: row for row, slot in enumerate(one.tolist()) if slot < shared}
    taker = {slot: row for row, slot in enumerate(other.tolist()) if slot < shared}
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


def improve(table: Costs, slots: Integers) -> Integers:
    """Return a schedule that no move to a free slot and no swap of two clients makes better."""
    size, value = len(slots), loss(table, slots)
    rows = np.arange(size)
    for _ in range(_STEPS):
        free = np.setdiff1d(np.arange(table.cost.shape[1]), slots)
        cost, drift = (_changes(values, slots, free) for values in table)
        total = table.drift[rows, slots].sum()
        gains = -cost - drift * (2 * total + drift)
        before = value
        # each is counted as if it came alone, so that a later one is tried before it is believed
        for change in _largest(gains):
            tried = _changed(slots, change, free)
            found = loss(table, tried)
            if found < value - _LEAST * value:
                slots, value = tried, found
        if value == before:
            break
    return slots


def _largest(gains: Vector) -> list[int]:
    """Return the places of the largest gains, the largest first."""
    few = min(_TRIED, len(gains))
    places = np.argpartition(-gains, few - 1)[:few]
    return list(places[np.argsort(-gains[places], kind="stable")].tolist())


def _changed(slots: Integers, change: int, free: Integers) -> Integers:
    """Return a schedule after a swap of two clients, or a move to a slot that is free."""
    slots, size = slots.copy(), len(slots)
    if change < size * size:
        one, other = divmod(change, size)
        slots[[one, other]] = slots[[other, one]]
        return slots
    row, column = divmod(change - size * size, len(free))
    if free[column] not in slots:
        slots[row] = free[column]
    return slots


def _changes(values: Matrix, slots: Integers, free: Integers) -> Vector:
    """Return what single changes add to a sum: swaps of all pairs of clients, then all moves."""
    now = values[np.arange(len(slots)), slots][:, None]
    crossed = values[:, slots] - now
    return np.concatenate([(crossed + crossed.T).ravel(), (values[:, free] - now).ravel()])
