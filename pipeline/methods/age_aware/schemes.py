"""The six schemes of the paper: three ways to choose slots, two ways to choose noise.

Slots are drawn at random, chosen by the paper's bound, or best; noise follows each client's age,
or is one scale for all that the freshest client needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.methods.age_aware.assignment import Schedule, schedule
from pipeline.methods.age_aware.chains import Start
from pipeline.methods.age_aware.guarantee import classical_epsilon, present_epsilon
from pipeline.methods.age_aware.objective import Costs, Reporter, costs, loss
from pipeline.methods.age_aware.paper_bound import bound
from pipeline.types import Integers, Matrix, Vector

#: Common epsilons that are tried for the paper's slots with one noise for all.
_TRIED = 40


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


class Compared(NamedTuple):
    """Expected losses in squared units of a record.

    printed_adaptive: Of the slots that equation (12) asks for as it is printed, with noise by age.
    """

    random_constant: float
    random_adaptive: float
    bound_constant: float
    bound_adaptive: float
    best_constant: float
    best_adaptive: float
    best: Schedule
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
        return schedule(table, node_limit=0).slots

    # slots by the bound depend on the common noise: the least noise that keeps the guarantee
    steady = by_bound(given.common(given.epsilon))
    for epsilon in np.geomspace(given.epsilon, given.cap, _TRIED):
        slots = by_bound(given.common(epsilon))
        if achieved(slots, epsilon):
            steady = slots
    best = schedule(exact)
    return Compared(
        random_constant=float(np.mean([constant(slots) for slots in drawn])),
        random_adaptive=float(np.mean([loss(exact, slots) for slots in drawn])),
        bound_constant=constant(steady),
        bound_adaptive=loss(exact, by_bound(adaptive)),
        best_constant=constant(schedule(given.costs(silent)).slots),
        best_adaptive=best.value,
        best=best,
        printed_adaptive=loss(exact, by_bound(adaptive, printed=True)),
    )
