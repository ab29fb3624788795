"""Tables "1", "budget", "stale" and "early" of paper ldp-sgd: one path, linear records.

"1": coverage (CP, percent) and mean length (AL, unit 0.01) of 95 % intervals, averaged over
coefficients and replications: plug-in (PI), batch means (BM) and random scaling (RS) without
privacy, and PPI, PBM, PRS on noised gradients at mu = 1 and 2. PI and PPI are the sandwich with the
curvature of the model; the paper's shorter ones fit one that is a multiple of the identity. It
gives no floors of eigenvalues and no number of batches either, so that only the lengths of random
scaling are gated. "online" are batch means that are valid at any time, which it does not have.

"budget": methods at an equal privacy of one record, *all* releases together. PPI-0 releases
nothing beside the gradient, PPI-1 spends a share of mu^2 on a curvature, noised for each record or
once for the sum of a window of 100, as studies do, and the paper's PPI takes three releases at
mu / sqrt 3.

"stale": n = 100,000, mu = 1. The iterate that a record uses is D records old, or the same for
blocks of k; the root mean square error over that of the limit law, the coverage of random scaling,
and how often the path has mixed (T; intervals need 50).

"early": coverage after few records, at mu = 1 with a burn-in of 200.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.papers.cells import Cell, mean_cell
from benchmarks.papers.ldp_sgd_methods import (
    Method,
    batches,
    exact,
    intervals,
    mean_of,
    online,
    published,
    released,
    scaling,
    without,
)  # fmt: skip
from benchmarks.papers.ldp_sgd_models import SIZE
from benchmarks.papers.ldp_sgd_runs import Replication, replications
from benchmarks.papers.ldp_sgd_walk import Setting
from pipeline.methods.ldp_sgd.step_rule import MIXED, staleness_cap
from pipeline.types import Vector

SIZES = (40_000, 80_000, 120_000, 160_000, 200_000)
#: Half a unit of the last digit of a length, in its unit of 0.01.
ROUNDING = 0.005
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
EARLY = (1000, 2000, 5000, 10_000, 20_000, 50_000)
#: Coverage of an independent implementation at these sizes.
EARLY_REFERENCE = {
    "random scaling": (81, 93, 95, 94, 96, 96),
    "batch means": (54, 73, 87, 90, 91, 93),
    "exact sandwich": (97, 85, 84, 85, 86, 90),
}
EARLY_METHODS: dict[str, Method] = {
    "random scaling": scaling, "PPI-0": without, "batch means": batches,
    "online batch means": online, "exact sandwich": exact,
}  # fmt: skip


def simulation(ends: tuple[int, ...], *, count: int) -> list[Cell]:
    """Return the paper's table at some of its sizes, and the comparison at an equal budget."""
    found = paths(Setting(math.inf), ends, count)
    cells = rows("1", {"PI": exact, "BM": batches, "online": online, "RS": scaling}, found)
    for mu in (1.0, 2.0):
        name = f"mu = {mu:g}"
        found = paths(Setting(mu), ends, count)
        cells += rows("1", {f"PPI, {name}": published(mu), f"PBM, {name}": batches,
                            f"online, {name}": online, f"PRS, {name}": scaling}, found)  # fmt: skip
        cells += rows("budget", {f"RS, {name}": scaling, f"BM, {name}": batches,
                                 f"online BM, {name}": online,
                                 f"PPI-0, {name}": without}, found)  # fmt: skip
        # one record's releases compose as the root of the sum of squares
        found = paths(Setting(mu * math.sqrt(1 - SHARE)), ends, count)
        part = mu * math.sqrt(SHARE)
        cells += rows("budget", {f"PPI-1, {name}": released(part),
                                 f"PPI-1 in windows, {name}": released(part, WINDOW)},
                      found)  # fmt: skip
        part = mu / math.sqrt(3)
        found = paths(Setting(part), ends, count)
        cells += rows("budget", {f"paper's PPI, {name}": published(part)}, found)
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
            gated = row.removeprefix("P").startswith("RS")
            cells += [
                mean_cell((table, row, f"CP n={end}"), cover),
                mean_cell(
                    (table, row, f"AL n={end}"), length, paper=al, gated=gated, rounding=ROUNDING
                ),
            ]
        # the paper's averages five sizes, ours those that were run
        cells.append(mean_cell((table, row, "CP mean"), np.mean(shares, axis=0), paper=mean))
    return cells


def stale(*, count: int) -> list[Cell]:
    """Return what late points do to the estimate and to random scaling."""
    cells = []
    for row, setting in STALE.items():
        runs = replications(setting, (STALE_RECORDS,), count, seed=7)[STALE_RECORDS]
        squares = np.array([np.mean((mean_of(run) - setting.model.truth) ** 2) for run in runs])
        theory = float(np.mean(setting.model.limit(setting.mu) ** 2)) / runs[0].sums.records
        mixed = [np.linalg.eigvalsh(run.curvature)[0] * run.sums.moved for run in runs]
        cells += [
            mean_cell(("stale", row, "RMSE / limit"), rooted(squares / theory)),
            mean_cell(("stale", row, "RS CP"), intervals(scaling, runs)[0]),
            mean_cell(("stale", row, f"T (>= {MIXED:g})"), mixed),
        ]
    return cells


def early(*, count: int) -> list[Cell]:
    """Return coverage after few records."""
    found = replications(Setting(1.0, burn_in=200), EARLY, count, seed=9)
    return [
        mean_cell(
            ("early", row, f"CP n={end}"), intervals(method, found[end])[0],
            reference=EARLY_REFERENCE[row][EARLY.index(end)] if row in EARLY_REFERENCE else None,
            rounding=0.5, gated=True,
        )
        for row, method in EARLY_METHODS.items()
        for end in EARLY
    ]  # fmt: skip


def rooted(squares: Vector) -> Vector:
    """Return values with the root of the mean square as their mean, and its error to first order.

    Parameters
    ----------
    squares
        Mean squares of each replication, shape (R,).
    """
    root = math.sqrt(float(squares.mean()))
    return root + (squares - squares.mean()) / (2 * root)
