"""Draw Figures 3 to 9 of paper dwd with our numbers.

`python -m benchmarks.papers.dwd_figures [--full] [--jobs 2] [--draw]`. What is swept and how is in
`sweeps.py`. Points are means, bars the standard deviation over runs; times are processor seconds of
the whole fit, drawing the records left out. Quick mode has two runs and three points of a curve,
full mode ten runs and all points. Writes `docs/methods/figures/` and `results/figures.json`, with
--draw from the numbers that are there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.ticker import NullLocator

from benchmarks.papers.sweeps import SWEEPS, one_point

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "figures.json"
FOLDER = ROOT.parent / "docs" / "methods" / "figures"
QUICK_RUNS, FULL_RUNS = 2, 10
#: Colours of Okabe and Ito, which the colour-blind can tell apart; markers say the same.
STYLES = {
    "OffNP": ("#000000", "s", "-"),
    "OffWP": ("#E69F00", "^", "-"),
    "OnWP": ("#0072B2", "o", "-"),
    "OnWDP": ("#CC79A7", "v", "--"),
    "distributed": ("#009E73", "D", "--"),
    "local": ("#D55E00", "X", "--"),
}
NAMES = {"distributed": "ours, noise shared by all", "local": "ours, noise at each client"}
Numbers = dict[str, Any]


def main() -> None:
    """Compute and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="ten runs and more points")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one core each (2)")
    parser.add_argument("--draw", action="store_true", help="draw the numbers that are there")
    options = parser.parse_args()
    if not options.draw:
        begun = time.monotonic()
        numbers = computed(FULL_RUNS if options.full else QUICK_RUNS, options.full, options.jobs)
        RESULTS.write_text(json.dumps(numbers, indent=1) + "\n")
        print(f"{time.monotonic() - begun:.0f} s")
    draw(json.loads(RESULTS.read_text()))


def computed(runs: int, full: bool, jobs: int) -> Numbers:
    """Return accuracies and times of every sweep: mean and deviation by method and value."""
    # the processes are started afresh and read this
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=jobs, mp_context=context) as pool:
        tasks = {
            (number, value): [pool.submit(one_point, number, value, run) for run in range(runs)]
            for number, sweep in enumerate(SWEEPS)
            for value in sweep.points(full=full)
        }
        sweeps = []
        for number, sweep in enumerate(SWEEPS):
            values = sweep.points(full=full)
            found = [[task.result() for task in tasks[number, value]] for value in values]
            curves = {}
            for method in sweep.methods:
                pairs = np.array([[run[method] for run in point] for point in found])
                curves[method] = {
                    "accuracy": pairs[..., 0].mean(axis=1).tolist(),
                    "accuracy_sd": pairs[..., 0].std(axis=1, ddof=1).tolist(),
                    "seconds": pairs[..., 1].mean(axis=1).tolist(),
                    "seconds_sd": pairs[..., 1].std(axis=1, ddof=1).tolist(),
                }
                print(
                    f"figure {sweep.figure}, {sweep.label}: {method:12}",
                    *(f"{v:g}: {a:.1f} % {s:.2f} s" for v, a, s in zip(
                        values, curves[method]["accuracy"], curves[method]["seconds"], strict=True
                    )),
                    sep="  ", flush=True,
                )  # fmt: skip
            sweeps.append({"field": sweep.field, "values": values, "curves": curves})
    return {"runs": runs, "full": full, "sweeps": sweeps}


def draw(numbers: Numbers) -> None:
    """Draw each figure: a row of two panels for each of its sweeps."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"font.size": 9, "svg.hashsalt": "veilstream", "axes.grid": True,
                         "grid.color": "#e5e5e5", "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    for figure in sorted({sweep.figure for sweep in SWEEPS}):
        chosen = [
            (sweep, found)
            for sweep, found in zip(SWEEPS, numbers["sweeps"], strict=True)
            if sweep.figure == figure
        ]
        picture, axes = plt.subplots(
            len(chosen), 2, figsize=(7.2, 2.9 * len(chosen) + 0.75), squeeze=False
        )
        for row, (sweep, found) in zip(axes, chosen, strict=True):
            for axis, kind in zip(row, ("accuracy", "seconds"), strict=True):
                panel(axis, found, kind)
                axis.set_xlabel(sweep.label)
                if sweep.logarithmic:
                    axis.set_xscale("log")
                # only where points are, in plain numbers
                axis.set_xticks(found["values"], [f"{value:g}" for value in found["values"]])
                axis.xaxis.set_minor_locator(NullLocator())
        handles, labels = axes[0][0].get_legend_handles_labels()
        picture.legend(handles, labels, loc="upper center", ncols=3, frameon=False)
        picture.text(
            0.01, 0.005, f"mean of {numbers['runs']} runs, bars: standard deviation", fontsize=7
        )
        picture.tight_layout(rect=(0, 0.02, 1, 1 - 0.55 / picture.get_size_inches()[1]))
        picture.savefig(FOLDER / f"figure{figure}.png", dpi=130)
        plt.close(picture)


def panel(axis: Any, found: Numbers, kind: str) -> None:
    """Draw one kind of number of all methods."""
    values = found["values"]
    for method, curve in found["curves"].items():
        colour, marker, line = STYLES[method]
        axis.errorbar(
            values, curve[kind], curve[f"{kind}_sd"], label=NAMES.get(method, method), color=colour,
            marker=marker, linestyle=line, markersize=4, linewidth=1.2, capsize=2,
        )  # fmt: skip
    axis.set_ylabel("accuracy, %" if kind == "accuracy" else "processor time, s")
    if kind == "seconds":
        axis.set_yscale("log")
        times = [value for curve in found["curves"].values() for value in curve[kind]]
        # whole decades, so that each has its label
        axis.set_ylim(10 ** np.floor(np.log10(min(times))), 10 ** np.ceil(np.log10(max(times))))


if __name__ == "__main__":
    main()
