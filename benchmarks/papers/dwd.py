"""Print the tables of paper dwd beside what this project computes for them.

`python -m benchmarks.papers.dwd [--full] [--runs N] [--tables NAME ...]`

Tables 1 to 3: accuracy in percent on equally frequent classes, mean and (sd) over runs, then in
brackets the paper's figure, the tolerance and whether they agree. The mean is over exact
accuracies; the sd is that of test sets of 10,000 records, as in the paper. The tolerance is
computed from the Monte Carlo error on both sides, at 1 % for all gated cells together, and half a
unit of the paper's last digit; `cells` has the formula. It is never set by hand. In Table 3 the
sites are drawn: OnWP is compared as one draw of them, and the other methods with what they should
be "given" the paper's OnWP, as all saw the same sites. OffWP is not gated there: no reading of its
design gives it.

Records per client and batch, ridge, smoothing and noise are not stated in the paper. Those used
are the ones with which its figures come out: 100 records, ridge 0.1 with R = I, deviation 121 of
OnWDP's noise (2 C2 with C2 = 5, times 12.1 at epsilon 0.8 and delta 1e-5, and rho = 0), OffNP by
kerndwd's rule at its lambda 0.1, and OffWP after a single step from zero. Table 3 adds p = 20 and
sigma_m uniform on [0.1, 1]. So agreement shows that these settings give those tables, not that
they were the authors'.

Beside the paper's four methods: OffNP fitted until it converges, OnWP with the ridge as printed,
and what is ours: class weights from exact counts, from noised counts (half of epsilon 0.8, delta
1e-5 spent on them), and wholly private streams with noised counts at that budget, with the noise
shared by all clients (distributed) or added by each alone (local).

Table 4 is of records that are not at hand, by windows, scaling, ridge, bounds and noise that are
not stated: it is left out.

Quick: 6 to 16 runs of a row, under five minutes on two cores. Writes results/dwd.json.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from benchmarks.papers.cells import (
    PAPER_RUNS,
    PAPER_TEST,
    Cell,
    Runs,
    arguments,
    cell_of,
    conditional_cell,
    run,
)
from pipeline.methods.published.fits import (
    Records,
    Ridge,
    majorised_fit,
    pooled_fit,
    undamped_iterates,
)
from pipeline.methods.published.method import RampedDWD
from pipeline.methods.published.noise import MessageNoise
from pipeline.methods.published.online import (
    ClassBalance,
    OnlineFit,
    PrivateOnlineFit,
    TrustedOnlineFit,
)
from pipeline.types import Vector

TITLES = {
    "1": "Table 1: M = 10 sites, p = 50 features, b batches",
    "2": "Table 2: M = 50 sites, b = 100 batches, p features",
    "3": "Table 3: 50 sites with their own shift and spread, p = 20",
}
METHODS = ("OffNP", "OffWP", "OnWP", "OnWDP")
#: The method whose figures stand for the sites of a drawn row.
REFERENCE = "OnWP"
#: Share of positives in training.
RATIOS = {"1:1": 0.5, "4:1": 0.8}
RECORDS = 100
SEED = 20250
#: Offline fits see at most so many records: more change nothing that is printed.
OFFLINE_RECORDS = 100_000
EPSILON, DELTA = 0.8, 1e-5
#: Public maximum of a class weight in the private columns; four to one needs 2.5.
LARGEST_WEIGHT = 3.0
#: Exact and tested accuracy, in [0, 1].
Outcome = dict[str, tuple[float, float]]
Streams = dict[str, OnlineFit | PrivateOnlineFit]
Figures = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Sites:
    """Two Gaussian classes at sites (clients): features y mu_m + sigma_m noise, each (M,).

    The balanced accuracy of a linear rule is half the sum over the classes of
    Phi((+-b0 + slopes' mean) / sd of slopes' noise), averaged over sites.
    """

    shifts: Vector
    deviations: Vector
    features: int

    def batch(self, rng: np.random.Generator, records: int, positive: float) -> Records:
        """Draw the records of all clients: `records` each, an exact share of class +1."""
        sites = len(self.shifts)
        one = np.where(np.arange(records) < round(positive * records), 1.0, -1.0)
        responses = np.tile(one, sites)
        design = np.ones((sites * records, self.features + 1))
        noise = rng.standard_normal((sites * records, self.features))
        noise *= np.repeat(self.deviations, records)[:, None]
        noise += (np.repeat(self.shifts, records) * responses)[:, None]
        design[:, 1:] = noise
        return Records(design, responses)

    def accuracy(self, coefficients: Vector) -> float:
        """Return the exact accuracy of a rule where both classes are equally frequent."""
        towards = self.shifts * float(np.sum(coefficients[1:]))
        spread = self.deviations * float(np.linalg.norm(coefficients[1:]))
        sides = [ndtr((towards + side * coefficients[0]) / spread) for side in (1, -1)]
        return float(np.mean(sides))


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its table, setting, and the paper's figures (of `METHODS`)."""

    table: str
    clients: int
    batches: int
    features: int
    ratio: str
    paper: Figures
    shifts: tuple[float, float] | None = None

    @property
    def label(self) -> str:
        if self.shifts is not None:
            return f"mu in [{self.shifts[0]:g}, {self.shifts[1]:g}] {self.ratio}"
        return f"M={self.clients} b={self.batches} p={self.features} {self.ratio}"

    def sites(self, rng: np.random.Generator) -> Sites:
        """Return the sites of one run: alike, or with mu_m and sigma_m drawn for each (Table 3)."""
        count = self.clients
        if self.shifts is None:
            return Sites(np.full(count, 0.2), np.ones(count), self.features)
        shifts, deviations = rng.uniform(*self.shifts, count), rng.uniform(0.1, 1.0, count)
        return Sites(shifts, deviations, self.features)

    def runs(self, *, full: bool) -> tuple[int, int]:
        """Return how many runs the row gets, and how many of them compute our own methods too.

        What varies more between runs gets more of them: drawn sites, and noise in short streams.
        """
        drawn, long = self.table == "3", self.batches > 100
        if full:
            return (60, 20) if drawn else (10, 10) if long else (20, 20)
        return (16, 3) if drawn else (6, 2) if long or self.features == 100 else (12, 3)


#: By table, clients, batches, features and shifts of drawn sites: what the paper has for training
#: classes of 1:1 and of 4:1; test sets have equally frequent ones. Rows whose figures are not known
#: to this project are absent.
FIGURES: dict[tuple[Any, ...], tuple[Figures, Figures]] = {
    ("1", 10, 100, 50): ((92.1, 92.1, 92.1, 91.6), (85.7, 90.2, 89.6, 88.6)),
    ("1", 10, 1000, 50): ((92.1, 92.1, 92.1, 92.0), (85.9, 90.3, 89.7, 89.4)),
    ("1", 10, 2000, 50): ((92.1, 92.2, 92.2, 92.0), (85.8, 90.3, 89.7, 89.4)),
    ("2", 50, 100, 10): ((73.7, 73.7, 73.7, 73.6), (52.6, 66.0, 61.0, 60.9)),
    ("2", 50, 100, 20): ((81.5, 81.5, 81.5, 81.4), (66.2, 76.5, 74.2, 74.2)),
    ("2", 50, 100, 100): ((97.7, 97.7, 97.7, 97.7), (95.6, 97.2, 97.1, 97.0)),
    ("3", 50, 100, 20, (0.0, 0.3)): ((81.2, 81.3, 81.2, 81.1), (60.7, 78.4, 72.4, 72.2)),
    ("3", 50, 100, 20, (0.0, 0.4)): ((88.3, 88.5, 88.3, 88.2), (74.8, 85.8, 82.3, 82.0)),
    ("3", 50, 100, 20, (0.1, 0.4)): ((93.5, 93.6, 93.5, 93.4), (85.7, 92.7, 90.3, 90.2)),
}
ROWS = [
    Row(*setting[:4], ratio, paper, *setting[4:])
    for setting, both in FIGURES.items()
    for ratio, paper in zip(RATIOS, both, strict=True)
]


@dataclass(frozen=True, slots=True)
class GivenNoise:
    """Normal noise of a given deviation of each coordinate: a `TrustedNoise` without any claim."""

    deviation: float
    stabiliser: float = 0.0
    bounds: tuple[float, float] = (math.inf, math.inf)

    def draw(
        self, rng: np.random.Generator, size: int, curvature_bound: float, penalty: float
    ) -> Vector:
        return rng.normal(0.0, self.deviation, size)


def run_row(index: int, number: int, *, ours: bool) -> Outcome:
    """Return the accuracies in one run of row `index` of `ROWS`.

    The paper's methods come first in every run and share a generator apart from that of `ours`, so
    that their figures do not depend on whether ours are computed too.
    """
    row = ROWS[index]
    rng = np.random.default_rng([SEED, 1, index, number])
    sites = row.sites(rng)
    loss, size, identity = _loss(), row.features + 1, Ridge(0.1, "identity")
    streams: Streams = {
        "OnWP": OnlineFit(loss, identity, size, first="one-step"),
        "OnWDP": TrustedOnlineFit(loss, identity, size, GivenNoise(121.0), rng),
    }
    if ours:
        streams |= _ours(row, np.random.default_rng([SEED, 3, index, number]))
    kept: list[Records] = []
    for _ in range(row.batches):
        batch = sites.batch(rng, RECORDS, RATIOS[row.ratio])
        if sum(map(len, kept)) < OFFLINE_RECORDS:
            kept.append(batch)
        for stream in streams.values():
            stream.update([batch])
    fits = {name: stream.coefficients for name, stream in streams.items()}
    pooled = Records(
        np.concatenate([batch.design for batch in kept]),
        np.concatenate([batch.responses for batch in kept]),
    )
    fits["OffNP"] = majorised_fit(loss, pooled, 0.1).coefficients
    fits["OffWP"] = undamped_iterates(loss, [pooled], identity, rounds=1)[-1]
    if ours:
        fits["OffNP converged"] = pooled_fit(loss, pooled, Ridge(0.2)).coefficients
    found = {}
    for name in dict.fromkeys([*METHODS, *fits]):
        exact = sites.accuracy(fits[name])
        # a test set of 10,000 is a binomial draw
        found[name] = exact, float(rng.binomial(PAPER_TEST, exact)) / PAPER_TEST
    return found


def _ours(row: Row, rng: np.random.Generator) -> Streams:
    loss, size, identity = _loss(), row.features + 1, Ridge(0.1, "identity")
    wide, alone = RampedDWD(1.0), row.clients - 1
    counts = MessageNoise(EPSILON, DELTA, 2.0, row.clients, tolerated=alone, counts_share=0.5)
    noised = ClassBalance(
        LARGEST_WEIGHT, deviation=counts.counts_deviation() * counts.total_factor(), rng=rng
    )

    def private(tolerated: int) -> PrivateOnlineFit:
        # where all others may collude, each client adds the whole noise
        noise = MessageNoise(
            EPSILON, DELTA, math.sqrt(size), row.clients, tolerated=tolerated, counts_share=0.05,
            largest_weight=LARGEST_WEIGHT,
        )  # fmt: skip
        return PrivateOnlineFit(wide, identity, size, noise, rng, balanced=True)

    return {
        "OnWP as printed": OnlineFit(loss, Ridge.as_printed(0.1), size, first="one-step"),
        "weighted": OnlineFit(loss, identity, size, balance=ClassBalance()),
        "noised counts": OnlineFit(loss, identity, size, balance=noised),
        "distributed": private(0),
        "local": private(alone),
    }


def _loss() -> RampedDWD:
    """Return the loss with the paper's ramp; its width does not show in any figure."""
    return RampedDWD(1.0, 0.01, symmetric=True)


def tables(pool: Executor, options: argparse.Namespace) -> Iterator[Cell]:
    """Yield those of Tables 1 to 3 that are asked for."""
    tasks, chosen = {}, [row for row in enumerate(ROWS) if row[1].table in options.tables]
    # the longest rows first, so that no process waits for the other at the end
    for index, row in sorted(chosen, key=lambda pair: -pair[1].batches):
        number, ours = (options.runs, 2) if options.runs else row.runs(full=options.full)
        tasks[index] = [pool.submit(run_row, index, at, ours=at < ours) for at in range(number)]
    for index, row in chosen:
        known = dict(zip(METHODS, row.paper, strict=True))
        found = columns([task.result() for task in tasks[index]])
        for column, of in found.items():
            # one step from zero is where OffWP's other figures lie, and those of Table 3 do not
            gated = (row.table, column) != ("3", "OffWP")
            place = (row.table, row.label, column)
            paper = known.get(column)
            if row.shifts is None or column == REFERENCE or paper is None:
                draws = 1 if row.shifts is not None else PAPER_RUNS
                yield cell_of(place, of, paper=paper, gated=gated, draws=draws)
            else:
                yield conditional_cell(place, of, found[REFERENCE], paper=paper,
                                       paper_reference=known[REFERENCE], gated=gated)  # fmt: skip


def columns(outcomes: Sequence[Outcome]) -> dict[str, Runs]:
    """Return the accuracies of each method over the runs that have it; the first run has all."""
    found = {}
    for name in outcomes[0]:
        exact, tested = zip(*(one[name] for one in outcomes if name in one), strict=True)
        found[name] = Runs(exact, tested)
    return found


def main() -> None:
    options = arguments(__doc__, TITLES, "dwd.json")
    # one core per process: the processes are started afresh and read this
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=2, mp_context=context) as pool:
        parts = [({"1", "2", "3"}, lambda: [*tables(pool, options)])]
        code = run(parts, TITLES, options, errors=False)
    sys.exit(code)


if __name__ == "__main__":
    main()
