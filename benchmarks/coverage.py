"""How often 95 % intervals cover the ridge-penalised minimiser of the population.

`python -m benchmarks.coverage [--full] [--streams N] [--jobs N]`. The target is exact
(`grouped.py`), so the only error is that of the streams, which is shown: the standard deviation
over streams of their share of covered coefficients, over the root of their number. A stream counts
where its last estimate says "ready". Noise is simulated from seeds with the deviations of a real
study; ten clients, whose records have one law.

The first table must lie within 92.5 to 98.5 %: with and without privacy, p = 5 and 20, q = 0.5, 1
and 2, features with many levels, and at p = 5 with two. "width" is the mean standard error over the
deviation of the estimates. The second table asks how many epochs the last estimate should rest on:
coverage and relative error. The third compares the middle of the sandwich, the spread between
releases, with the true one: the variance of a record's gradient at the target, from 400,000
records, plus the known noise. Quick: 24 streams of a cell, 12 of a large one. Writes
`benchmarks/results/coverage.json`, or coverage_quick.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from unittest import mock

import numpy as np
from scipy.linalg import sqrtm

from benchmarks.streams import RIDGE, Cell, one_stream, plan_of, target_of
from pipeline.doctor.coverage import share_of
from pipeline.estimators import private_estimate
from pipeline.estimators.estimate import Estimate
from pipeline.estimators.private_state import epoch_of
from pipeline.reducer import estimate_of
from pipeline.types import Matrix, Vector

RESULTS = Path(__file__).parent / "results"
LEVEL, LEAST, MOST = 0.95, 0.925, 0.985
TAILS = (0.5, 1.0, 2.0)
MAIN = tuple(
    Cell(p, n, rounds, epsilon, q, kind=kind)
    for kind, p, n, rounds, epsilon in (
        ("fine", 5, 200, 20, None),
        ("fine", 20, 200, 20, None),
        ("fine", 5, 200, 50, 1.0),
        ("fine", 20, 1000, 50, 1.0),
        ("coarse", 5, 200, 20, None),
        ("coarse", 5, 200, 50, 1.0),
    )
    for q in TAILS
)
#: Streams with more numbers than this are run less often: each takes seconds.
LARGE = 10**6
EPOCHS = {"all": 10**6, "last 2": 2, "last 3": 3, "last 4": 4}
EPOCH_ROWS = (
    Cell(5, 200, 50, 1.0),
    Cell(5, 50, 400, 1.0),
    Cell(20, 1000, 50, 1.0),
    Cell(20, 200, 400, 1.0),
    Cell(20, 200, 50, 1.0),
)
MIDDLE_ROWS = (
    Cell(5, 200, 50, 1.0),
    Cell(5, 200, 50, 2.0),
    Cell(5, 500, 20, 1.0),
    Cell(10, 500, 50, 1.0),
    Cell(20, 1000, 50, 1.0),
)
#: What a stream tells of one estimate: ready, covered, coefficients, standard errors, floored.
Seen = dict[str, object]


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--full", action="store_true", help="400 streams of a cell, 120 of a large one"
    )
    parser.add_argument("--streams", type=int, help="so many streams of a cell instead")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one core each (1)")
    options = parser.parse_args()
    begun = time.monotonic()
    streams, large, fewer = (400, 120, 16) if options.full else (24, 12, 8)
    if options.streams:
        streams = large = options.streams
    # the processes are started afresh and read this
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=options.jobs, mp_context=context) as pool:
        result: dict[str, object] = {
            "streams": streams, "streams_of_large_cells": large, "streams_of_tables": fewer,
            "bounds": [LEAST, MOST], "ridge": RIDGE,
        }  # fmt: skip
        rows: list[dict[str, object]] = []
        result["main"] = rows
        for cell in MAIN:
            size = cell.features * cell.records * cell.rounds
            rows.append(show(row_of(pool, cell, large if size >= LARGE else streams)))
            write(result, options.full)
        result["epochs"] = epochs_table(pool, fewer)
        result["middle"] = middle_table(pool, fewer)
        write(result, options.full)
    outside = [row["cell"] for row in rows if row["verdict"] == "OUTSIDE"]
    print(
        f"outside {LEAST:.1%} to {MOST:.1%}: {outside or 'none'}; {time.monotonic() - begun:.0f} s"
    )


def write(result: dict[str, object], full: bool) -> None:
    """Write down what has been found so far."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("coverage.json" if full else "coverage_quick.json")
    path.write_text(json.dumps(result, indent=1) + "\n")


