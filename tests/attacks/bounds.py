"""From scores of an adversary to a lower bound of what a mechanism keeps.

For any event E, P(E | one) <= exp(epsilon) P(E | two) + delta; and no test of one against two has
errors below those of N(0, 1) against N(mu, 1) if the mechanism is mu-GDP. The adversary learns
its statistic, its threshold and the side on which it looks from the first third of the draws. The
rest gives two rates, each bounded by Clopper and Pearson at half the alarm level; a rate's draws
are independent of each other and of what was learnt, and the two levels add up in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pipeline.types import Vector

#: A right mechanism's bound exceeds its claim with at most this probability, over fresh noise.
ALARM = 1e-6
#: Thresholds that are tried while learning.
CANDIDATES = 400
#: A bound from hits of an event under its favoured and under the other neighbour, in so many draws.
Bound = Callable[[Vector, Vector, int], Vector]


@dataclass(frozen=True, slots=True)
class Scores:
    """One statistic: larger under `left`, smaller under `right`; one number for each draw."""

    left: Vector
    right: Vector

    def part(self, first: int, last: int) -> Scores:
        """Return the scores of some draws."""
        return Scores(self.left[first:last], self.right[first:last])


def upper_rate(hits: Vector, draws: int, alarm: float) -> Vector:
    """Return Clopper and Pearson's upper bound of a rate; it is too low with chance `alarm`."""
    rate = stats.beta.isf(alarm, hits + 1, np.maximum(draws - hits, 1e-9))
    return np.where(hits >= draws, 1.0, rate)


def lower_rate(hits: Vector, draws: int, alarm: float) -> Vector:
    """Return the lower bound; it is too high with chance `alarm`."""
    return 1.0 - upper_rate(draws - hits, draws, alarm)


def mu_bound(alarm: float = ALARM) -> Bound:
    """Return the lower bound of mu that error rates give (Dong, Roth and Su 2022, Definition 3)."""

    def bound(favoured: Vector, other: Vector, draws: int) -> Vector:
        misses = upper_rate(draws - favoured, draws, alarm / 2)
        alarms = upper_rate(other, draws, alarm / 2)
        found: Vector = stats.norm.isf(alarms) + stats.norm.isf(misses)
        return found

    return bound


def epsilon_bound(delta: float, alarm: float = ALARM) -> Bound:
    """Return the lower bound of epsilon at `delta` that one event gives; pure for delta = 0."""

    def bound(favoured: Vector, other: Vector, draws: int) -> Vector:
        most = lower_rate(favoured, draws, alarm / 2) - delta
        least = upper_rate(other, draws, alarm / 2)
        return np.log(np.maximum(most, 1e-300)) - np.log(least)

    return bound


def strongest(statistics: Sequence[Scores], bound: Bound) -> float:
    """Learn the best event on a third of the draws, and bound with the rest; never below zero.

    Parameters
    ----------
    statistics
        What the adversary may choose from; all about the same draws.
    """
    draws = len(statistics[0].left)
    learn = draws // 3
    best = (-np.inf, statistics[0], 0.0, True)
    for scores in statistics:
        known = scores.part(0, learn)
        thresholds = _candidates(known)
        for above in (True, False):
            # bounds, not estimates: events too rare to be counted must not look best
            found = bound(*_hits(known, thresholds, above=above), learn)
            at = int(np.argmax(found))
            if found[at] > best[0]:
                best = (float(found[at]), scores, float(thresholds[at]), above)
    _, chosen, threshold, above = best
    hits = _hits(chosen.part(learn, draws), np.array([threshold]), above=above)
    return max(0.0, float(bound(*hits, draws - learn)[0]))


def _candidates(scores: Scores) -> Vector:
    both = np.concatenate([scores.left, scores.right])
    values = np.unique(np.quantile(both, np.linspace(0, 1, CANDIDATES)))
    # a hair to both sides: the ratio of two Laplace laws has atoms, at its ends above all
    hair = 1e-9 * max(1.0, float(np.abs(values).max()))
    return np.concatenate([values - hair, values + hair])


def _hits(scores: Scores, thresholds: Vector, *, above: bool) -> tuple[Vector, Vector]:
    """Count an event under the neighbour that it favours, and under the other one."""

    def up_to(values: Vector) -> NDArray[np.float64]:
        return np.searchsorted(np.sort(values), thresholds, side="right").astype(float)

    left, right = up_to(scores.left), up_to(scores.right)
    if above:
        return len(scores.left) - left, len(scores.right) - right
    return right, left
