"""How often 95 % intervals cover the ridge-penalised minimiser of the population.

`python -m benchmarks.coverage [--full] [--cells TEXT] [--streams N] [--jobs N]`. The target is
exact (`grouped.py`) or nearly so (`autoregressive.py`), so the only error is that of the streams,
which is shown: the standard deviation over streams of their share of intervals that cover, over the
root of their number. A stream counts where its last estimate says "ready", and a coefficient where
it has an interval: "given" is the share that has. Noise is simulated from seeds with the deviations
of a real study; ten clients, whose records have one law.

The first table must lie within 92.5 to 98.5 %: with and without privacy, p = 5 and 20, q = 0.5, 1
and 2, features with many levels, and at p = 5 with two; and, at q = 1, Gaussian features that are
correlated ("ar"). "width" is the mean standard error over the deviation of the estimates. The other
is in `coverage_choices.py`: the middle of the sandwich, the spread between releases, beside the
true one: the variance of a record's gradient at the target, from 400,000 records, plus the known
noise. Quick: 24 streams of a cell, 12 of a large one. With --cells only those cells of the first
table are run whose label holds TEXT, and the other results stay. Writes
`benchmarks/results/coverage.json`, or coverage_quick.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from benchmarks.coverage_choices import middle_table
from benchmarks.covered import LEAST, MOST, Seen, summary_of, told
from benchmarks.streams import RIDGE, Cell, one_stream, target_of

RESULTS = Path(__file__).parent / "results"
TAILS = (0.5, 1.0, 2.0)
MAIN = (
    *(
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
    ),
    Cell(10, 200, 20, None, kind="ar"),
    Cell(10, 500, 20, None, kind="ar"),
    Cell(10, 1000, 50, 1.0, kind="ar"),
    Cell(10, 1000, 200, 1.0, kind="ar"),
)
#: Streams with more numbers than this are run less often: each takes seconds.
LARGE = 10**6


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--full", action="store_true", help="400 streams of a cell, 120 of a large one"
    )
    parser.add_argument("--cells", default="", help="only cells whose label holds this text")
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
    path = RESULTS / ("coverage.json" if options.full else "coverage_quick.json")
    result: dict[str, object] = {
        "streams": streams, "streams_of_large_cells": large, "streams_of_tables": fewer,
        "bounds": [LEAST, MOST], "ridge": RIDGE,
    }  # fmt: skip
    if options.cells:
        result = json.loads(path.read_text())
    kept = {row["cell"]: row for row in result.get("main", [])}  # type: ignore[attr-defined]
    rows = []
    with ProcessPoolExecutor(max_workers=options.jobs, mp_context=context) as pool:
        for cell in MAIN:
            if options.cells not in cell.label:
                continue
            size = cell.features * cell.records * cell.rounds
            rows.append(show(row_of(pool, cell, large if size >= LARGE else streams)))
            kept[cell.label] = rows[-1]
            result["main"] = list(kept.values())
            write(result, path)
        if not options.cells:
            result["middle"] = middle_table(pool, fewer)
            write(result, path)
    outside = [row["cell"] for row in rows if row["verdict"] == "OUTSIDE"]
    print(
        f"outside {LEAST:.1%} to {MOST:.1%}: {outside or 'none'}; {time.monotonic() - begun:.0f} s"
    )


def write(result: dict[str, object], path: Path) -> None:
    """Write down what has been found so far."""
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def row_of(pool: Executor, cell: Cell, streams: int) -> dict[str, object]:
    """Run some streams of a cell and sum them up."""
    seen = list(pool.map(last_of, [cell] * streams, range(streams), chunksize=4))
    return {"cell": cell.label, **summary_of(seen, target_of(cell))}


def last_of(cell: Cell, seed: int) -> Seen:
    """Run a stream and tell of its last estimate."""
    return told(one_stream(cell, seed)[1], target_of(cell))


def show(row: dict[str, object]) -> dict[str, object]:
    """Print a row of the first table."""
    if row["coverage"] is None:
        print(
            f"  {row['cell']:52} not ready (ready {row['ready']:.0%} of {row['streams']})",
            flush=True,
        )
        return row
    print(
        f"  {row['cell']:52} {row['coverage']:6.1%} +-{row['error']:.1%}  "
        f"intercept {row['intercept']:6.1%}  width {row['width']:.3f}  ready {row['ready']:.0%}  "
        f"given {row['given']:.0%}  floored {row['floored']:.1f}  {row['verdict']}",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