def row_of(pool: Executor, cell: Cell, streams: int) -> dict[str, object]:
    """Run some streams of a cell and sum them up."""
    seen = list(pool.map(last_of, [cell] * streams, range(streams), chunksize=4))
    return {"cell": cell.label, **summary_of(seen, target_of(cell))}


def last_of(cell: Cell, seed: int) -> Seen:
    """Run a stream and tell of its last estimate."""
    return told(one_stream(cell, seed)[1], target_of(cell))


def told(estimate: Estimate, target: Vector) -> Seen:
    """Tell of one estimate."""
    ends, errors = estimate.intervals(LEVEL), estimate.standard_errors()
    ready = estimate.status == "ready" and ends is not None
    return {
        "ready": ready,
        "covered": (ends[0] <= target) & (target <= ends[1]) if ready and ends else None,
        "coefficients": estimate.coefficients,
        "errors": errors[0] if ready and errors else None,
        "floored": estimate.floored,
    }


def summary_of(seen: list[Seen], target: Vector) -> dict[str, object]:
    """Sum up some streams; coverage is None where none was ready."""
    ready = [s for s in seen if s["ready"]]
    points = np.array([s["coefficients"] for s in seen])
    errors = np.linalg.norm(points - target, axis=1) / np.linalg.norm(target)
    found: dict[str, object] = {
        "ready": len(ready) / len(seen),
        "floored": float(np.mean([s["floored"] for s in seen])),
        "relative_error": float(errors.mean()),
        "coverage": None, "error": None, "intercept": None, "width": None, "verdict": "not ready",
    }  # fmt: skip
    if len(ready) < 2:
        return found
    covered = np.array([s["covered"] for s in ready])
    widths = np.array([s["errors"] for s in ready]).mean(axis=0)
    coverage, error = share_of(covered.astype(np.float64), LEVEL)
    spread = np.array([s["coefficients"] for s in ready]).std(axis=0, ddof=1)
    verdict = "within" if LEAST <= coverage <= MOST else "OUTSIDE"
    return {
        **found, "coverage": coverage, "error": error,
        "intercept": float(covered[:, 0].mean()),
        "width": float(np.mean(widths / spread)), "verdict": verdict,
    }  # fmt: skip


def show(row: dict[str, object]) -> dict[str, object]:
    """Print a row of the first table."""
    if row["coverage"] is None:
        print(f"  {row['cell']:52} not ready", flush=True)
        return row
    print(
        f"  {row['cell']:52} {row['coverage']:6.1%} +-{row['error']:.1%}  "
        f"intercept {row['intercept']:6.1%}  width {row['width']:.3f}  ready {row['ready']:.0%}  "
        f"floored {row['floored']:.1f}  {row['verdict']}",
        flush=True,
    )
    return row


def epochs_table(pool: Executor, streams: int) -> list[dict[str, object]]:
    """Cover with the last estimate resting on so many epochs."""
    print("\nepochs of the last estimate: coverage +- error / relative error")
    rows = []
    for cell in EPOCH_ROWS:
        seen = list(pool.map(with_epochs, [cell] * streams, range(streams)))
        target = target_of(cell)
        found = {name: summary_of([s[name] for s in seen], target) for name in EPOCHS}
        rows.append({"cell": cell.label, **found})
        parts = [f"{name}: {brief(row)}" for name, row in found.items()]
        floored = found["all"]["floored"]
        print(f"  {cell.label:44} floored {floored:4.1f}  {'  '.join(parts)}", flush=True)
    return rows


