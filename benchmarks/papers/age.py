"""Print the figures of paper age beside what an independent implementation found.

`python -m benchmarks.papers.age [--full] [--tables NAME ...]`

Gated are figures that follow from printed inputs, to a relative 1e-3 or their last digit. The laws
of the paper's clients and the values of their states are not printed: the losses of Figures 2 and 3
are those of stand-ins, shown with [the printed figure], and not gated. Random schedules have their
Monte Carlo error in brackets. Writes results/age.json and both pictures beside the page.

Figure 3 has six schemes: three ways to choose slots, two ways to choose noise. Slots are drawn at
random, chosen by the paper's bound (equation (12) corrected), or best; noise follows each client's
age, or is one scale for all that the freshest client needs. Uploads are taken as they are, so that
the drift of all clients together counts, and no single assignment is the best schedule: of three
clients in twenty slots all are looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.papers.cells import Cell, Curve, Panel, arguments, draw, run
from pipeline.errors import ConfigError
from pipeline.methods.age_aware.markov import Chain, Start, cyclic, deltas, laws, moments
from pipeline.methods.age_aware.schedule import (
    classical_epsilon,
    expected_loss,
    present_epsilon,
    sensitivity,
)
from pipeline.types import Integers, Matrix, Vector
from tests.nested import Upload, nested_epsilon, table

TITLES = {
    "stated": "From printed inputs",
    "figure 2": "Figure 2: best age of each client alone, epsilon 0.055",
    "figure 3": "Figure 3: expected loss in Wh^2 by epsilon",
}
#: Probabilities of a step of the paper's three clients, and records of each.
RATES, RECORDS, SLOTS = (0.1, 0.3, 0.4), 100, 20
#: Stand-ins: one step moves each law by 0.08, 0.15 and 0.30, as it does the paper's.
STATES = np.array([0.0, 60.0, 120.0, 180.0])
LAWS = ((0.8, 0.2, 0.0, 0.0), (0.5, 0.3, 0.2, 0.0), (0.0, 0.0, 0.25, 0.75))
#: More than any client needs here, so that it never decides.
CAP = 50.0
SCHEMES = ("1 random, constant", "2 random, adaptive", "3 bound, constant", "4 bound, adaptive",
           "5 best, constant", "6 best, adaptive", "no data")  # fmt: skip
#: Expected losses of an independent implementation, at the paper's own laws, by epsilon.
PRINTED = {
    0.03: (1808, 908, 2416, 269.7, 2407, 269.5, 14.4),
    0.10: (298.5, 217.6, 232.0, 70.5, 222.8, 70.5, 12.7),
    0.20: (185.8, 165.7, 70.0, 32.6, 60.8, 32.4, 11.7),
    0.40: (157.4, 152.4, 29.2, 20.5, 20.3, 17.6, 9.3),
    0.80: (150.2, 148.9, 10.1, 16.9, 10.1, 10.1, 6.5),
}
#: The same of the best age of each client alone, and of `debiased` at epsilon 0.1.
BEST_AGES, DEBIASED = (0, 15, 11), {0.1: 25.9}
#: Of Figure 2, and the epsilons of Figure 3.
EPSILON_2, EPSILONS = 0.055, (0.03, 0.05, 0.1, 0.2, 0.4, 0.8)


#: Common epsilons that are tried for the paper's slots with one noise for all.
TRIED = 40


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

    def costs(self, scales: Matrix, estimator: Estimator = "plain") -> Costs:
        """Return the exact tables at given noise, shape (m, K)."""
        return costs(self.reporters, self.ages, scales, start=self.start, estimator=estimator,
                     horizon=self.horizon)  # fmt: skip


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


def bound(given: Round, scales: Matrix) -> Costs:
    """Return equation (12), corrected, as tables to look for a schedule in, at noise (m, K).

    What is constant is left out.
    """
    cost, drift = [], []
    for one, scale in zip(given.reporters, scales, strict=True):
        kernels = one.chain.powers(given.ages)
        then = laws(one.chain, one.law, given.ages, given.start, given.horizon)
        found = moments(one.chain.states, then, kernels)
        spread = (found.variance_then + found.variance_now) / one.records + 2 * scale**2
        nats = information(then, kernels)
        cost.append(one.weight * sub_exponential(nats, scale) + one.weight**2 * spread)
        drift.append(one.weight * (found.mean_then - found.mean_now))
    return Costs(np.array(cost), np.array(drift))


class Compared(NamedTuple):
    """Expected losses in squared units of a record; best: column of each client, shape (m,)."""

    random_constant: float
    random_adaptive: float
    bound_constant: float
    bound_adaptive: float
    best_constant: float
    best_adaptive: float
    best: Integers


def compare(given: Round, rng: np.random.Generator, draws: int = 200) -> Compared:
    """Return the expected loss of the six schemes, random schedules averaged over draws, >= 1."""
    adaptive, rows = given.scales(), np.arange(len(given.reporters))
    exact, silent = given.costs(adaptive), given.costs(np.zeros_like(adaptive))
    weights = np.array([each.weight for each in given.reporters])

    def constant(slots: Integers) -> float:
        noise = (weights**2 * 2 * given.common_scales(slots) ** 2).sum()
        return loss(silent, slots) + float(noise)

    def by_bound(scales: Matrix) -> Integers:
        return best_slots(bound(given, scales))

    drawn = [rng.permutation(len(given.ages))[: len(rows)] for _ in range(draws)]
    # slots by the bound depend on the common noise: the least noise that keeps the guarantee
    steady = by_bound(given.common(given.epsilon))
    for epsilon in np.geomspace(given.epsilon, given.cap, TRIED):
        slots = by_bound(given.common(epsilon))
        spent = present_epsilon(np.array(epsilon), given.deltas[rows, slots]).max()
        if spent <= given.epsilon * (1 + 1e-9):
            steady = slots
    best = best_slots(exact)
    return Compared(
        random_constant=float(np.mean([constant(slots) for slots in drawn])),
        random_adaptive=float(np.mean([loss(exact, slots) for slots in drawn])),
        bound_constant=constant(steady),
        bound_adaptive=loss(exact, by_bound(adaptive)),
        best_constant=constant(best_slots(silent)),
        best_adaptive=loss(exact, best),
        best=best,
    )


def chains() -> list[Chain]:
    """Return the chains of the three clients."""
    return [cyclic(STATES, q) for q in RATES]


def round_at(epsilon: float, clients: Sequence[int] = (0, 1, 2)) -> Round:
    """Return a round of some of the three clients, with the stand-in laws."""
    known, ages = chains(), np.arange(SLOTS)
    left = np.array([deltas(known[i], ages, "spectral") for i in clients])
    reporters = [Reporter(known[i], np.array(LAWS[i]), RECORDS, 1 / len(clients)) for i in clients]
    moved = np.full(len(clients), sensitivity(0.0, 180.0, RECORDS))
    return Round(reporters, ages, left, moved, epsilon, CAP, "collection")


def stated() -> Iterator[Cell]:
    """Yield what follows from printed inputs alone."""
    moved, known = sensitivity(0.0, 180.0, RECORDS), chains()
    yield _gated("sensitivity", "100 records of 0 to 180 Wh", 1.8, moved, 0.05)
    for chain, q, gamma, classical in zip(
        known, RATES, (0.9055, 0.7616, 0.7211), (2.3, 10.8, 13.5), strict=True
    ):
        left = deltas(chain, np.array([20, 21, 50]), "spectral")
        yield _gated("gamma*", f"q = {q}", gamma, float(left[1] / left[0]), 5e-5)
        needed = classical_epsilon(0.1, left[2:], CAP).classical
        yield _gated("epsilon at collection, age 50", f"q = {q}", classical, float(needed[0]), 0.05)
    jump = printed_sub_exponential(np.array([0.5, np.nextafter(0.5, 1)]), np.full(2, moved / 0.1))
    for side, printed, ours in zip(("below", "above"), (36.0, 324.5), jump, strict=True):
        yield _gated("printed lemma at its threshold", side, printed, float(ours), 0.05)
    pair = Chain(np.array([0.0, 1.0]), np.array([[0.434, 0.566], [0.0104, 0.9896]]))
    left = deltas(pair, np.arange(3), "stationary")
    uploads = [Upload(0, 1.69), Upload(1, 1.81)]
    nested = nested_epsilon(uploads, 2, table(left), table(left))
    added = present_epsilon(np.array([1.69, 1.81]), left[[2, 1]]).sum()
    # the nested rule is a bound: at least what the exact law of the pair gives
    yield _shown("stated", "two releases, next state, nested", "ours", None, nested)
    yield _gated("two releases, next state", "exact", 1.921, _exact(pair, (1.69, 1.81)), 5e-4)
    yield _gated("two releases, next state", "added up", 1.736, float(added), 5e-4)
    spread = 180.0 * np.sqrt(sum(180.0**2 / RECORDS for _ in RATES)) / len(RATES)
    yield _gated("nu of the mended lemma", "three clients of 100", 1871, float(spread), 0.5)
    ages = np.arange(1, 30)
    below = [deltas(each, ages, "spectral") < deltas(each, ages) - 1e-9 for each in known]
    yield _gated("equation (8) below the worst prior", "of 87", 55, float(np.sum(below)), 0.5)
    slow, fast, ten = cyclic(STATES, 0.02), cyclic(STATES, 0.6), np.array([10])
    average = Chain(STATES, (slow.matrix + fast.matrix) / 2)
    for name, chain, printed in (("average", average, 0.083), ("slow half", slow, 0.968)):
        left = deltas(chain, ten, "stationary")
        yield _gated("Delta(10) of a mixed population", name, printed, float(left[0]), 5e-4)


def _exact(chain: Chain, epsilons: Sequence[float]) -> float:
    """Return what binary releases of two slots in a row say of the state after them, exactly."""
    keep = np.exp(epsilons) / (1 + np.exp(epsilons))
    worst = 0.0
    for first, second in np.ndindex(2, 2):
        told = [
            np.where(np.arange(2) == out, p, 1 - p)
            for out, p in zip((first, second), keep, strict=True)
        ]
        joint = ((chain.stationary * told[0]) @ chain.matrix * told[1]) @ chain.matrix
        likely = joint / chain.stationary
        worst = max(worst, abs(float(np.log(likely[0] / likely[1]))))
    return worst


def figure_2(out: Path) -> Iterator[Cell]:
    """Yield the best ages of each client alone, by the loss and the bound, and draw both."""
    panels = []
    for number, q in enumerate(RATES, 1):
        given, curves = round_at(EPSILON_2, [number - 1]), dict[str, Curve]()
        for name, each in (("bound", bound(given, given.scales())),
                           ("loss", given.costs(given.scales()))):  # fmt: skip
            values = each.cost[0] + each.drift[0] ** 2
            curves[name] = given.ages.tolist(), values.tolist(), None
            best, printed = float(given.ages[values.argmin()]), float(BEST_AGES[number - 1])
            yield _shown("figure 2", f"client {number}, q = {q}", f"best age by {name}",
                         printed if name == "bound" else None, best, digits=1.0)  # fmt: skip
        panels.append(Panel(f"client {number}: age in slots", "Wh^2", curves, "y"))
    draw("age-aware-ages.png", panels, out)


def figure_3(draws: int, out: Path) -> list[Cell]:
    """Return the expected losses of the six schemes and of no data, and draw them and the noise."""
    cells, batches, rows = [], 4, np.arange(len(RATES))
    noises = dict[str, list[float]](adaptive=[], constant=[])
    for epsilon in EPSILONS:
        given, printed = round_at(epsilon), PRINTED.get(epsilon, (None,) * len(SCHEMES))
        found = [compare(given, np.random.default_rng(seed), draws) for seed in range(batches)]
        losses, best = np.array([each[:6] for each in found], dtype=np.float64), found[0].best
        ours = [*losses.mean(axis=0).tolist(), loss(given.costs(given.scales(), "model"), best)]
        errors = [*(losses.std(axis=0, ddof=1) / np.sqrt(batches)).tolist(), 0.0]
        row = f"epsilon {epsilon:g}"
        cells += [
            _shown("figure 3", row, column, other, value, error)
            for column, other, value, error in zip(SCHEMES, printed, ours, errors, strict=True)
        ]
        drifting = given.costs(given.scales(), "debiased")
        value = loss(drifting, best_slots(drifting))
        cells.append(_shown("figure 3", row, "6 debiased", DEBIASED.get(epsilon), value))
        for name, scale in (("adaptive", given.scales()[rows, best]),
                            ("constant", given.common_scales(best))):  # fmt: skip
            noises[name].append(float((2 * scale**2).sum()) / len(rows) ** 2)
    curves: dict[str, Curve] = {
        name: (EPSILONS, [c.ours for c in cells if c.column == name], None)
        for name in dict.fromkeys(cell.column for cell in cells)
    }
    panels = [
        Panel("epsilon about the present", "expected loss, Wh^2", curves, "xy"),
        Panel("epsilon about the present", "noise variance of the mean, Wh^2",
              {name: (EPSILONS, values, None) for name, values in noises.items()}, "xy"),
    ]  # fmt: skip
    draw("age-aware-schemes.png", panels, out)
    return cells


def _gated(what: str, where: str, printed: float, ours: float, rounding: float) -> Cell:
    """Return a cell that has to agree to 1e-3 of the figure, or to its last digit."""
    reach = max(rounding, 1e-3 * abs(printed)) * (1 + 1e-9)
    return Cell("stated", f"{what}, {where}", "ours", None, ours, 0.0, 0.0, gated=True,
                rounding=reach, reference=printed)  # fmt: skip


def _shown(
    which: str, row: str, column: str, printed: float | None, ours: float,
    error: float = 0.0, *, digits: float = 0.1,
) -> Cell:  # fmt: skip
    return Cell(which, row, column, None, ours, 0.0, error, rounding=digits / 2, reference=printed)


def main() -> None:
    """Compute, print, draw and write down."""
    options = arguments(__doc__, TITLES, "age.json")
    draws = options.runs or (200 if options.full else 50)
    parts = [
        ({"stated"}, lambda: [*stated()]),
        ({"figure 2"}, lambda: [*figure_2(options.out)]),
        ({"figure 3"}, partial(figure_3, draws, options.out)),
    ]
    sys.exit(run(parts, TITLES, options))


if __name__ == "__main__":
    main()
