"""Intervals of locally private gradient descent where they are due: when, coverage, length.

`python -m benchmarks.sgd_intervals [--streams N] [--rows WORD] [--save]`. Streams of the designs
in `sgd_designs`, with the study's own noise, steps and estimator; one client, a model after each of
its windows. The exact sandwich (true curvature, the same noise, all of the budget in gradients) is
half a unit to either side, of the residuals' deviation or of the logit, after n records. Streams
end with 2 n, or when by the forecast models are near enough, if that is later ("latest"). They are
looked at forty times until 2 n, and once at the end.

Prints for each design, of the streams: which have an interval at 2 n and at the end; after how many
records the first one comes, over n, in the middle and in the last stream; of the coefficients the
share with an interval at the end. Then in percent, with the Monte Carlo error, how many 95 %
intervals hold the population's minimiser: each coefficient's first one, those at 2 n and those at
the end; the lowest of one coefficient at the end, and the median length over the exact one. A
second table says when a plan from the ranges, or from a sample of features with the share of
positive classes, would have foretold intervals, and which streams had one by then. With --save,
`benchmarks/results/sgd_intervals.json` is written design by design.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sgd_designs import NORMAL, ROWS, Design, design_of
from benchmarks.sgd_streams import Streams
from pipeline.simulate.coverage import share_of
from pipeline.types import Matrix, Vector

RESULTS = Path(__file__).parent / "results" / "sgd_intervals.json"
LEVEL, LEAST, MOST = 0.95, 0.925, 0.985
#: Streams that are drawn together, and looks until twice the exact size.
BATCH, LOOKS = 20, 40
Found = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """What one stream shows.

    first: Records at the first look with an interval of any coefficient; infinite without.
    firsts: Whether the first interval of each coefficient holds the target, shape (d,); NaN where
        none came.
    twice, end: The same of the intervals at twice the exact size, and at the end.
    lengths: Of those at the end, over the exact ones, shape (d,).
    """

    first: float
    firsts: Vector
    twice: Vector
    end: Vector
    lengths: Vector


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=_twenties, default=20, help="of a design, in twenties")
    parser.add_argument("--save", action="store_true", help="write the results")
    parser.add_argument("--rows", default="", help="only designs whose label has this word")
    options = parser.parse_args()
    designs = [design_of(row) for row in ROWS if options.rows in row.label]
    results = json.loads(RESULTS.read_text()) if options.save and RESULTS.exists() else {}
    print(HEADER)
    # the shortest first
    for design in sorted(designs, key=lambda one: one.latest * one.row.size):
        found = results[design.row.label] = summed(design, options.streams)
        print(line(found), flush=True)
        if options.save:
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print(f"\n{PLANNED}")
    for design in designs:
        print(planned(results[design.row.label]))


def _twenties(text: str) -> int:
    if not text.isdecimal() or int(text) == 0 or int(text) % BATCH:
        raise argparse.ArgumentTypeError(f"streams are made {BATCH} at a time")
    return int(text)


def summed(design: Design, streams: int) -> Found:
    """Return what the streams of a design show together."""
    traces = [one for batch in range(streams // BATCH) for one in streamed(design, batch)]
    first = np.array([trace.first for trace in traces])
    found: Found = {
        "design": design.row.label, "streams": streams, "exact": design.exact,
        "latest": design.latest,
        "ready_twice": ready(np.array([trace.twice for trace in traces])),
        "ready_latest": ready(np.array([trace.end for trace in traces])),
        "first_median": float(np.median(first)) / design.exact,
        "first_last": float(first.max()) / design.exact,
        "given": float(np.mean(~np.isnan([trace.end for trace in traces]))),
        "length": float(np.nanmedian([trace.lengths for trace in traces])),
    }  # fmt: skip
    for name in ("by_ranges", "by_sample"):
        said = getattr(design, name).ready
        found[name] = {"records": said, "ready": float(np.mean(first <= said))}
    for name in ("firsts", "twice", "end"):
        found[name] = held(np.array([getattr(trace, name) for trace in traces]))
    return found


def ready(covered: Matrix) -> float:
    """Return the share of streams, shape (streams, d), that have an interval."""
    return float(np.mean(~np.isnan(covered).all(axis=1)))


def held(covered: Matrix) -> Found:
    """Return which intervals hold the target, in all and of each coefficient."""
    if np.isnan(covered).all():
        return {"coverage": None, "error": None, "each": []}
    coverage, error = share_of(covered, LEVEL)
    each = [float(np.nanmean(one)) if not np.isnan(one).all() else None for one in covered.T]
    # outside is what two errors do not explain
    inside = LEAST - 2 * error <= coverage <= MOST + 2 * error
    return {"coverage": coverage, "error": error, "each": each, "inside": inside}


HEADER = (
    "| | streams | n | latest | ready at 2 n | at the latest | first / n, middle (last) | given "
    "| covered first | at 2 n | at the latest | lowest | length / exact |\n" + "|---" * 13 + "|"
)
PLANNED = "| | n | by ranges | ready by then | by a sample | ready by then |\n" + "|---" * 6 + "|"


def line(found: Found) -> str:
    """Return a row of the table."""
    cells = [
        found["design"], found["streams"], f"{found['exact']:,}", f"{found['latest']:,}",
        f"{found['ready_twice']:.1%}", f"{found['ready_latest']:.1%}",
        f"{found['first_median']:.2f} ({found['first_last']:.2f})", f"{found['given']:.1%}",
    ]  # fmt: skip
    for name in ("firsts", "twice", "end"):
        rate = found[name]
        if rate["coverage"] is None:
            cells.append("")
            continue
        outside = "" if rate["inside"] else " OUTSIDE"
        cells.append(f"{100 * rate['coverage']:.1f} ({100 * rate['error']:.1f}){outside}")
    each = [one for one in found["end"]["each"] if one is not None]
    cells += [f"{100 * min(each, default=math.nan):.1f}", f"{found['length']:.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def planned(found: Found) -> str:
    """Return a row of the table of plans."""
    cells = [str(found["design"]), f"{found['exact']:,}"]
    for name in ("by_ranges", "by_sample"):
        plan = found[name]
        cells += [f"{plan['records']:,}", f"{plan['ready']:.1%}"]
    return "| " + " | ".join(cells) + " |"


def streamed(design: Design, batch: int) -> list[Trace]:
    """Return what the streams of the batch of this number show."""
    run = Streams(design, BATCH, np.random.default_rng([14, batch]))
    slots, size = design.task.slots, design.row.size
    end, twice = design.latest // slots, design.twice // slots
    every = max(twice // LOOKS, 1)
    first = np.full(BATCH, np.inf)
    firsts, at_twice, at_end = (np.full((BATCH, size), np.nan) for _ in range(3))
    lengths = np.full((BATCH, size), np.nan)
    for window in range(1, end + 1):
        run.fold()
        always = window in {twice, end}
        for i in range(BATCH) if always or window % every == 0 else ():
            if not always and not np.isnan(firsts[i]).any():
                continue
            covered, length = looked(run, i, design)
            firsts[i] = np.where(np.isnan(firsts[i]), covered, firsts[i])
            if not np.isnan(covered).all():
                first[i] = min(first[i], run.records)
            if window == twice:
                at_twice[i] = covered
            if window == end:
                at_end[i], lengths[i] = covered, length
    return [Trace(*found) for found in zip(first, firsts, at_twice, at_end, lengths, strict=True)]


def looked(run: Streams, number: int, design: Design) -> tuple[Vector, Vector]:
    """Return which intervals of a stream hold the target, and their lengths over the exact ones.

    NaN stands for a coefficient without an interval.
    """
    ends = run.estimate(number).intervals(LEVEL)
    if ends is None:
        nothing = np.full(design.row.size, np.nan)
        return nothing, nothing
    low, high = ends
    covered = np.where(np.isnan(low), np.nan, (low <= design.target) & (design.target <= high))
    return covered, (high - low) * math.sqrt(run.records) / (2 * NORMAL * design.deviations)


if __name__ == "__main__":
    main()
