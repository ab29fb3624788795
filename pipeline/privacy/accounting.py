"""What several privacy events cost a unit together, in mu-GDP and in (epsilon, delta).

The conversion is exact: the analytic Gaussian mechanism (Balle and Wang 2018) in Gaussian
differential privacy (Dong, Roth and Su 2022): delta(epsilon) = Phi(-epsilon/mu + mu/2)
- exp(epsilon) Phi(-epsilon/mu - mu/2).

A Gaussian event costs mu (Gaussian differential privacy), a pure one epsilon. Pure epsilon-DP
implies mu-GDP with mu = -2 Phi^-1(1 / (1 + e^epsilon)): the trade-off function of the first
consists of chords of the second's, which is convex (docs/privacy/composition.md). So both kinds
add up as sums of squares; sums of pure epsilons are used where they are smaller. Beside a curve of
Renyi divergences all are counted by theirs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import scipy

from pipeline.errors import PrivacyError
from pipeline.privacy.events import (
    Event,
    Gaussian,
    NonPrivate,
    Pure,
    Renyi,
    Single,
    TotalVariation,
    compose,
    counted,
    group,
)
from pipeline.privacy.randomness import SecureStream, seeded
from pipeline.types import Vector

#: No draw is farther from zero: the quantile of 2^-65.
FARTHEST = 9.2


def normal_numbers(count: int, stream: SecureStream, *, simulated: bool = False) -> Vector:
    """Return independent standard normal numbers, shape (count,), for laws that no lattice holds.

    By inversion: 64 random bits are a sign and a tail probability of 63 bits. What floating point
    can give away of them, and how far rounding hides it, says docs/privacy/copies.md.

    simulated: Draw them from the seed of a simulation, which protects nobody.

    Raises PrivacyError as `seeded`.
    """
    if simulated:
        return seeded(stream).standard_normal(count)
    words = stream.uint64(count)
    tail = np.ldexp((words >> np.uint64(1)).astype(np.float64) + 0.5, -64)
    drawn: Vector = np.where(
        words & np.uint64(1), scipy.special.ndtri(tail), -scipy.special.ndtri(tail)
    )
    return drawn


def delta_of(mu: float, epsilon: float) -> float:
    """Return the smallest delta that a mu-GDP mechanism reaches at `epsilon`.

    mu: > 0.
    epsilon: >= 0.
    """
    first = float(scipy.special.log_ndtr(-epsilon / mu + mu / 2))
    second = float(scipy.special.log_ndtr(-epsilon / mu - mu / 2)) + epsilon
    # exp(first) - exp(second), without cancellation where the two nearly agree
    return math.exp(first) * -math.expm1(min(0.0, second - first))


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu whose mechanism is (epsilon, delta)-differentially private.

    Raises PrivacyError if epsilon <= 0 or delta is outside (0, 1).
    """
    check_budget(epsilon, delta)
    low, high = 1e-12, 1.0
    while delta_of(high, epsilon) < delta:
        low, high = high, 2 * high
    while delta_of(low, epsilon) > delta:
        low /= 2
    return _last_true(lambda mu: delta_of(mu, epsilon) <= delta, low, high)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which a mu-GDP mechanism keeps `delta`; 0 for mu = 0."""
    if mu == 0 or delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return high - _last_true(lambda back: delta_of(mu, high - back) <= delta, 0.0, high)


def _last_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest float in [low, high] at which a condition holds that low keeps.

    Plain bisection: the answer errs on the side of privacy, and a client need not load an
    optimisation library, which takes longer than all else that it does at its start.
    """
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low
        if holds(middle):
            low = middle
        else:
            high = middle


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse a budget that no Gaussian mechanism can keep.

    Raises PrivacyError if epsilon is not finite and > 0, or delta is outside (0, 1).
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise PrivacyError("privacy.epsilon must be a finite number > 0, for example 1.0")
    if not 0 < delta < 1:
        raise PrivacyError("privacy.delta must lie in (0, 1), for example 1e-6")


#: Rounds of the search for an epsilon beside distances; without an end, none holds.
_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Unit:
    """Whose data a budget protects, and against which change.

    records: At most so many records of one source belong to one unit.
    neighbours: The change that is hidden: "zero-out" or "replace-one".
    """

    records: int
    neighbours: str

    def convert(self, event: Event, neighbours: str, *, noise_per_record: bool = False) -> Event:
        """Return what an event of one record under other neighbours means for this unit.

        A replacement is two absences. An absence costs at most what a replacement costs: every
        sensitivity in this project is at least as large for replace-one as for zero-out. That is
        so where noise does not depend on whether a record is there: see `Budget.shows_absence`.

        Records that share noise pay as a group. Records that have noise of their own pay as
        compositions do, but two changes of one record are a group in either case. Raises
        PrivacyError as `events.group`.
        """
        twice = self.neighbours == "replace-one" and neighbours == "zero-out"
        changes = 2 if twice else 1
        if noise_per_record:
            return compose({group(event, changes): self.records})
        return group(event, changes * self.records)


