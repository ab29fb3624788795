"""What releases cost a unit, and what several of them cost together.

A mechanism costs mu (Gaussian differential privacy) and, where it has one, a pure epsilon. Pure
epsilon-DP implies mu-GDP with mu = -2 Phi^-1(1 / (1 + e^epsilon)): the trade-off function of the
first consists of chords of the second's, which is convex (docs/privacy/composition.md). So costs of
both kinds add up as sums of squares; sums of pure epsilons are used where they are smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scipy.special import erfinv, ndtri_exp

from pipeline.errors import PrivacyError
from pipeline.privacy import gdp


@dataclass(frozen=True, slots=True)
class Cost:
    """What the releases of one study cost one record.

    Attributes
    ----------
    mu
        They are mu-GDP, mu >= 0.
    epsilon
        They are epsilon-DP without a delta; None where no such epsilon holds.
    apart
        Whether every record has noise of its own, so that one noised number rests on one record.
    """

    mu: float
    epsilon: float | None = None
    apart: bool = False

    def times(self, records: float, *, changes: int = 1) -> Cost:
        """Return the cost of so many records, wherever they stand.

        Records that share noise pay as a group: one after the other is exchanged, and the costs add
        up. Records that are noised apart pay as compositions do: the root of the sum of squares.

        Parameters
        ----------
        changes
            How many changes of each record count, in a row: those add up in either case.
        """
        steps = changes if self.apart else changes * records
        group = Cost(steps * self.mu) if self.epsilon is None else pure_cost(steps * self.epsilon)
        if not self.apart:
            return group
        pure = None if group.epsilon is None else records * group.epsilon
        return Cost(math.sqrt(records) * group.mu, pure, apart=True)


@dataclass(frozen=True, slots=True)
class Unit:
    """Whose data a budget protects, and against which change.

    Attributes
    ----------
    records
        At most so many records of one source belong to one unit.
    neighbours
        The change that is hidden: "zero-out" or "replace-one".
    """

    records: int
    neighbours: str

    def convert(self, cost: Cost, neighbours: str) -> Cost:
        """Return what a cost of one record under other neighbours means for this unit.

        A replacement is two absences. An absence costs at most what a replacement costs: every
        sensitivity in this project is at least as large for replace-one as for zero-out. That is
        so where noise does not depend on whether a record is there: see `Task.shows_absence`.
        """
        twice = self.neighbours == "replace-one" and neighbours == "zero-out"
        return cost.times(self.records, changes=2 if twice else 1)


def pure_cost(epsilon: float) -> Cost:
    """Return the cost of an epsilon-DP release."""
    # two forms of -2 Phi^-1(1 / (1 + e^epsilon)): the first keeps the digits of a small epsilon,
    # the second those of a large one
    if epsilon < 1:
        mu = 2 * math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2)))
    else:
        mu = -2 * float(ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon))))
    return Cost(mu, epsilon)


def total_mu(costs: Iterable[Cost]) -> float:
    """Return the mu of all costs together: the root of the sum of squares."""
    return gdp.compose(cost.mu for cost in costs)


def total_epsilon(costs: Iterable[Cost], delta: float) -> float:
    """Return an epsilon that holds at `delta` for all costs together.

    Parameters
    ----------
    delta
        In [0, 1); with 0 only pure costs have an answer.

    Returns
    -------
    float
        The smallest of three valid bounds: all as mu-GDP; all as pure sums; the Gaussian ones as
        mu-GDP plus the sum of the others. Infinite if none holds.

    Raises
    ------
    PrivacyError
        If delta is outside its range.
    """
    if not 0 <= delta < 1:
        raise PrivacyError("delta must lie in [0, 1)")
    costs = list(costs)
    pure = math.fsum(cost.epsilon for cost in costs if cost.epsilon is not None)
    mixed = [cost for cost in costs if cost.epsilon is None]
    if not mixed:
        return min(pure, gdp.epsilon_of(total_mu(costs), delta) if delta > 0 else math.inf)
    if delta == 0:
        return math.inf
    return min(
        gdp.epsilon_of(total_mu(costs), delta), pure + gdp.epsilon_of(total_mu(mixed), delta)
    )
