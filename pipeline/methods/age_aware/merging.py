"""One linear assignment at a price of drift: the bound that a search for schedules rests on.

Slots so old or so fresh that they are all alike to every client are taken together: a slot of the
rest is then given one client or none, and who is left shares what is alike. Costs are taken from
below, so that what is bounded with them is bounded without.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.objective import Costs
from pipeline.methods.age_aware.warm import Warm
from pipeline.types import Integers, Vector

#: Columns that all others are held against, to see how many are alike.
_TRIED = 8
#: More than any loss that can be told from another.
_MOST = 1e100
#: The first step to the other side of the best price, as a share of the root of a loss, and how
#: much farther each of the next ones goes.
_FIRST, _GROWS = 1e-5, 6


class Limit(NamedTuple):
    """Of a client, the slots whose drift is at most a level, or those above it."""

    client: int
    level: float
    above: bool

    def leaves_out(self, drift: Vector) -> np.ndarray:
        """Return which of the given drifts are not on its side."""
        return drift <= self.level if self.above else drift > self.level


#: A part of all schedules: those that keep to some limits.
Part = tuple[Limit, ...]
WHOLE: Part = ()


class Cut(NamedTuple):
    """A schedule that is best for some theta, with its cost and drift as they are bounded.

    slots: Column of each client among those apart; their number for all that are alike.
    """

    slots: Integers
    cost: float
    drift: float

    def at(self, theta: float) -> float:
        """Return its value where drift is priced at 2 theta: no schedule's loss at its own."""
        return self.cost + 2 * theta * self.drift - theta**2

    @property
    def loss(self) -> float:
        """Its loss, as far as columns that are alike are one."""
        return self.cost + self.drift**2


class Merged:
    """Tables whose columns that are alike are one.

    table: As `objective.Costs`, shape (m, K).
    tolerance: How much columns that are alike may differ, summed over clients, as a share of what
        all clients cost on average; 0: each stands alone.
    """

    def __init__(self, table: Costs, tolerance: float = 0.0) -> None:
        self.table = table
        clients, columns = table.cost.shape
        self.alike = _alike(table, tolerance) if tolerance else np.array([], dtype=np.int64)
        self.apart = np.setdiff1d(np.arange(columns), self.alike)
        self._cost = np.ascontiguousarray(table.cost[:, self.apart].T)
        self._drift = np.ascontiguousarray(table.drift[:, self.apart].T)
        # where one slot is several columns, these are equals, and clients are not
        first = table.drift[0, self.apart]
        self._clients = np.arange(clients)
        self._warm = Warm(turned=2 * len(np.unique(first)) <= len(first))
        self._least, self._low, self._high = (np.zeros(clients) for _ in range(3))
        # so many of the columns apart may stay empty; where these are most, nobody needs to say so
        self._spare = len(self.apart) - max(0, clients - len(self.alike))
        self._spare *= len(self.alike) > 0 or self._spare < clients
        if len(self.alike):
            self._least = table.cost[:, self.alike].min(axis=1)
            self._low = table.drift[:, self.alike].min(axis=1)
            self._high = table.drift[:, self.alike].max(axis=1)

    def best(self, theta: float, part: Part = WHOLE, fine: float = 0.0) -> Cut | None:
        """Return the schedule of least cost with drift priced at 2 theta; None: there is none.

        fine: What a client pays that shares what is alike, where its limits leave that out. So they
            are not kept to the letter, but no schedule of the part is bounded by more.
        """
        least = self._least
        priced = self._cost + 2 * theta * self._drift
        if part:
            least = least.copy()
            for limit in part:
                client = limit.client
                priced[limit.leaves_out(self._drift[:, client]), client] = np.inf
                if self._bars(limit):
                    least[client] = self._least[client] + fine
        priced -= least + 2 * theta * self._shared(theta)
        try:
            columns, clients = self._warm.solve(
                np.hstack([priced, np.zeros((len(self.apart), self._spare))]), theta
            )
        except ValueError:
            return None
        given = clients < len(self._clients)
        slots = np.full(len(self._clients), len(self.apart), dtype=np.int64)
        slots[clients[given]] = columns[given]
        found = self.cut(slots, theta)
        fined = (least - self._least)[slots == len(self.apart)].sum()
        return found._replace(cost=found.cost + float(fined))

    def cut(self, slots: Integers, theta: float) -> Cut:
        """Return a schedule with its cost, and with its drift as it is bounded at theta."""
        own = slots < len(self.apart)
        cost = self._cost[slots[own], self._clients[own]].sum() + self._least[~own].sum()
        return Cut(slots, float(cost), float(self.drifts(slots, theta).sum()))

    def drifts(self, slots: Integers, theta: float) -> Vector:
        """Return the drift of each client, shape (m,)."""
        return self._ends(slots, self._shared(theta))

    def divide(self, one: Cut, other: Cut, part: Part = WHOLE) -> tuple[Part, Part] | None:
        """Return limits of the client for which two schedules differ most, one kept by each.

        None if they differ in what is alike alone, or in who pays a fine.

        part: What both are schedules of.
        """
        ends = [
            [self._ends(cut.slots, shared) for shared in (self._low, self._high)]
            for cut in (one, other)
        ]
        (low, high), (least, most) = ends
        gap = np.maximum(low - most, least - high)
        # whoever shares against its limits would be given the same limits again
        barred = [limit.client for limit in part if self._bars(limit)]
        fined = np.isin(self._clients, barred)
        for cut in (one, other):
            gap[fined & (cut.slots == len(self.apart))] = 0.0
        client = int(gap.argmax())
        if gap[client] <= 0:
            return None
        below, above = sorted([(low[client], high[client]), (least[client], most[client])])
        middle = (below[1] + above[0]) / 2
        level = float(middle if middle < above[0] else below[1])
        return (Limit(client, level, False),), (Limit(client, level, True),)

    def fits(self, slots: Integers) -> bool:
        """Return whether no more clients share than columns are alike."""
        return int((slots == len(self.apart)).sum()) <= len(self.alike)

    def spread(self, slots: Integers, theta: float) -> Integers:
        """Return the schedule in columns of the table, who shares spread at least cost.

        No more may share than columns are alike.
        """
        own = slots < len(self.apart)
        rest = np.flatnonzero(~own)
        found = np.empty(len(slots), dtype=np.int64)
        found[own] = self.apart[slots[own]]
        pairs = np.ix_(rest, self.alike)
        priced = self.table.cost[pairs] + 2 * theta * self.table.drift[pairs]
        found[rest] = self.alike[linear_sum_assignment(priced)[1]]
        return found

    def _ends(self, slots: Integers, shared: Vector) -> Vector:
        found, own = shared.copy(), slots < len(self.apart)
        found[own] = self._drift[slots[own], self._clients[own]]
        return found

    def _bars(self, limit: Limit) -> bool:
        """Return whether a limit leaves out all that is alike."""
        ends = np.array([self._low[limit.client], self._high[limit.client]])
        return len(self.alike) > 0 and bool(limit.leaves_out(ends).all())

    def _shared(self, theta: float) -> Vector:
        return self._low if theta > 0 else self._high

    @property
    def solved(self) -> int:
        """How many assignments were solved."""
        return self._warm.solved

    @property
    def work(self) -> float:
        """Steps that they have taken, at worst."""
        return self._warm.work


