"""Print the simulations of paper ldp-sgd beside what this project computes for them.

`python -m benchmarks.papers.ldp_sgd [--full] [--runs N] [--tables NAME ...]`

A cell holds our mean over replications and in round brackets its Monte Carlo error. In square
brackets stands another figure with the tolerance of the difference: the paper's in tables 1 and
insurance, and elsewhere that of an independent implementation, both taken to average 200
replications. The round brackets are then the error of the difference. The tolerance is computed,
never set: a quantile times that error, at 1 % for all gated cells of a table together, and half a
unit of the other figure's last digit (`cells`). Cells are gated where all settings are known.

"1": coverage (CP, percent) and mean length (AL, unit 0.01) of 95 % intervals, averaged over
coefficients and replications, of one path along linear records: random scaling without privacy (RS)
and on noised gradients at mu = 1 and 2 (PRS). Lengths are gated. The paper's other intervals hang
on a curvature, floors of eigenvalues and a number of batches that it does not give.

"budget": methods at an equal privacy of one record, *all* releases together. PPI-0 releases
nothing beside the gradient, PPI-1 spends a share of mu^2 on a curvature, noised for each record or
once for the sum of a window of 100, as studies do, and the paper's PPI takes three releases at
mu / sqrt 3.

"stale": n = 100,000, mu = 1. The iterate that a record uses is D records old, or the same for
blocks of k; the root mean square error over that of the limit law, the coverage of random scaling,
and how often the path has mixed (T; intervals need 50).

"early": coverage after few records, at mu = 1 with a burn-in of 200.

"servers": N = 200,000 records, mu = 1, a burn-in of 5 % on each of P servers, each with a path of
its own. The estimate is the mean of the averages; random scaling pools the paths with the exact
critical value for their number, and the t interval takes the averages as P draws. "local": P = 8
servers that go on from their mean iterate after every E records of each (local SGD); random scaling
of the mean path needs the sums of the servers at those times only. "sd" is that of the estimate in
the unit 0.01, over replications and coefficients.

Quick: 100 replications, and table 1 at 40,000 and 200,000 records; under ten minutes on one core.
Full: 200 at all five sizes. Writes results/ldp_sgd.json; rows of tables that were not run stay.
Source: ldp-sgd; several servers are this project's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy.special import stdtrit

from benchmarks.papers.cells import Cell, arguments, mean_cell, run
from benchmarks.papers.ldp_sgd_insurance import insurance
from benchmarks.papers.ldp_sgd_paths import (
    CHUNK,
    LEVEL,
    SIZE,
    TRUTH,
    Array,
    Method,
    Replication,
    Setting,
    Walk,
    batches,
    check,
    exact,
    intervals,
    limit,
    mean_of,
    published,
    released,
    replications,
    scaling,
    without,
)
from pipeline.methods.ldp_sgd.intervals import critical_value, random_scaling
from pipeline.methods.ldp_sgd.step_rule import MIXED, staleness_cap
from pipeline.types import Vector

TITLES = {
    "1": "Table 1: CP in percent, AL in 0.01",
    "budget": "Equal privacy of a record in total: CP in percent, AL in 0.01",
    "stale": "Late points, n = 100,000, mu = 1",
    "early": "Coverage after few records, mu = 1, burn-in 200",
    "servers": "N = 200,000 records on P servers, mu = 1: sd and AL in 0.01",
    "local": "Local SGD: iterates averaged every E records of each server",
    "insurance": "Insurance: coefficients, test error, distance to least squares",
}
SIZES = (40_000, 80_000, 120_000, 160_000, 200_000)
#: Half a unit of the last digit of a length, in its unit of 0.01.
ROUNDING = 0.005
#: The paper's AL at the five sizes, and its mean CP.
PAPER = {
    "RS": ((1.47, 1.03, 0.84, 0.73, 0.64), 95.1),
    "PRS, mu = 1": ((16.01, 10.96, 8.64, 7.21, 6.50), 95.2),
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
    "exact sandwich": exact,
}  # fmt: skip


def simulation(ends: tuple[int, ...], *, count: int) -> list[Cell]:
    """Return the paper's table at some of its sizes, and the comparison at an equal budget."""
    cells = rows("1", {"RS": scaling}, paths(Setting(math.inf), ends, count))
    for mu in (1.0, 2.0):
        name = f"mu = {mu:g}"
        found = paths(Setting(mu), ends, count)
        cells += rows("1", {f"PRS, {name}": scaling}, found)
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
        lengths, mean = PAPER.get(row, (None, None))
        shares = []
        for end, runs in found.items():
            cover, length = intervals(method, runs)
            shares.append(cover)
            al = lengths[SIZES.index(end)] if lengths else None
            cells += [
                mean_cell((table, row, f"CP n={end}"), cover),
                mean_cell(
                    (table, row, f"AL n={end}"), length, paper=al, gated=True, rounding=ROUNDING
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
        squares = np.array([np.mean((mean_of(run) - TRUTH) ** 2) for run in runs])
        theory = float(np.mean(limit(setting.mu) ** 2)) / runs[0].sums.records
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

    squares: Mean squares of each replication, shape (R,).
    """
    root = math.sqrt(float(squares.mean()))
    return root + (squares - squares.mean()) / (2 * root)


RECORDS, BURN_IN, MU = 200_000, 0.05, 1.0
#: By number of servers: sd, CP and AL of pooled random scaling, CP and AL of the t interval, as an
#: independent implementation gave them.
SERVERS: dict[int, tuple[float, ...]] = {
    1: (1.23, 93.6, 6.38),
    2: (1.34, 94.0, 5.84, 95.0, 27.3),
    4: (1.32, 94.9, 5.75, 95.9, 8.07),
    8: (1.48, 95.4, 6.05, 95.1, 6.79),
    16: (1.79, 95.6, 7.36, 95.4, 7.44),
}
#: By E: sd, CP and AL.
LOCAL = {10: (1.17, 95.0, 6.06), 100: (1.29, 93.8, 6.27), 1000: (1.34, 95.5, 7.08)}
LOCAL_SERVERS = 8
SERVED = ("sd", "RS CP", "RS AL", "t CP", "t AL")


def servers(*, count: int) -> list[Cell]:
    """Return what splitting the records costs."""
    cells = []
    for number, reference in SERVERS.items():
        each = RECORDS // number
        setting = Setting(MU, burn_in=round(BURN_IN * each))
        runs = replications(setting, (each,), number * count, seed=number)[each]
        groups = [runs[i : i + number] for i in range(0, len(runs), number)]
        pooled = [random_scaling([(run.sums, run.origin) for run in group]) for group in groups]
        means = np.array([found.mean for found in pooled])
        intervals = [(means, np.array([found.half_width(LEVEL) for found in pooled]))]
        if number > 1:
            averages = np.array([[mean_of(run) for run in group] for group in groups])
            quantile = float(stdtrit(number - 1, (1 + LEVEL) / 2))
            errors = averages.std(axis=1, ddof=1) / math.sqrt(number)
            intervals.append((means, quantile * errors))
        cells += _cells("servers", f"P = {number}", intervals, reference)
    return cells


def local(*, count: int) -> list[Cell]:
    """Return what averaging iterates every E records gives."""
    cells = []
    for every, reference in LOCAL.items():
        found = local_sgd(LOCAL_SERVERS, RECORDS // LOCAL_SERVERS, every, count, seed=every)
        cells += _cells("local", f"P = {LOCAL_SERVERS}, E = {every}", [found], reference)
    return cells


def local_sgd(
    number: int, each: int, every: int, count: int, seed: int, mu: float = MU
) -> tuple[Array, Array]:
    """Return estimates and half the lengths of their intervals, both (replications, d)."""
    walk = Walk(Setting(mu), number * count, seed, math.gcd(CHUNK, every))
    skipped = math.ceil(BURN_IN * each / every) * every
    origin, c, ends = np.zeros((count, SIZE)), np.zeros((count, SIZE)), []
    while walk.records < each:
        path = walk.advance().path
        mean = path.reshape(len(path), count, number, SIZE).mean(axis=2)
        if walk.records > skipped:
            c = c + (mean - origin).sum(axis=0)
        if walk.records % every == 0:
            walk.move_to(np.repeat(mean[-1], number, axis=0))
            if walk.records == skipped:
                origin = mean[-1]
            elif walk.records > skipped:
                ends.append(c)
    records = each - skipped
    s = np.arange(every, records + 1, every, dtype=np.float64)[:, None, None]
    off = np.array(ends) - s * c / records
    variance = every * (off * off).sum(axis=0) / records**2
    return origin + c / records, critical_value(LEVEL) * np.sqrt(variance / records)


def _cells(
    table: str, row: str, intervals: list[tuple[Array, Array]], reference: tuple[float, ...]
) -> Iterator[Cell]:
    """Return sd, and coverage and length of one or two intervals, beside their references."""
    means, truth = 100 * intervals[0][0], TRUTH
    spread = ((means - means.mean(axis=0)) ** 2).mean(axis=1) * len(means) / (len(means) - 1)
    values = [rooted(spread)]
    for mean, half in intervals:
        values.append(100 * (np.abs(mean - truth) <= half).mean(axis=1))
        values.append(100 * (2 * half).mean(axis=1))
    for column, found, known in zip(SERVED, values, reference, strict=False):
        # a t interval's length is printed with three digits
        digit = 0.05 if column.endswith("CP") or known >= 10 else ROUNDING
        yield mean_cell((table, row, column), found, reference=known, rounding=digit, gated=True)


def main() -> None:
    options = arguments(__doc__, TITLES, "ldp_sgd.json")
    count = options.runs or (200 if options.full else 100)
    apart = max(check(Setting(mu), 10_000, seed=1) for mu in (1.0, math.inf))
    print(f"sums of one replication and of SgdPath differ by {apart:.0e} of the largest\n")
    if apart > 1e-9:
        sys.exit("the simulation is not that of the package's path")
    ends = SIZES if options.full else (SIZES[0], SIZES[-1])
    parts = [
        ({"1", "budget"}, partial(simulation, ends, count=count)),
        ({"stale"}, partial(stale, count=count)),
        ({"early"}, partial(early, count=2 * count)),
        ({"servers"}, partial(servers, count=count)),
        ({"local"}, partial(local, count=count)),
        # one replication is a path of eight million records
        ({"insurance"}, partial(insurance, count=max(2, count // 25))),
    ]
    sys.exit(run(parts, TITLES, options))


if __name__ == "__main__":
    main()
