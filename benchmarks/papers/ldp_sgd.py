"""Print the simulations of paper ldp-sgd beside what this project computes for them.

`python -m benchmarks.papers.ldp_sgd [--full] [--runs N] [--tables NAME ...]`

| table | what | module |
|---|---|---|
| 1 | coverage and length of the paper's intervals | `ldp_sgd_tables` |
| budget | the same at an equal privacy of one record | `ldp_sgd_tables` |
| stale | points that are late | `ldp_sgd_tables` |
| early | coverage after few records | `ldp_sgd_tables` |
| servers, local | the records on several servers | `ldp_sgd_several` |
| curved | bias of logistic and asymmetric losses | `ldp_sgd_curved` |
| insurance | charges of generated people | `ldp_sgd_insurance` |

A cell holds our mean over replications and in round brackets its Monte Carlo error. In square
brackets stands another figure with the tolerance of the difference: the paper's in tables 1 and
insurance, and elsewhere that of an independent implementation, both taken to average 200
replications. The round brackets are then the error of the difference. The tolerance is computed,
never set: a quantile times that error, at 1 % for all gated cells of a table together, and half a
unit of the other figure's last digit (`cells.py`). Cells are gated where all settings are known.
Ends with exit code 1 where a gated cell lies outside.

Quick: 100 replications, and table 1 at 40,000 and 200,000 records; under ten minutes on one core.
Full: 200 at all five sizes. Writes results/ldp_sgd.json; rows of tables that were not run stay.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.papers.cells import Cell, judged, show, write
from benchmarks.papers.ldp_sgd_curved import curved
from benchmarks.papers.ldp_sgd_insurance import insurance
from benchmarks.papers.ldp_sgd_runs import check
from benchmarks.papers.ldp_sgd_several import local, servers
from benchmarks.papers.ldp_sgd_tables import SIZES, early, simulation, stale
from benchmarks.papers.ldp_sgd_walk import Setting

RESULTS = Path(__file__).parent.parent / "results" / "ldp_sgd.json"
QUICK_RUNS, FULL_RUNS = 100, 200
#: Insurance replications, as a share of all: one is a path of eight million records.
INSURANCE_SHARE = 25
TITLES = {
    "1": "Table 1: CP in percent, AL in 0.01",
    "budget": "Equal privacy of a record in total: CP in percent, AL in 0.01",
    "stale": "Late points, n = 100,000, mu = 1",
    "early": "Coverage after few records, mu = 1, burn-in 200",
    "servers": "N = 200,000 records on P servers, mu = 1: sd and AL in 0.01",
    "local": "Local SGD: iterates averaged every E records of each server",
    "curved": "Bias of curved losses, n = 200,000",
    "insurance": "Insurance: coefficients, test error, distance to least squares",
}


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="200 replications, all five sizes")
    parser.add_argument("--runs", type=int, help="replications of a row")
    parser.add_argument("--tables", nargs="+", choices=TITLES, help="these tables alone")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    begun, count = time.monotonic(), options.runs or (FULL_RUNS if options.full else QUICK_RUNS)
    apart = max(check(Setting(mu), 10_000, seed=1) for mu in (1.0, math.inf))
    print(f"sums of one replication and of SgdPath differ by {apart:.0e} of the largest\n")
    if apart > 1e-9:
        sys.exit("the simulation is not that of the package's path")
    chosen, wrong, gated = set(options.tables or TITLES), [], 0
    for run in parts(count, full=options.full, chosen=chosen):
        found = run()
        for table in dict.fromkeys(cell.table for cell in found):
            if table not in chosen:
                continue
            cells = judged([cell for cell in found if cell.table == table])
            print(show(cells, title=TITLES[table], errors=True), "\n", flush=True)
            replace_rows(cells, table, options.out)
            gated += sum(cell.gated for cell in cells)
            wrong += [cell for cell in cells if cell.gated and not cell.within]
    print(f"{gated - len(wrong)} of {gated} gated cells agree; "
          f"{count} replications, {time.monotonic() - begun:.0f} s")  # fmt: skip
    for cell in wrong:
        print(f"  {cell.table}, {cell.row}, {cell.column}: {cell.ours:.4f} against {cell.other}")
    sys.exit(1 if wrong else 0)


def parts(count: int, *, full: bool, chosen: set[str]) -> list[Callable[[], list[Cell]]]:
    """Return what computes the chosen tables; tables on the same paths are computed together."""
    ends = SIZES if full else (SIZES[0], SIZES[-1])
    makers: list[tuple[set[str], Callable[[], list[Cell]]]] = [
        ({"1", "budget"}, partial(simulation, ends, count=count)),
        ({"stale"}, partial(stale, count=count)),
        ({"early"}, partial(early, count=2 * count)),
        ({"servers"}, partial(servers, count=count)),
        ({"local"}, partial(local, count=count)),
        ({"curved"}, partial(curved, count=count)),
        ({"insurance"}, partial(insurance, count=max(2, count // INSURANCE_SHARE))),
    ]
    return [make for tables, make in makers if tables & chosen]


def replace_rows(cells: list[Cell], table: str, path: Path) -> None:
    """Put a table's rows in the place of those that the result file has of it."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    write(cells, path, kept=[row for row in held if row["table"] != table])


if __name__ == "__main__":
    main()
