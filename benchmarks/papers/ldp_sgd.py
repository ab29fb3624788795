"""Print the simulation of paper ldp-sgd beside what this project computes for it.

`python -m benchmarks.papers.ldp_sgd [--full] [--runs N]`

Table "1": coverage (CP, percent) and mean length (AL, unit 0.01) of 95 % intervals, averaged over
coefficients and replications: plug-in (PI), batch means (BM) and random scaling (RS) without
privacy, and PPI, PBM, PRS on noised gradients at mu = 1 and 2. In brackets the paper's AL, and its
CP averaged over five sizes, where ours averages the sizes that were run. PI and PPI here are the
sandwich with the curvature of the model; the paper's shorter ones fit one that is a multiple of
the identity. It gives no floors of eigenvalues and no number of batches either, so that only the
lengths of random scaling are gated.

Table "budget": methods at an equal privacy of one record, *all* releases together. PPI-0 releases
nothing beside the gradient, PPI-1 spends a share of mu^2 on a curvature, noised for each record or
once for the sum of a window of 100, as studies do, and the paper's PPI takes three releases at
mu / sqrt 3.

Table "stale": n = 100,000, mu = 1. The iterate that a record uses is D records old, or the same for
blocks of k; the root mean square error over that of the limit law, the coverage of random scaling,
and how often the path has mixed (T; intervals need 50).

Quick: 100 replications at 40,000 and 200,000 records, some minutes on one core. Full: 200 at all
five sizes. Writes results/ldp_sgd.json. `mc_error` is the standard error over replications, of the
difference where the paper has a figure, which is taken to average 200. A gated cell is within
where it differs by less than half the paper's last digit and a normal quantile times `mc_error`,
at 1 % for all gated cells together; otherwise the exit code is 1. `ldp_sgd_runs.py` says which
settings were recovered.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from benchmarks.papers.ldp_sgd_methods import (
    Method,
    batches,
    exact,
    limit,
    mean_of,
    published,
    released,
    scaling,
    without,
)  # fmt: skip
from benchmarks.papers.ldp_sgd_runs import SIZE, TRUTH, Replication, Setting, check, replications
from pipeline.estimators.sgd.estimate import MIXED
from pipeline.estimators.sgd.steps import staleness_cap
from pipeline.types import Vector

RESULTS = Path(__file__).parent.parent / "results" / "ldp_sgd.json"
PAPER_RUNS, ROUNDING, FALSE_ALARM = 200, 0.005, 0.01
SIZES = (40_000, 80_000, 120_000, 160_000, 200_000)
#: The paper's AL at the five sizes, and its mean CP.
PAPER = {
    "PI": ((1.08, 0.76, 0.62, 0.54, 0.48), 93.3),
    "BM": ((1.01, 0.74, 0.62, 0.54, 0.48), 91.8),
    "RS": ((1.47, 1.03, 0.84, 0.73, 0.64), 95.1),
    "PPI, mu = 1": ((11.49, 7.68, 6.10, 5.19, 4.60), 92.8),
    "PBM, mu = 1": ((11.09, 7.83, 6.49, 5.49, 4.77), 91.0),
    "PRS, mu = 1": ((16.01, 10.96, 8.64, 7.21, 6.50), 95.2),
    "PPI, mu = 2": ((4.99, 3.45, 2.81, 2.42, 2.16), 91.5),
    "PBM, mu = 2": ((4.70, 3.42, 2.87, 2.47, 2.15), 88.7),
    "PRS, mu = 2": ((6.77, 4.82, 3.94, 3.30, 2.93), 93.5),
}
#: Share of mu^2 that PPI-1 spends on its curvature.
SHARE = 0.05
#: Records whose curvatures are summed before one noise is added, as releases of a study are.
WINDOW = 100
STALE_RECORDS = 100_000
STALE = {
    "D = 0, k = 1": Setting(1.0),
    "D = 100": Setting(1.0, behind=100),
    "k = 100": Setting(1.0, block=100),
    "D = 100, k = 100": Setting(1.0, behind=100, block=100),
    "D = 1000": Setting(1.0, behind=1000),
    "D = 1000, capped, burn-in 5 %": Setting(
        1.0, behind=1000, burn_in=5000, cap=staleness_cap(2 * 0.8 / SIZE, 1001)
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure, the paper's where there is one, and whether chance explains the difference."""

    table: str
    row: str
    column: str
    paper: float | None
    ours: float
    mc_error: float
    gated: bool = False
    within: bool | None = None


