"""Print the figures of paper age beside what this project computes for them.

`python -m benchmarks.papers.age`

They follow from inputs that are printed with them, and have to agree to a relative 1e-3 or their
last digit. The paper's own Figures 2 and 3 need the laws of its clients and the values of their
states, which are not printed, so that nobody can reproduce them. Writes results/age.json.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.papers.cells import Cell, arguments, run
from pipeline.methods.age_aware.markov import Chain, cyclic, deltas
from pipeline.methods.age_aware.schedule import classical_epsilon, present_epsilon, sensitivity
from pipeline.types import Vector
from tests.nested import Upload, nested_epsilon, table

TITLES = {"stated": "From printed inputs"}
#: Probabilities of a step of the paper's three clients, and records of each.
RATES, RECORDS = (0.1, 0.3, 0.4), 100
#: Stand-ins, on which none of the figures depends.
STATES = np.array([0.0, 60.0, 120.0, 180.0])
#: More than any client needs here, so that it never decides.
CAP = 50.0


def stated() -> Iterator[Cell]:
    """Yield what follows from printed inputs alone."""
    moved, known = sensitivity(0.0, 180.0, RECORDS), [cyclic(STATES, q) for q in RATES]
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
    yield Cell("stated", "two releases, next state, nested", "ours", None, nested, 0.0, 0.0)
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


def printed_sub_exponential(nats: Vector, scale: Vector) -> Vector:
    """Return the lemma before equation (10) as the paper prints it, with a jump where cases meet.

    nats: Mutual information of a record at collection and at the end.
    scale: eta of the Laplace noise; the paper has nu = alpha = 2 eta^2.
    """
    nu = 2 * scale**2
    return np.where(nats <= 0.5, np.sqrt(4 * nu * nats), 0.5 + nu * nats)


def _gated(what: str, where: str, printed: float, ours: float, rounding: float) -> Cell:
    """Return a cell that has to agree to 1e-3 of the figure, or to its last digit."""
    reach = max(rounding, 1e-3 * abs(printed)) * (1 + 1e-9)
    return Cell("stated", f"{what}, {where}", "ours", None, ours, 0.0, 0.0, gated=True,
                rounding=reach, reference=printed)  # fmt: skip


def main() -> None:
    options = arguments(__doc__, TITLES, "age.json")
    sys.exit(run([({"stated"}, lambda: [*stated()])], TITLES, options))


if __name__ == "__main__":
    main()
