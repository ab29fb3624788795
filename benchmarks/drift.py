"""How fast forgetting follows a stream whose classes are exchanged, and how often intervals cover.

`python -m benchmarks.drift`. Eight clients with windows of 200 records and p = 3 features, epsilon
2 (delta 1e-5) or no privacy. The first table: the classes are exchanged after 40 rounds; the
accuracy of the estimate on records of the new law, mean of 8 streams, so many rounds later, without
forgetting and with half-lives in rounds. The best accuracy is that of the target. The second:
streams of one law, 48 rounds, 100 streams; how often 95 % intervals cover the target, with the
error of the simulation. Writes `benchmarks/results/drift.json`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.coverage import RESULTS
from benchmarks.covered import summary_of, told
from benchmarks.streams import Cell, one_stream, rounds_of, target_of
from pipeline.types import Vector

FLIP, LATER = 40, (5, 10, 20)
STREAMS, STEADY_STREAMS = 8, 100
HALF_LIVES = (None, 5, 20)
STEADY = ((2.0, 6), (2.0, 12), (None, 6))


def main() -> None:
    """Run both tables."""
    result = {"drift": drift_table(), "steady": steady_table()}
    RESULTS.mkdir(exist_ok=True)
    Path(RESULTS / "drift.json").write_text(json.dumps(result, indent=1) + "\n")


def drift_table() -> list[dict[str, object]]:
    """Print and return accuracies before and after the classes are exchanged."""
    rows: list[dict[str, object]] = []
    print(f"accuracy before, and {', '.join(map(str, LATER))} rounds after the exchange")
    for epsilon in (2.0, None):
        for half_life in HALF_LIVES:
            cell = Cell(3, 200, FLIP + LATER[-1], epsilon, 1.0, 8, "fine", half_life, FLIP)
            found = np.mean([accuracies(cell, seed) for seed in range(STREAMS)], axis=0)
            row = {
                "epsilon": epsilon, "half_life": half_life, "best": accuracy(cell, target_of(cell)),
                "before": found[0], "after": dict(zip(map(str, LATER), found[1:], strict=True)),
            }  # fmt: skip
            rows.append(row)
            after = ", ".join(f"{value:.2f}" for value in found[1:])
            print(
                f"  {name(epsilon, half_life):36} {found[0]:.2f}, then {after}; "
                f"best {row['best']:.2f}",
                flush=True,
            )
    return rows


def accuracies(cell: Cell, seed: int) -> list[float]:
    """Return the accuracy just before the exchange on the old law, and later on the new one."""
    rounds = [estimate.coefficients for _, estimate in rounds_of(cell, seed)]
    return [
        accuracy(cell, rounds[FLIP - 1]),
        *(1.0 - accuracy(cell, rounds[FLIP + later - 1]) for later in LATER),
    ]


def accuracy(cell: Cell, coefficients: Vector) -> float:
    """Return the accuracy on 100,000 records of the law before the exchange."""
    x, y = cell.population.draw(np.random.default_rng(97), 100_000)
    return float(np.mean(np.sign(coefficients[0] + x @ coefficients[1:]) == y))


def steady_table() -> list[dict[str, object]]:
    """Print and return the coverage in streams that do not drift."""
    rows: list[dict[str, object]] = []
    print("coverage of 95 % intervals in steady streams")
    for epsilon, half_life in STEADY:
        cell = Cell(3, 200, 48, epsilon, 1.0, 8, "fine", half_life)
        target = target_of(cell)
        seen = [told(one_stream(cell, seed)[1], target) for seed in range(STEADY_STREAMS)]
        row = summary_of(seen, target)
        rows.append({"epsilon": epsilon, "half_life": half_life, **row})
        print(
            f"  {name(epsilon, half_life):36} {row['coverage']:.3f} +-{row['error']:.3f}, "
            f"ready {row['ready']:.0%}",
            flush=True,
        )
    return rows


def name(epsilon: float | None, half_life: int | None) -> str:
    """Return the name of a row."""
    budget = "without privacy" if epsilon is None else f"epsilon {epsilon:g}"
    return f"{budget}, " + (
        "no forgetting" if half_life is None else f"half-life {half_life} rounds"
    )


if __name__ == "__main__":
    main()
