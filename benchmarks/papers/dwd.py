"""Print the tables of paper dwd beside what this project computes for them.

`python -m benchmarks.papers.dwd [--full] [--jobs 2] [--data FOLDER] [--harth FOLDER]`

Tables 1 to 3: accuracy in percent, mean and (sd) over runs, then in brackets the paper's figure,
the tolerance and whether they agree. The mean is over exact accuracies; the sd is that of test sets
of 10,000 records, as in the paper. The tolerance is computed from the Monte Carlo error on both
sides, at 1 % for all gated cells together, and half a unit of the paper's last digit; `cells.py`
has the formula. It is never set by hand. In Table 3 the sites are drawn: OnWP is compared as one
draw of them, and the other methods with what they should be "given" the paper's OnWP, as all saw
the same sites. OffWP is not gated there: no reading of its design gives it. `dwd_rows.py` says
which settings the paper states and which were inferred from its figures.

Beside the paper's four methods: OffNP fitted until it converges, OnWP with the ridge as printed,
and what is ours: class weights from exact counts, from noised counts (half of epsilon 0.8, delta
1e-5 spent on them), and wholly private streams with noised counts at that budget, with the noise
shared by all clients (distributed) or added by each alone (local). "private" are our streams with
balanced classes at delta 1e-5. Table 4 is printed for HARTH where its folder is given, and for
elec.csv.gz where its folder is named by --data or PAPERS_DATA; for elec also in the order of time,
beside River's classifiers (`prequential.py`).

Quick: 6 to 16 runs of a row, under five minutes on two cores. Writes results/dwd.json. Ends with
exit code 1 where a gated cell lies outside its tolerance.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.papers import dwd_runs, prequential, six_figures
from benchmarks.papers.cells import (
    PAPER_RUNS,
    Cell,
    Runs,
    cell_of,
    conditional_cell,
    judged,
    show,
    write,
)
from benchmarks.papers.dwd_rows import METHODS, PRIVATE_ROWS, ROWS, PrivateRow, Row
from benchmarks.papers.harth import read_folder

HEADER = """\
Accuracy in percent on equally frequent classes: mean (sd) over runs [paper's figure +-tolerance].
Tolerance: quantile x Monte Carlo error of the difference (ours and the paper's, which is taken to
average ten runs with 10,000 test records each), at 1 % for all gated cells together, + half a unit
of the paper's last digit. "given": what the paper's OnWP predicts, on the same sites. Settings that
the paper does not state were inferred from its own figures."""
#: The method whose figures stand for the sites of a drawn row.
REFERENCE = "OnWP"
RESULTS = Path(__file__).parent.parent / "results" / "dwd.json"
TITLES = {
    "1": "Table 1: M = 10 sites, p = 50 features, b batches",
    "2": "Table 2: M = 50 sites, b = 100 batches, p features",
    "3": "Table 3: 50 sites with their own shift and spread, p = 20",
    "private": "Ours: noise in every message, M = 10, b = 20, delta = 1e-5",
}


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="many runs and all private rows")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one core each (2)")
    parser.add_argument("--data", type=Path, help="folder of elec.csv.gz (PAPERS_DATA)")
    parser.add_argument("--harth", type=Path, help="folder of the HARTH recordings")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    begun = time.monotonic()
    print(HEADER, "\n")
    # one core per process: the processes are started afresh and read this
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=options.jobs, mp_context=context) as pool:
        cells = judged([*_paper_cells(pool, options.full), *_private_cells(pool, options.full)])
        for table, title in TITLES.items():
            _print_table([cell for cell in cells if cell.table == table], title)
        for data in _datasets(options.data, options.harth):
            found = _table_4(pool, data, options.full)
            print(show(found, title=f"Table 4 on {data.name}: mean (sd) over splits"), "\n")
            cells += found
            if data.name == "elec":
                found = prequential.table(data)
                print(show(found, title="elec in the order of time, mean (sd) over seeds"), "\n")
                cells += found
    write(cells, options.out)
    wrong = [cell for cell in cells if cell.gated and not cell.within]
    gated = sum(cell.gated for cell in cells)
    print(f"{gated - len(wrong)} of {gated} gated cells agree; {time.monotonic() - begun:.0f} s")
    for cell in wrong:
        print(
            f"  Table {cell.table}, {cell.row}, {cell.column}: {cell.ours:.2f} against {cell.paper}"
        )
    sys.exit(1 if wrong else 0)


def runs_of(row: Row, *, full: bool) -> tuple[int, int]:
    """Return how many runs a row gets, and how many of them compute our own methods too.

    What varies more between runs gets more of them: drawn sites, and noise in short streams.
    """
    if full:
        return (60, 20) if row.table == "3" else (20, 20) if row.batches == 100 else (10, 10)
    if row.table == "3":
        return 16, 3
    return (6, 2) if row.batches > 100 or row.features == 100 else (12, 3)


def private_runs_of(row: PrivateRow, *, full: bool) -> int:
    """Return how many runs a private row gets; the longest windows wait for the full mode."""
    if full:
        return 20
    return 0 if row.records > 1000 else 3


def _paper_cells(pool: ProcessPoolExecutor, full: bool) -> Iterator[Cell]:
    tasks = {}
    # the longest rows first, so that no process waits for the other at the end
    for index, row in sorted(enumerate(ROWS), key=lambda pair: -pair[1].batches):
        number, ours = runs_of(row, full=full)
        tasks[index] = [
            pool.submit(dwd_runs.run_row, index, run, ours=run < ours) for run in range(number)
        ]
    for index, row in enumerate(ROWS):
        known = dict(zip(METHODS, row.paper, strict=True))
        found = _columns([task.result() for task in tasks[index]])
        for column, runs in found.items():
            place, gated = (row.table, row.label, column), column not in row.ungated
            paper = known.get(column)
            if row.shifts is None or column == REFERENCE or paper is None:
                draws = 1 if row.shifts is not None else PAPER_RUNS
                yield cell_of(place, runs, paper=paper, gated=gated, draws=draws)
            else:
                yield conditional_cell(
                    place,
                    runs,
                    found[REFERENCE],
                    paper=paper,
                    paper_reference=known[REFERENCE],
                    gated=gated,
                )


def _private_cells(pool: ProcessPoolExecutor, full: bool) -> Iterator[Cell]:
    tasks = {
        index: [
            pool.submit(dwd_runs.run_private_row, index, run)
            for run in range(private_runs_of(row, full=full))
        ]
        for index, row in enumerate(PRIVATE_ROWS)
    }
    for index, row in enumerate(PRIVATE_ROWS):
        for column, runs in _columns([task.result() for task in tasks[index]]).items():
            place = ("private", row.label, column)
            yield cell_of(place, runs, paper=None, gated=False, draws=1)


def _columns(outcomes: Sequence[dwd_runs.Outcome]) -> dict[str, Runs]:
    """Return the accuracies of each method over the runs that have it."""
    found = {}
    # the first run has every method
    for name in outcomes[0] if outcomes else ():
        pairs = [outcome[name] for outcome in outcomes if name in outcome]
        found[name] = Runs([exact for exact, _ in pairs], [tested for _, tested in pairs])
    return found


def _print_table(cells: list[Cell], title: str) -> None:
    """Print the paper's methods, then ours, so that lines stay readable."""
    compared = [cell for cell in cells if cell.paper is not None]
    ours = [cell for cell in cells if cell.paper is None]
    if compared:
        print(show(compared, title=f"{title}\nours (sd) [paper +-tolerance]"), "\n")
        print(
            show(ours, title="without a figure in the paper, from the first few runs"),
            "\n",
            flush=True,
        )
    else:
        print(show(ours, title=title), "\n", flush=True)


def _datasets(data: Path | None, harth: Path | None) -> Iterator[six_figures.Dataset]:
    if harth is not None:
        yield six_figures.pooled_people(read_folder(harth))
    folder = data or (Path(name) if (name := os.environ.get("PAPERS_DATA")) else None)
    if folder is not None:
        yield six_figures.electricity(folder)
    elif harth is None:
        print("Table 4 needs --harth FOLDER, or --data FOLDER (PAPERS_DATA) with elec.csv.gz\n")


def _table_4(pool: ProcessPoolExecutor, data: six_figures.Dataset, full: bool) -> list[Cell]:
    splits = 100 if full else 5
    runs = list(pool.map(six_figures.one_split, [data] * splits, range(splits)))
    cells = []
    for method, q in runs[0]:
        for place, column in enumerate(six_figures.FIGURES):
            values = [run[method, q][place] for run in runs]
            published = six_figures.PAPER.get((method, q)) if data.name == "HARTH" else None
            spread = float(np.std(values, ddof=1))
            cells.append(
                Cell(
                    table=f"4 {data.name}",
                    row=f"{method} q={q:g}",
                    column=column,
                    paper=None if published is None else published[place],
                    ours=float(np.mean(values)),
                    sd=spread,
                    mc_error=spread / splits**0.5,
                )
            )
    return cells


if __name__ == "__main__":
    main()
