"""Print the simulations of paper noisy-mle beside what this project computes for them.

`python -m benchmarks.papers.noisy_mle [--full] [--runs N] [--data FOLDER] [--tables NAME ...]`

| table | what |
|---|---|
| 2 | all methods, p = 8 to 64, 8 sites of 160 records, epsilon 4 |
| 1 | INFEMBLER by the number of copies |
| budgets | scores and copies by epsilon, beside an independent implementation |
| robustness | one site of seven shifted, or too precise |
| sweeps | Figure 1, which prints no numbers: by epsilon, records and sites |
| insurance | Figure 2, where `--data` has insurance.csv: the distance to all records' fit |

A cell is the mean natural logarithm of the distance to the truth and in round brackets its Monte
Carlo error. In square brackets stands the paper's figure, or where it has none that of an
independent implementation; tolerances are those of `cells`. Cells are gated where all settings are
known. **AVG and INFEM have the paper's noise, which fits the data at hand and protects nobody**;
SCORE keeps its epsilon and delta; DPSGD is tuned on the truth.

Quick: 100 replications. Full: 400. Writes results/noisy_mle.json and a picture beside the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.papers.cells import Cell, judged, show
from benchmarks.papers.ldp_sgd import replace_rows
from benchmarks.papers.noisy_drawing import draw_sweeps
from benchmarks.papers.noisy_insurance import insurance
from benchmarks.papers.noisy_tables import budgets, copies, methods, robustness, sweeps

RESULTS = Path(__file__).parent.parent / "results" / "noisy_mle.json"
QUICK_RUNS, FULL_RUNS = 100, 400
TITLES = {
    "2": "Table 2: mean log distance, 8 sites of 160 records, epsilon 4, delta 1/160, K = 40",
    "1": "Table 1: INFEMBLER by the number of copies K, p = 8",
    "budgets": "By epsilon, p = 8: beside an independent implementation",
    "robustness": "Linear, p = 8: one of seven remote sites shifted by t, or its scatter x 0.01",
    "sweeps": "Figure 1: by epsilon, records of a site, and sites; p = 8",
    "insurance": "Figure 2: insurance charges, distance to the fit of all records",
}


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="400 replications")
    parser.add_argument("--runs", type=int, help="replications of a row")
    parser.add_argument("--tables", nargs="+", choices=TITLES, help="these tables alone")
    parser.add_argument("--data", type=Path, help="folder with insurance.csv")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    begun, count = time.monotonic(), options.runs or (FULL_RUNS if options.full else QUICK_RUNS)
    makers: dict[str, Callable[[], list[Cell]]] = {
        "2": partial(methods, count),
        "1": partial(copies, count),
        "budgets": partial(budgets, count),
        "robustness": partial(robustness, count),
        "sweeps": partial(sweeps, max(2, count // 2)),
    }
    if options.data:
        makers["insurance"] = partial(insurance, options.data, max(2, count // 2))
    wrong, gated = [], 0
    for table, make in makers.items():
        if table not in (options.tables or TITLES):
            continue
        cells = judged(make())
        print(show(cells, title=TITLES[table], errors=True), "\n", flush=True)
        replace_rows(cells, table, options.out)
        if table == "sweeps":
            draw_sweeps(cells)
        gated += sum(cell.gated for cell in cells)
        wrong += [cell for cell in cells if cell.gated and not cell.within]
    print(f"{gated - len(wrong)} of {gated} gated cells agree; "
          f"{count} replications, {time.monotonic() - begun:.0f} s")  # fmt: skip
    for cell in wrong:
        print(f"  {cell.table}, {cell.row}, {cell.column}: {cell.ours:.4f} against {cell.other}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