def mu_of_pure(epsilon: float) -> float:
    """Return the smallest mu such that every epsilon-DP release is mu-GDP."""
    # two forms of -2 Phi^-1(1 / (1 + e^epsilon)): the first keeps the digits of a small epsilon,
    # the second those of a large one
    if epsilon < 1:
        return 2 * math.sqrt(2) * float(scipy.special.erfinv(math.tanh(epsilon / 2)))
    return -2 * float(scipy.special.ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon))))


def event_of(mu: float | None, epsilon: float | None) -> Event:
    """Return the event of a cost as older ledgers and accounts have it.

    mu: The release is mu-GDP; None: it protects nobody.
    epsilon: It is epsilon-DP without a delta, too; None where no such epsilon holds.
    """
    if mu is None:
        return NonPrivate()
    if epsilon is None:
        return Gaussian(mu)
    if math.isclose(mu, mu_of_pure(epsilon), rel_tol=1e-9):
        return Pure(epsilon)
    # no version wrote that: whoever did may pay for both
    return compose([Gaussian(mu), Pure(epsilon)])


def total_mu(events: Iterable[Event]) -> float:
    """Return the mu of all events together: the root of the sum of squares; infinite for none."""
    return _mu(counted(events))


def total_epsilon(events: Iterable[Event], delta: float) -> float:
    """Return an epsilon that holds at `delta` for all events together.

    delta: In [0, 1); with 0 only pure events have an answer.

    Returns: The smallest of three valid bounds: all as mu-GDP, or by their Renyi divergences where
    one of them has nothing else; all as pure sums; the pure ones as a sum beside the others.
    Infinite if none holds. Distances of releases from their laws add up: (epsilon, d)-DP laws at a
    distance T are (epsilon, d + (1 + e^epsilon) T)-DP (docs/privacy/composition.md).

    Raises PrivacyError if delta is outside its range.
    """
    if not 0 <= delta < 1:
        raise PrivacyError("delta must lie in [0, 1)")
    counts = counted(events)
    distance = math.fsum(n * e.distance for e, n in counts.items() if isinstance(e, TotalVariation))
    if not distance:
        return _of_laws(counts, delta)
    exact = Counter[Single]({e: n for e, n in counts.items() if not isinstance(e, TotalVariation)})
    epsilon = 0.0
    # what is left of delta falls as epsilon rises, so that this climbs to the least that holds
    for _ in range(_ROUNDS):
        left = delta - (1 + math.exp(min(epsilon, 700.0))) * distance
        reached = _of_laws(exact, left) if left > 0 else math.inf
        if reached <= epsilon or math.isinf(reached):
            return max(epsilon, reached)
        epsilon = reached * (1 + 1e-9)
    return math.inf


def _of_laws(counts: Counter[Single], delta: float) -> float:
    """As `total_epsilon`, of releases that are drawn as their laws are."""
    pure = math.fsum(n * one.epsilon for one, n in counts.items() if isinstance(one, Pure))
    mixed = Counter[Single]({one: n for one, n in counts.items() if not isinstance(one, Pure)})
    if delta == 0:
        return math.inf if mixed else pure
    return min(_epsilon(counts, delta), pure + _epsilon(mixed, delta))


def _mu(counts: Counter[Single]) -> float:
    return math.sqrt(math.fsum(n * _mu_of(one) ** 2 for one, n in counts.items()))


def _mu_of(one: Single) -> float:
    if isinstance(one, Gaussian):
        return one.mu
    return mu_of_pure(one.epsilon) if isinstance(one, Pure) else math.inf


def _epsilon(counts: Counter[Single], delta: float) -> float:
    """Return the epsilon of all events by one argument for all, delta > 0."""
    if NonPrivate() in counts:
        return math.inf
    orders = sorted({order for one in counts if isinstance(one, Renyi) for order in one.orders})
    if not orders:
        return epsilon_of(_mu(counts), delta)
    return min(_at_order(counts, order, delta) for order in orders)


def _at_order(counts: Counter[Single], order: float, delta: float) -> float:
    """Return the epsilon that the divergence of one order gives.

    Canonne, Kamath and Steinke 2020, proposition 12.
    """
    divergence = math.fsum(n * _divergence(one, order) for one, n in counts.items())
    tail = (math.log(delta) + math.log(order)) / (order - 1)
    return max(0.0, divergence + math.log1p(-1 / order) - tail)


def _divergence(one: Single, order: float) -> float:
    """Return a bound of the Renyi divergence of an event."""
    if isinstance(one, Gaussian):
        return order * one.mu**2 / 2
    if isinstance(one, Pure):
        # that of randomised response, of which every epsilon-DP release is made (Kairouz, Oh and
        # Viswanath 2015, theorem 2): ln((e^(a e) + e^((1 - a) e)) / (1 + e^e)) / (a - 1)
        e = one.epsilon
        least = math.log1p(math.exp((1 - 2 * order) * e)) - math.log1p(math.exp(-e))
        return min(e, e + least / (order - 1))
    if isinstance(one, Renyi):
        # divergences do not fall in their order, so that the next one given is a bound
        above = zip(one.orders, one.epsilons, strict=True)
        return next((epsilon for given, epsilon in above if given >= order), math.inf)
    return math.inf