def main() -> None:
    """Run the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="200 replications, all five sizes")
    parser.add_argument("--runs", type=int, help="replications of a row")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    begun, count = time.monotonic(), options.runs or (200 if options.full else 100)
    apart = max(check(Setting(mu), 10_000, seed=1) for mu in (1.0, math.inf))
    print(f"sums of one replication and of SgdPath differ by {apart:.0e} of the largest\n")
    if apart > 1e-9:
        sys.exit("the simulation is not that of the package's path")
    cells = judged([
        *simulation(SIZES if options.full else (SIZES[0], SIZES[-1]), count),
        *stale(count),
    ])  # fmt: skip
    for table in dict.fromkeys(cell.table for cell in cells):
        print(show([cell for cell in cells if cell.table == table], f"Table {table}"), "\n")
    rows = (json.dumps({**asdict(c), "ours": round(c.ours, 4), "mc_error": round(c.mc_error, 4)})
            for c in cells)  # fmt: skip
    options.out.write_text("[\n " + ",\n ".join(rows) + "\n]\n", encoding="utf-8")
    gated = [cell for cell in cells if cell.gated]
    wrong = [cell for cell in gated if not cell.within]
    print(f"{len(gated) - len(wrong)} of {len(gated)} gated cells agree; "
          f"{count} replications, {time.monotonic() - begun:.0f} s")  # fmt: skip
    sys.exit(1 if wrong else 0)


def simulation(ends: tuple[int, ...], count: int) -> list[Cell]:
    """Return the paper's table, and the comparison at an equal budget."""
    found = paths(Setting(math.inf), ends, count)
    cells = rows("1", {"PI": exact, "BM": batches, "RS": scaling}, found)
    for mu in (1.0, 2.0):
        name = f"mu = {mu:g}"
        found = paths(Setting(mu), ends, count)
        paper = published(mu, mu)
        cells += rows("1", {f"PPI, {name}": paper, f"PBM, {name}": batches,
                            f"PRS, {name}": scaling}, found)  # fmt: skip
        cells += rows("budget", {f"RS, {name}": scaling, f"BM, {name}": batches,
                                 f"PPI-0, {name}": without}, found)  # fmt: skip
        # one record's releases compose as the root of the sum of squares
        found = paths(Setting(mu * math.sqrt(1 - SHARE)), ends, count)
        part = mu * math.sqrt(SHARE)
        cells += rows("budget", {f"PPI-1, {name}": released(part),
                                 f"PPI-1 in windows, {name}": released(part, WINDOW)},
                      found)  # fmt: skip
        part = mu / math.sqrt(3)
        found = paths(Setting(part), ends, count)
        cells += rows("budget", {f"paper's PPI, {name}": published(part, part)}, found)
    return cells


def paths(setting: Setting, ends: tuple[int, ...], count: int) -> dict[int, list[Replication]]:
    """Run a setting's replications, from seeds of its own."""
    seed = 1 if math.isinf(setting.mu) else round(1e6 * setting.mu)
    return replications(setting, ends, count, seed)


def rows(table: str, methods: dict[str, Method], found: dict[int, list[Replication]]) -> list[Cell]:
    """Return coverage and length of some methods on the same paths."""
    cells = []
    for row, method in methods.items():
        lengths, mean = PAPER.get(row, (None, None)) if table == "1" else (None, None)
        shares = []
        for end, runs in found.items():
            cover, length = intervals(method, runs)
            shares.append(cover)
            al = lengths[SIZES.index(end)] if lengths else None
            gated = row.removeprefix("P").startswith("RS") and al is not None
            cells += [
                cell_of((table, row, f"CP n={end}"), cover),
                cell_of((table, row, f"AL n={end}"), length, paper=al, gated=gated),
            ]
        cells.append(cell_of((table, row, "CP mean"), np.mean(shares, axis=0), paper=mean))
    return cells


def intervals(method: Method, runs: Sequence[Replication]) -> tuple[Vector, Vector]:
    """Return for each replication the covered share in percent, and the mean length in 0.01."""
    rng = np.random.default_rng(5)
    found = [method(run, rng) for run in runs]
    cover = [100 * float(np.mean(np.abs(mean - TRUTH) <= half)) for mean, half in found]
    length = [100 * float(np.mean(2 * half)) for _, half in found]
    return np.array(cover), np.array(length)


def stale(count: int) -> list[Cell]:
    """Return what late points do to the estimate and to random scaling."""
    cells = []
    for row, setting in STALE.items():
        runs = replications(setting, (STALE_RECORDS,), count, seed=7)[STALE_RECORDS]
        squares = np.array([np.mean((mean_of(run) - TRUTH) ** 2) for run in runs])
        theory = limit(setting.mu, STALE_RECORDS - setting.burn_in)
        ratio = math.sqrt(squares.mean()) / theory
        spread = squares.std(ddof=1) / math.sqrt(count) / (2 * ratio * theory**2)
        mixed = [np.linalg.eigvalsh(run.curvature)[0] * run.sums.moved for run in runs]
        cells += [
            Cell("stale", row, "RMSE / limit", None, ratio, float(spread)),
            cell_of(("stale", row, "RS CP"), intervals(scaling, runs)[0]),
            cell_of(("stale", row, f"T (>= {MIXED:g})"), np.array(mixed)),
        ]
    return cells


def cell_of(
    place: tuple[str, str, str], values: Vector, *, paper: float | None = None, gated: bool = False
) -> Cell:
    """Return a cell from one value for each replication."""
    runs = 1 / len(values) + (0 if paper is None else 1 / PAPER_RUNS)
    error = float(values.std(ddof=1)) * math.sqrt(runs)
    return Cell(*place, paper, float(values.mean()), error, gated)


def judged(cells: Sequence[Cell]) -> list[Cell]:
    """Say which cells agree with the paper's; the gated ones share one false alarm in a hundred."""
    reach = -float(ndtri(FALSE_ALARM / max(1, sum(cell.gated for cell in cells)) / 2))
    return [
        cell if cell.paper is None
        else replace(cell, within=abs(cell.ours - cell.paper) <= ROUNDING + reach * cell.mc_error)
        for cell in cells
    ]  # fmt: skip


def show(cells: Sequence[Cell], title: str) -> str:
    """Return a table as text: ours (Monte Carlo error) [paper's figure]."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    found = {(cell.row, cell.column): cell for cell in cells}
    lines = [["", *columns]]
    for row in dict.fromkeys(cell.row for cell in cells):
        line = [row]
        for column in columns:
            cell = found.get((row, column))
            text = "" if cell is None else f"{cell.ours:.2f} ({cell.mc_error:.2f})"
            if cell is not None and cell.paper is not None:
                text += f" [{cell.paper:g}{' NO' if cell.gated and not cell.within else ''}]"
            line.append(text)
        lines.append(line)
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    body = ("".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join([title, *body])


if __name__ == "__main__":
    main()
