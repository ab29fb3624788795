"""Tables "servers" and "local" of paper ldp-sgd: N = 200,000 linear records on several servers.

mu = 1, eta0 = 1, alpha = 0.501, a burn-in of 5 % on each server.

"servers": every server walks a path of its own. The estimate is the mean of the averages; random
scaling pools the paths with the exact critical value for their number, and the t interval takes the
averages of the P servers as P draws (P - 1 degrees of freedom).

"local": P = 8 servers that go on from their mean iterate after every E records of each (local SGD).
The estimate is the average of the mean path; its random scaling needs the sums of the servers at
those times only, each with weight E. Averages begin with the first round after the burn-in.

"sd" is that of the estimate in the unit 0.01, over replications and coefficients.
Source: ldp-sgd, random scaling; several servers are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import stdtrit

from benchmarks.papers.cells import Cell, mean_cell
from benchmarks.papers.ldp_sgd_methods import LEVEL, mean_of
from benchmarks.papers.ldp_sgd_models import LINEAR, SIZE, Array
from benchmarks.papers.ldp_sgd_runs import replications
from benchmarks.papers.ldp_sgd_tables import ROUNDING, rooted
from benchmarks.papers.ldp_sgd_walk import CHUNK, Setting, Walk
from pipeline.methods.ldp_sgd.intervals import critical_value, random_scaling

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
COLUMNS = ("sd", "RS CP", "RS AL", "t CP", "t AL")


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
    means, truth = 100 * intervals[0][0], LINEAR.truth
    spread = ((means - means.mean(axis=0)) ** 2).mean(axis=1) * len(means) / (len(means) - 1)
    values = [rooted(spread)]
    for mean, half in intervals:
        values.append(100 * (np.abs(mean - truth) <= half).mean(axis=1))
        values.append(100 * (2 * half).mean(axis=1))
    for column, found, known in zip(COLUMNS, values, reference, strict=False):
        # a t interval's length is printed with three digits
        digit = 0.05 if column.endswith("CP") or known >= 10 else ROUNDING
        yield mean_cell((table, row, column), found, reference=known, rounding=digit, gated=True)
