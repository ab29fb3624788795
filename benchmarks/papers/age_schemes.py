"""The six schemes of paper age: three ways to choose slots, two ways to choose noise.

Slots are drawn at random, chosen by the paper's bound (equation (12) corrected, and as it is
printed), or best; noise follows each client's age, or is one scale for all that the freshest client
needs. Uploads are taken as they are, so that the drift of all clients together counts, and no
single assignment is the best schedule: of three clients in twenty slots all are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np

from pipeline.errors import ConfigError
from pipeline.methods.age_aware.markov import Chain, Start, laws, moments
from pipeline.methods.age_aware.schedule import classical_epsilon, expected_loss, present_epsilon
from pipeline.types import Integers, Matrix, Vector

#: Common epsilons that are tried for the paper's slots with one noise for all.
_TRIED = 40


#: What the server makes of an upload: it takes it as it is ("plain", the paper), adds the drift of
#: the public model, weighs upload and model, or uses the public model alone.
Estimator = Literal["plain", "debiased", "wiener", "model"]


@dataclass(frozen=True)
class Reporter:
    """A client as the scheduler knows it: public numbers alone.

    chain, law: How its records change, and what is known of them; see `markov.Start`.
    records: How many it has, at least 1.
    weight: Its share of the aggregate, above 0; the shares of all clients sum to 1.
    """

    chain: Chain
    law: Vector
    records: int
    weight: float


class Costs(NamedTuple):
    """What a schedule is looked for in, both of shape (m, K), m clients and K slots.

    The loss of a schedule k is the sum of cost[i, k_i] plus the square of the sum of
    drift[i, k_i]. An infinite cost forbids a slot.
    """

    cost: Matrix
    drift: Matrix


def costs(
    reporters: Sequence[Reporter],
    ages: Integers,
    scales: Matrix,
    *,
    start: Start = "round",
    estimator: Estimator = "plain",
    horizon: int | None = None,
) -> Costs:
    """Return the tables of all clients.

    ages: Of the slots: how long before the end of the round each is, shape (K,).
    scales: Scale of the Laplace noise of each client's mean in each slot, shape (m, K), >= 0.
    horizon: Slots from the beginning of the round to its end; the largest age unless given.
    """
    horizon = int(ages.max(initial=0)) if horizon is None else horizon
    if scales.shape != (len(reporters), len(ages)):
        raise ConfigError("scales: give one for each client and slot")
    cost, drift = [], []
    for one, scale in zip(reporters, scales, strict=True):
        then = laws(one.chain, one.law, ages, start, horizon)
        found = moments(one.chain.states, then, one.chain.powers(ages))
        alone = found.variance_now / one.records
        lost = expected_loss(found, one.records, scale, estimator)
        cost.append(one.weight**2 * (alone if estimator == "model" else lost))
        moved = one.weight * (found.mean_then - found.mean_now)
        drift.append(moved if estimator == "plain" else np.zeros_like(moved))
    return Costs(np.array(cost), np.array(drift))


@dataclass(frozen=True)
class Round:
    """A round to schedule: public numbers alone.

    reporters: The m clients.
    ages: Of the K slots, shape (K,).
    deltas: Delta of each client and slot, shape (m, K); see `mixing`.
    sensitivities: How far one record moves each client's mean, shape (m,).
    epsilon: About the present, for each client.
    cap: Most classical epsilon of one release.
    start: When the reporters' laws hold.
    """

    reporters: Sequence[Reporter]
    ages: Integers
    deltas: Matrix
    sensitivities: Vector
    epsilon: float
    cap: float
    start: Start = "round"

    @property
    def horizon(self) -> int:
        """Slots from the beginning of the round to its end."""
        return int(self.ages.max(initial=0))

    def scales(self) -> Matrix:
        """Return the Laplace scale that each client and slot needs, shape (m, K)."""
        needed = classical_epsilon(self.epsilon, self.deltas, self.cap).classical
        return np.asarray(self.sensitivities[:, None] / needed)

    def common(self, epsilon: float) -> Matrix:
        """Return the Laplace scales of one classical epsilon for all, shape (m, K)."""
        return np.repeat(self.sensitivities[:, None] / epsilon, len(self.ages), axis=1)

    def common_scales(self, slots: Integers) -> Vector:
        """Return the Laplace scales, shape (m,), of one epsilon that keeps all to the guarantee.

        slots: Column of each client, shape (m,).
        """
        mine = self.deltas[np.arange(len(slots)), slots]
        least = classical_epsilon(self.epsilon, mine, self.cap).classical.min()
        return np.asarray(self.sensitivities / least)

    def costs(self, scales: Matrix) -> Costs:
        """Return the exact tables at given noise, shape (m, K)."""
        return costs(self.reporters, self.ages, scales, start=self.start, horizon=self.horizon)


def loss(table: Costs, slots: Integers) -> float:
    """Return the expected loss of a schedule, in squared units of a record.

    slots: Column of each client, shape (m,).
    """
    rows = np.arange(len(slots))
    return float(table.cost[rows, slots].sum() + table.drift[rows, slots].sum() ** 2)


@cache
def _orders(clients: int, slots: int) -> Integers:
    return np.array(list(permutations(range(slots), clients)), dtype=np.int64)


def best_slots(table: Costs) -> Integers:
    """Return the schedule of least loss, each column used at most once, shape (m,).

    table: Of few clients and slots: K! / (K - m)! schedules are looked at.
    """
    rows, orders = np.arange(len(table.cost)), _orders(*table.cost.shape)
    losses = table.cost[rows, orders].sum(axis=1) + table.drift[rows, orders].sum(axis=1) ** 2
    return np.asarray(orders[losses.argmin()])


def information(then: Matrix, kernels: Matrix) -> Vector:
    """Return the mutual information of a record at collection and at the end, in nats, shape (K,).

    then: Laws at collection, shape (K, S).
    kernels: Steps from collection to the end, shape (K, S, S).
    """
    joint = then[:, :, None] * kernels
    apart = then[:, :, None] * joint.sum(axis=1)[:, None, :]
    ratio = np.divide(joint, apart, out=np.ones_like(joint), where=joint > 0)
    return np.asarray((joint * np.log(ratio)).sum(axis=(1, 2)), dtype=np.float64)


def sub_exponential(nats: Vector, scale: Vector) -> Vector:
    """Return the least of I / l + l nu^2 / 2 over 0 < l <= 1 / alpha, with nu = alpha = 2 eta.

    The lemma before equation (10), corrected; it ranks schedules and is no bound: the loss holds
    squared Laplace noise, which has no such nu and alpha.
    """
    nu = 2 * scale
    return np.where(nats <= 0.5, nu * np.sqrt(2 * nats), nu * nats + nu / 2)


def printed_sub_exponential(nats: Vector, scale: Vector) -> Vector:
    """Return the same as the paper prints it: nu = alpha = 2 eta^2, and a jump where cases meet."""
    nu = 2 * scale**2
    return np.where(nats <= 0.5, np.sqrt(4 * nu * nats), 0.5 + nu * nats)


def bound(
    reporters: Sequence[Reporter],
    ages: Integers,
    scales: Matrix,
    *,
    start: Start,
    horizon: int,
    printed: bool = False,
) -> Costs:
    """Return equation (12) as tables to look for a schedule in; parameters as `objective.costs`.

    printed: With the paper's slips: noise weighed by the share of a client and not by its square,
        the jump above, and a drift that is not squared. What is constant is left out.
    """
    cost, drift = [], []
    for reporter, scale in zip(reporters, scales, strict=True):
        kernels = reporter.chain.powers(ages)
        then = laws(reporter.chain, reporter.law, ages, start, horizon)
        found = moments(reporter.chain.states, then, kernels)
        nats, share, noise = information(then, kernels), reporter.weight, 2 * scale**2
        spread = (found.variance_then + found.variance_now) / reporter.records
        if printed:
            row = share * (printed_sub_exponential(nats, scale) + noise) + share**2 * spread
        else:
            row = share * sub_exponential(nats, scale) + share**2 * (spread + noise)
        cost.append(row)
        drift.append(share * (found.mean_then - found.mean_now))
    return Costs(np.array(cost), np.array(drift))


class Compared(NamedTuple):
    """Expected losses in squared units of a record.

    best: Column of each client in the best schedule, shape (m,).
    printed_adaptive: Of the slots that equation (12) asks for as it is printed, with noise by age.
    """

    random_constant: float
    random_adaptive: float
    bound_constant: float
    bound_adaptive: float
    best_constant: float
    best_adaptive: float
    best: Integers
    printed_adaptive: float


def compare(given: Round, rng: np.random.Generator, draws: int = 200) -> Compared:
    """Return the expected loss of the six schemes, random schedules averaged over draws.

    draws: Random schedules, at least 1.
    """
    adaptive, rows = given.scales(), np.arange(len(given.reporters))
    exact = given.costs(adaptive)
    silent = np.zeros_like(adaptive)

    def constant(slots: Integers) -> float:
        table = given.costs(silent)
        weights = np.array([each.weight for each in given.reporters])
        noise = (weights**2 * 2 * given.common_scales(slots) ** 2).sum()
        return loss(table, slots) + float(noise)

    def achieved(slots: Integers, epsilon: float) -> bool:
        mine = given.deltas[rows, slots]
        return bool(present_epsilon(np.array(epsilon), mine).max() <= given.epsilon * (1 + 1e-9))

    drawn = [rng.permutation(len(given.ages))[: len(rows)] for _ in range(draws)]

    def by_bound(scales: Matrix, *, printed: bool = False) -> Integers:
        table = bound(
            given.reporters, given.ages, scales,
            start=given.start, horizon=given.horizon, printed=printed,
        )  # fmt: skip
        return best_slots(table)

    # slots by the bound depend on the common noise: the least noise that keeps the guarantee
    steady = by_bound(given.common(given.epsilon))
    for epsilon in np.geomspace(given.epsilon, given.cap, _TRIED):
        slots = by_bound(given.common(epsilon))
        if achieved(slots, epsilon):
            steady = slots
    best = best_slots(exact)
    return Compared(
        random_constant=float(np.mean([constant(slots) for slots in drawn])),
        random_adaptive=float(np.mean([loss(exact, slots) for slots in drawn])),
        bound_constant=constant(steady),
        bound_adaptive=loss(exact, by_bound(adaptive)),
        best_constant=constant(best_slots(given.costs(silent))),
        best_adaptive=loss(exact, best),
        best=best,
        printed_adaptive=loss(exact, by_bound(adaptive, printed=True)),
    )