def with_epochs(cell: Cell, seed: int) -> dict[str, Seen]:
    """Tell of the last estimate of a stream for each number of epochs, ready or not.

    The stream itself ran with the estimator's own number.
    """
    partition, _ = one_stream(cell, seed)
    plan, target, found = plan_of(cell), target_of(cell), {}
    for name, epochs in EPOCHS.items():
        with mock.patch.object(private_estimate, "LAST_EPOCHS", epochs):
            found[name] = told(estimate_of(plan, [partition]), target)
    return found


def brief(row: dict[str, object]) -> str:
    """Return coverage, its error and the relative error."""
    cover = "warming" if row["coverage"] is None else f"{row['coverage']:.3f}+-{row['error']:.3f}"
    return f"{cover} / {row['relative_error']:.3f}"


def middle_table(pool: Executor, streams: int) -> list[dict[str, object]]:
    """Cover with the spread between releases and with the true variance."""
    print("\nmiddle of the sandwich: true, between releases, ratio of standard errors")
    rows = []
    for cell in MIDDLE_ROWS:
        pairs = list(pool.map(both_middles, [cell] * streams, range(streams)))
        target = target_of(cell)
        between = summary_of([told_between for told_between, _ in pairs], target)
        true = summary_of([told_true for _, told_true in pairs], target)
        ratio = None
        if between["coverage"] is not None:
            ratio = float(
                np.mean([np.mean(b["errors"] / t["errors"]) for b, t in pairs if b["ready"]])  # type: ignore[operator]
            )
        rows.append({"cell": cell.label, "true": true, "between": between, "ratio": ratio})
        print(
            f"  {cell.label:44} {brief(true)}   {brief(between)}   "
            f"{'-' if ratio is None else f'{ratio:.3f}'}",
            flush=True,
        )
    return rows


def both_middles(cell: Cell, seed: int) -> tuple[Seen, Seen]:
    """Tell of the last estimate as it is, and with the true variance of the summed gradient."""
    _, estimate = one_stream(cell, seed)
    target = target_of(cell)
    between = told(estimate, target)
    if estimate.privacy_covariance is None or not between["ready"]:
        return between, between
    # bread^-1 noise bread^-1 is known, and so is the noise: that gives the bread
    releases = recent_releases(cell)
    variance = releases * plan_of(cell).step.gradient.standard_deviation ** 2
    inverse = np.real(sqrtm(estimate.privacy_covariance / variance))
    sampling = releases * cell.records * inverse @ meat_of(cell) @ inverse
    covariance = sampling + estimate.privacy_covariance
    errors = np.sqrt(np.diag(covariance))
    covered = np.abs(estimate.coefficients - target) <= errors * 1.959964
    return between, {**between, "errors": errors, "covered": covered}


def recent_releases(cell: Cell) -> int:
    """Return how many releases the last epochs of a stream hold."""
    versions = range(1, cell.rounds)
    last = sorted({epoch_of(v) for v in versions})[-private_estimate.LAST_EPOCHS :]
    return cell.clients * sum(epoch_of(v) in last for v in versions)


@lru_cache(maxsize=16)
def meat_of(cell: Cell) -> Matrix:
    """Return the variance of a record's gradient at the target, shape (d, d)."""
    x, y = cell.population.draw(np.random.default_rng(99), 400_000)
    design, target = np.column_stack([np.ones(len(y)), x]), target_of(cell)
    scores = design * plan_of(cell).loss.slope(design @ target, y)[:, None]
    matrix: Matrix = np.cov(scores, rowvar=False)
    return matrix


if __name__ == "__main__":
    main()
