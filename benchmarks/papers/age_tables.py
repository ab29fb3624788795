"""The tables of paper age: what is printed, and what this project computes for it.

Two kinds of figures. Those of `stated` follow from inputs that are printed with them, and are
gated. The losses of the figures need the clients' laws and values of their states, which are not
printed: `reporters` has stand-ins, and those cells are shown beside the printed ones, not gated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.papers.age_schemes import (
    Costs,
    Estimator,
    Reporter,
    Round,
    best_slots,
    bound,
    compare,
    costs,
    loss,
    printed_sub_exponential,
)
from benchmarks.papers.cells import Cell
from pipeline.methods.age_aware.markov import Chain, cyclic, deltas
from pipeline.methods.age_aware.schedule import classical_epsilon, present_epsilon, sensitivity
from pipeline.types import Vector
from tests.nested import Upload, nested_epsilon, table

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
    yield _shown("stated", "two releases, next state", "nested", None, nested)
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


def curves() -> tuple[dict[str, Vector], list[Cell]]:
    """Return the loss and the bound of each client alone by age, and their best ages (Figure 2)."""
    found, cells = {}, []
    for number, q in enumerate(RATES):
        given = round_at(EPSILON_2, [number])
        scales = given.scales()
        tables = {
            "bound": bound(given.reporters, given.ages, scales, start="collection", horizon=SLOTS),
            "loss": given.costs(scales),
        }
        for name, each in tables.items():
            values = each.cost[0] + each.drift[0] ** 2
            found[f"client {number + 1}, {name}"] = values
            best = float(given.ages[values.argmin()])
            printed = float(BEST_AGES[number]) if name == "bound" else None
            cells.append(_shown("figure 2", f"client {number + 1}, q = {q}", f"best age by {name}",
                                printed, best, digits=1.0))  # fmt: skip
    return found, cells


def schemes(epsilons: Sequence[float], draws: int) -> list[Cell]:
    """Return the expected losses of the six schemes and of no data (Figure 3)."""
    cells, batches = [], 4
    for epsilon in epsilons:
        given, printed = round_at(epsilon), PRINTED.get(epsilon, (None,) * len(SCHEMES))
        found = [compare(given, np.random.default_rng(seed), draws) for seed in range(batches)]
        losses = np.array([each[:6] for each in found], dtype=np.float64)
        alone = loss(_used(given, "model"), found[0].best)
        ours = [*losses.mean(axis=0).tolist(), alone]
        errors = [*(losses.std(axis=0, ddof=1) / np.sqrt(batches)).tolist(), 0.0]
        row = f"epsilon {epsilon:g}"
        cells += [
            _shown("figure 3", row, column, other, value, error)
            for column, other, value, error in zip(SCHEMES, printed, ours, errors, strict=True)
        ]
        table = _used(given, "debiased")
        best = loss(table, best_slots(table))
        cells.append(_shown("figure 3", row, "6 debiased", DEBIASED.get(epsilon), best))
    return cells


def noises(epsilons: Sequence[float]) -> tuple[Vector, Vector]:
    """Return the noise variance of the aggregate, adaptive and constant, at the best slots."""
    pairs = []
    for epsilon in epsilons:
        given = round_at(epsilon)
        adaptive, rows = given.scales(), np.arange(len(given.reporters))
        slots = best_slots(given.costs(adaptive))
        both = adaptive[rows, slots], given.common_scales(slots)
        pairs.append([float((2 * scale**2).sum()) / len(rows) ** 2 for scale in both])
    found = np.array(pairs)
    return found[:, 0], found[:, 1]


def _used(given: Round, use: Estimator) -> Costs:
    return costs(given.reporters, given.ages, given.scales(), start=given.start,
                 estimator=use, horizon=given.horizon)  # fmt: skip


def _gated(row: str, column: str, printed: float, ours: float, rounding: float) -> Cell:
    """Return a cell that has to agree to 1e-3 of the figure, or to its last digit."""
    reach = max(rounding, 1e-3 * abs(printed)) * (1 + 1e-9)
    return Cell(
        "stated", row, column, None, ours, 0.0, 0.0, gated=True, tolerance=reach,
        within=abs(ours - printed) <= reach, rounding=rounding, reference=printed,
    )  # fmt: skip


def _shown(
    which: str, row: str, column: str, printed: float | None, ours: float,
    error: float = 0.0, *, digits: float = 0.1,
) -> Cell:  # fmt: skip
    return Cell(which, row, column, None, ours, 0.0, error, rounding=digits / 2, reference=printed)