class Bracket(NamedTuple):
    """The largest bound over theta, where it is, and the schedules on both sides of it."""

    bound: float
    theta: float
    low: Cut
    high: Cut


def bracket(
    merged: Merged, theta: float, part: Part, stop: float = np.inf, slack: float = 1e-12
) -> Bracket | None:
    """Return the best bound of a part of all schedules; None if it holds none.

    The drift of the best schedule falls as theta rises, and the best bound is where they are equal.

    theta: Where to look first.
    stop: A bound that is enough.
    slack: What the bound may miss the best one by, as a share.
    """
    low: Cut | None = None
    high: Cut | None = None
    bound, at, step = -np.inf, theta, 0.0
    while (cut := merged.best(theta, part, min(stop, _MOST))) is not None:
        if cut.at(theta) > bound:
            bound, at = cut.at(theta), theta
        low = cut if cut.drift >= theta else low
        high = cut if cut.drift <= theta else high
        if low is not None and high is not None:
            theta = _peak(low, high)
            better = min(low.at(theta), high.at(theta))
            if bound >= stop or better <= bound + slack * abs(bound) or low.drift == high.drift:
                return Bracket(bound, at, low, high)
        elif bound >= stop:
            return Bracket(bound, at, cut, cut)
        else:
            step = _GROWS * step or _FIRST * math.sqrt(cut.loss)
            theta = min(theta + step, low.drift) if low else max(theta - step, cut.drift)
    return None


def _peak(low: Cut, high: Cut) -> float:
    """Return where the smaller of two concave parabolas is largest; low.drift >= high.drift."""
    if low.drift == high.drift:
        return low.drift
    crossing = (high.cost - low.cost) / (2 * (low.drift - high.drift))
    # left of the crossing `low` is the smaller one, right of it `high`; each peaks at its drift
    return float(min(max(crossing, high.drift), low.drift))


def _alike(table: Costs, tolerance: float) -> Integers:
    """Return the largest group found of columns that are alike, and open, to all clients.

    So whoever shares them can have any of them, and there is a schedule wherever one is bounded.
    """
    found: Integers = np.array([], dtype=np.int64)
    columns = np.flatnonzero(np.isfinite(table.cost).all(axis=0))
    cost, drift = table.cost[:, columns], table.drift[:, columns]
    total = float(cost.sum()) / max(1, len(columns))
    if total <= 0:
        return found
    for place in range(0, len(columns), max(1, len(columns) // _TRIED)):
        far = np.abs(cost - cost[:, [place]]).sum(axis=0) / total
        far += np.abs(drift - drift[:, [place]]).sum(axis=0) / np.sqrt(total)
        near = columns[far <= tolerance]
        found = near if len(near) > max(1, len(found)) else found
    return found


def check(table: Costs) -> None:
    """Refuse tables that no schedule can be looked for in; ConfigError."""
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
    if not (table.cost >= 0).all() or not np.isfinite(table.drift).all():
        raise ConfigError(
            "schedule: costs must be 0 or more (infinite: a slot that a client may not have), and "
            "drifts finite numbers; correct the given table"
        )
