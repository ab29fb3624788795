"""Locally private gradient descent over several partitions: error, coverage and length.

`python -m benchmarks.servers [--runs N]`. 200,000 records in all at mu = 1, an intercept and three
standard normal features, Huber's slope at 1.345 deviations, weights min(1, 2 / |(1, x)|^2), steps
i^-0.501 without a cap unless a row says so, 5 % burn-in, releases of k records. Paths and intervals
are the package's own.

"pooled" is a path in each of P partitions and their average; "shared" is one path that all of them
move, with a model after one release of each, so that D + k is P k. Two rows have unequal shares:
70 % of the records in one partition, and partitions that come one after the other, the worst case
of shares that change.

Prints the deviation of the estimate (0.01, root mean square over coefficients), the coverage of
95 % intervals of random scaling (percent), their mean length (0.01) and how often the path has
mixed (T; intervals need 50), with Monte Carlo errors, and writes results/servers.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pipeline.methods.ldp_sgd.intervals import random_scaling
from pipeline.methods.ldp_sgd.path import SgdPath
from pipeline.methods.ldp_sgd.plug_in import regressed_curvature
from pipeline.methods.ldp_sgd.step_rule import Rule, StepRule, staleness_cap
from pipeline.types import Matrix, Vector

RESULTS = Path(__file__).parent / "results" / "servers.json"
RECORDS, MU, SIZE, DEVIATION, LEVEL = 200_000, 1.0, 4, 0.5, 0.95
TRUTH, BEND = np.ones(SIZE), 1.345 * DEVIATION
#: Standard deviation of the noise of one gradient entry, 2B / mu.
NOISE = 2 * math.sqrt(2) * BEND / MU


@dataclass(frozen=True, slots=True)
class Row:
    """Partitions, records of a release, and which partitions the releases come from."""

    name: str
    partitions: int
    block: int
    shared: bool = True
    cap: float = math.inf
    shares: Literal["even", "one of 70 %", "in turn"] = "even"


ROWS = (
    Row("one path, k = 100", 1, 100),
    Row("pooled, P = 8, k = 25", 8, 25, shared=False),
    Row("shared, P = 4, k = 25", 4, 25),
    Row("shared, P = 8, k = 12", 8, 12),
    Row("shared, P = 8, k = 100, capped", 8, 100, cap=staleness_cap(2 * 0.8 / SIZE, 800)),
    Row("shared, P = 4, k = 25, one of 70 %", 4, 25, shares="one of 70 %"),
    Row("shared, P = 4, k = 25, in turn", 4, 25, shares="in turn"),
)


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=32, help="replications of a row")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    begun, results = time.monotonic(), []
    print(f"{'':36}{'deviation':16}{'coverage':16}{'length':16}T")
    for row in ROWS:
        found = summary([replication(row, seed) for seed in range(options.runs)])
        cells = "".join(f"{f'{value:.2f} ({error:.2f})':16}" for value, error in found.values())
        print(f"{row.name:36}{cells}", flush=True)
        results.append({"row": row.name, **found})
    document = {"records": RECORDS, "mu": MU, "replications": options.runs, "rows": results}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{options.runs} replications, {time.monotonic() - begun:.0f} s")


def summary(runs: list[tuple[Vector, Vector, float]]) -> dict[str, tuple[float, float]]:
    """Return the columns, each with its Monte Carlo error."""
    off = np.array([mean - TRUTH for mean, _, _ in runs])
    halves = np.array([half for _, half, _ in runs])
    squares = 1e4 * np.mean(off**2, axis=1)
    deviation = math.sqrt(squares.mean())
    shares = {
        "coverage": 100 * np.mean(np.abs(off) <= halves, axis=1),
        "length": 200 * np.mean(halves, axis=1),
        "T": np.array([mixed for *_, mixed in runs]),
    }
    return {
        "deviation": (round(deviation, 4), round(_error(squares) / (2 * deviation), 4)),
        **{k: (round(float(v.mean()), 4), round(_error(v), 4)) for k, v in shares.items()},
    }


def replication(row: Row, seed: int) -> tuple[Vector, Vector, float]:
    """Return estimate, half the lengths of its intervals, and how often the path has mixed."""
    rng, count, block = np.random.default_rng([12, seed]), row.partitions, row.block
    rule = Rule(StepRule(cap=row.cap), RECORDS // 20 // count, np.zeros(SIZE), shared=row.shared)
    models = RECORDS // (count * block)
    theta, own = np.zeros((count, SIZE)), np.zeros(count, dtype=np.int64)
    log = []
    for model in range(models):
        numbers = partitions_of(row, model, models, rng)
        points = np.tile(theta.sum(axis=0), (count, 1)) if row.shared else theta[numbers]
        gradients = gradients_at(points, block, rng)
        clock = model * count * block
        for number, point, gradient in zip(numbers, points, gradients, strict=True):
            first = int(own[number])
            steps = (
                rule.steps.step(max(clock, first) + block)
                if row.shared
                else rule.steps.steps(first + 1, block)[:, None]
            )
            theta[number] -= (steps * gradient).sum(axis=0)
            own[number] += block
            log.append((number, gradient, point, clock))
    paths = []
    for number in range(count):
        mine = [item[1:] for item in log if item[0] == number]
        gradients, points, clocks = (np.array(part) for part in zip(*mine, strict=True))
        path = SgdPath(rule)
        path.fold(gradients, points, clock=clocks)
        # the loop above is the check of the package's path
        if not np.allclose(path.theta, theta[number], rtol=1e-9, atol=1e-9):
            raise AssertionError("the path of the package is another one")
        paths.append(path)
    parts = [path.sums for path in paths]
    scaling = random_scaling([(p.sums, p.origin) for p in paths], shared=row.shared)
    moved = sum(part.moved for part in parts) if row.shared else min(p.moved for p in parts)
    least = float(np.linalg.eigvalsh(regressed_curvature(parts))[0])
    return scaling.mean, scaling.half_width(LEVEL), least * moved


def partitions_of(row: Row, model: int, models: int, rng: np.random.Generator) -> list[int]:
    """Return where the releases at one model come from."""
    count = row.partitions
    if row.shares == "in turn":
        return [model * count // models] * count
    if row.shares == "one of 70 %":
        chances = [0.7, *[0.3 / (count - 1)] * (count - 1)]
        return rng.choice(count, count, p=chances).tolist()
    return list(range(count))


def gradients_at(points: Matrix, block: int, rng: np.random.Generator) -> Matrix:
    """Return noised gradients of fresh records at each point, shape (points, block, d)."""
    x = rng.normal(size=(len(points), block, SIZE))
    x[..., 0] = 1.0
    off = np.vecdot(x, (points - TRUTH)[:, None, :]) - rng.normal(0, DEVIATION, x.shape[:2])
    slope = np.clip(off, -BEND, BEND) * np.minimum(1.0, 2 / np.vecdot(x, x))
    noised: Matrix = x * slope[..., None] + rng.normal(0, NOISE, x.shape)
    return noised


def _error(values: Vector) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


if __name__ == "__main__":
    main()
