"""What noisy copies of a fit cost: Renyi divergences of Gaussian laws, floating point included.

K copies N(theta, psi F^-1) of a fit theta with information F >= ridge I. One record changes both,
so that neighbours differ in shift and in precision. Source: noisy-mle, whose own scale depends on
the data; the public one is derived in docs/privacy/copies.md.

What floating point can do to a fit, and to what is drawn around it, is bounded by worst cases
over data, from public numbers alone: docs/privacy/copies.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from pipeline.errors import PrivacyError
from pipeline.privacy.accounting import FARTHEST
from pipeline.privacy.events import Event, Renyi, group
from pipeline.privacy.sensitivity import Neighbours
from pipeline.release.layout import Field
from pipeline.types import Vector

#: Orders of Renyi divergences that are tried; fewer only make the scale larger.
ORDERS: NDArray[np.float64] = 1 + np.geomspace(0.02, 200, 120)
#: Between which ends the logarithm of a scale is looked for.
_ENDS = -40.0, 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """How far the absence of one record can change the law of a fit, under public bounds.

    one, others: Largest ratio of the precisions along one direction, and along all others, >= 1.
    shift: Largest |F^(1/2) (theta - theta')|.
    """

    one: float
    others: float
    shift: float


def of_linear(norm: float, residual: float, ridge: float, deviation: float = 1.0) -> Change:
    """Return the change of least squares with F = X'X / deviation^2 + ridge I.

    norm, residual: Largest norm of a row, and largest residual at any coefficients of the ball over
        which the squares are least.
    """
    one = 1 + norm**2 / (deviation**2 * ridge)
    return Change(one, 1.0, residual / deviation * math.sqrt((one - 1) / one))


def of_logistic(norm: float, ridge: float, longest: float | None = None) -> Change:
    """Return the change of a logistic fit, by generalised self-concordance.

    norm: Largest norm of a row, or of a longer one times its weight.
    longest: Largest norm of a row that weighs less for it; default: `norm`.
    """
    drift = norm * (norm if longest is None else longest) / ridge
    if drift > 1:
        # far below any ridge that a budget allows, and an exponential would overflow
        return Change(math.inf, math.inf, math.inf)
    shift = norm / math.sqrt(ridge) * drift / -math.expm1(-drift)
    return Change(math.exp(drift) + norm**2 / (4 * ridge), math.exp(drift), shift)


def divergence(change: Change, size: int, copies: int, scale: float, orders: Vector) -> Vector:
    """Return bounds of the Renyi divergences of K copies; infinite where there is none."""
    found: Vector = np.full(len(orders), math.inf)
    held = orders - (orders - 1) * change.one > 0
    order = orders[held]

    def spread(ratio: float) -> Vector:
        mixed: Vector = np.log(order - (order - 1) * ratio) / (order - 1) + math.log(ratio)
        return -mixed / 2

    shifted = order * change.shift**2 * change.one / (2 * (order - (order - 1) * change.one))
    apart = spread(change.one) + (size - 1) * spread(change.others)
    found[held] = copies * (shifted / scale + apart)
    return found


def curve(
    change: Change, size: int, copies: int, scale: float, neighbours: Neighbours
) -> Renyi | None:
    """Return what K copies cost a record; None if no order has a finite divergence.

    An exchange is two absences: D_a <= (a - 1/2) / (a - 1) D_2a + D_(2a - 1) (Mironov 2017,
    proposition 11, both halves with p = q = 2).
    """
    found = divergence(change, size, copies, scale, ORDERS)
    if neighbours == "replace-one":
        first = divergence(change, size, copies, scale, 2 * ORDERS)
        found = (ORDERS - 0.5) / (ORDERS - 1) * first
        found += divergence(change, size, copies, scale, 2 * ORDERS - 1)
        # a bound at a larger order is one at this order, too
        found = np.minimum.accumulate(found[::-1])[::-1]
    held = np.isfinite(found) & (found > 0) & (found < 1e9)
    if not held.any():
        return None
    rising = np.maximum.accumulate(found[held])
    return Renyi(tuple(ORDERS[held].tolist()), tuple(rising.tolist()))


def epsilon_of(event: Event, delta: float) -> float:
    """Return the epsilon of a curve at `delta`, as `accounting` does of several events."""
    if not isinstance(event, Renyi):
        raise TypeError("only curves are read here")
    orders, costs = np.array(event.orders), np.array(event.epsilons)
    tail = (math.log(delta) + np.log(orders)) / (orders - 1)
    return float(np.min(costs + np.log1p(-1 / orders) - tail))


@dataclass(frozen=True, slots=True)
class Promise:
    """What copies must keep: (epsilon, delta) for so many records of one unit together."""

    epsilon: float
    delta: float
    neighbours: Neighbours = "zero-out"
    records: int = 1


def least_scale(change: Change, size: int, copies: int, promise: Promise) -> float:
    """Return the least public scale psi that keeps a promise; infinite where none does."""

    def excess(log_scale: float) -> float:
        event = curve(change, size, copies, math.exp(log_scale), promise.neighbours)
        if event is None:
            return math.inf
        try:
            grouped = group(event, promise.records)
        except PrivacyError:
            return math.inf
        return epsilon_of(grouped, promise.delta) - promise.epsilon

    if not math.isfinite(change.one) or excess(_ENDS[1]) > 0:
        return math.inf
    low, high = _ENDS
    # from below there may be no finite cost at all
    while high - low > 1 and not math.isfinite(excess(low)):
        low += 1
    return math.exp(float(brentq(excess, low, high, xtol=1e-14)))


#: Twice the relative error of one operation.
MACHINE = 2.0**-52
#: What the end of Newton's method can add to a change, as a share of it, with room for the rest.
NEWTON = 1e-6


@dataclass(frozen=True, slots=True)
class Sizes:
    """The public numbers that errors grow with.

    size, slots: Coefficients d, and records of a window n.
    ridge, most: Least and largest eigenvalue that the information of a window can have.
    """

    size: int
    slots: int
    ridge: float
    most: float

    @property
    def _solving(self) -> float:
        """Relative error of sums over records, a Cholesky factor and its inverse, of `most`."""
        return (2 * self.slots + 20 * (self.size + 1) ** 2) * MACHINE * self.most / self.ridge

    def of_linear(self, gain: float) -> float:
        """Return what errors of linear fits add to a change, as a share of it.

        gain: Largest w x' F^-1 x / deviation^2 of one record, > 0.
        """
        return NEWTON + self._solving * max(1.0, math.sqrt(1 + gain) / gain)

    def of_logistic(self, longest: float, point: float, norm: float) -> float:
        """Return what errors of logistic fits add to a change, as a share of it.

        longest, norm: Largest norm of a row, and of one times its weight.
        point: Largest norm of a model's coefficients.
        """
        predictor = (self.size + 2) * longest * (point + self.slots * norm / self.ridge)
        slopes = self.slots * (self.slots + 4 + predictor) * MACHINE
        return NEWTON + self._solving + slopes


def distance(mean: Field, scatter: Field, size: int, copies: int, spread: float) -> float:
    """Return the total variation of what is drawn from rounded exact copies, at most.

    spread: Largest variance that a copy can have, psi / ridge.
    """
    moved = (size + 8) * MACHINE * math.sqrt(size * spread / copies) * FARTHEST
    moved += MACHINE * mean.largest * 2.0**mean.exponent
    # the squares of d (K - 1) normal numbers pass this once in e^128
    squares = (math.sqrt(size * copies) + 16) ** 2
    bent = (copies + 2 * size + 24) * MACHINE * squares * spread
    apart = mean.length * moved * 2.0**-mean.exponent
    return 4 * (apart + scatter.length * bent * 2.0**-scatter.exponent)
