"""How often 95 % intervals of many sites hold the truth, and when they come.

`python -m benchmarks.sites_coverage [--full] [--cells TEXT] [--seed N] [--record] [--table]`. Three
uniform features (or one of a rare level, or two that nearly move together), sites whose records
have one law, no ridge, noise simulated with the deviations of a real study. In each round a site
sends a window, or three where sites are uneven and it is every third; windows are of one size, or
as large as they may be. A model is made after each `every` releases. One line says how many of the
first intervals of all streams hold the truth. Then after each round, of many every fourth, one row:
the share of streams that are ready, and, among them, the share of intervals that hold the truth
with its Monte Carlo error (standard deviation over streams, over the root of their number), the
share that hold the fit of the same records without noise, the mean error in standard errors of the
coefficient that is worst, and how many standard errors long the errors' deviation is. A row is
OUTSIDE where its coverage is more than two of its own errors beyond 93 to 97.5 %.

Quick: 30 streams of a cell; full: 200; `--streams 100`, as recorded: 20 minutes of one core.
`--record` puts the rows of each cell that ran into results/sites_coverage.json, of which `--table`
makes the table of docs/methods/noisy-mle.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.estimators.estimate import Estimate
from pipeline.methods import task_of
from pipeline.records.encoder import Arrays
from pipeline.release.task import Task
from pipeline.stream.in_process import OfflineRun
from pipeline.study_file.load import parse_study
from pipeline.types import Matrix, Vector
from tests.sites import study_text

RESULTS = Path(__file__).parent / "results" / "sites_coverage.json"
LEAST, MOST = 0.93, 0.975
SPREAD = 0.15


@dataclass(frozen=True)
class Cell:
    """A design of streams.

    records: Of a window. every: Releases from one model to the next; 0: those of a round.
    rare: Share of records whose last feature is 1 and not -1; 0: it is uniform.
    stopping: So many of the sites send two windows and no more.
    together: Correlation of the last two features, whose coefficients are opposite; 0: none.
    wide: So many of the sites have residuals three times as wide as the others', a third of usual.
    grows: Whether windows grow.
    """

    loss: str
    records: int
    sites: int
    epsilon: float
    intercept: float = -1.0
    uneven: bool = False
    every: int = 0
    release: str = "auto"
    rounds: int = 6
    rare: float = 0.0
    stopping: int = 0
    together: float = 0.0
    wide: int = 0
    grows: bool = False

    @property
    def label(self) -> str:
        more = f"{' uneven' * self.uneven}{f' every {self.every}' * bool(self.every)}"
        more += f" rare={self.rare:g}" * bool(self.rare)
        more += f" {self.stopping} stop" * bool(self.stopping)
        more += f" together={self.together:g}" * bool(self.together)
        more += f" wide={self.wide}" * bool(self.wide)
        more += " grows" * self.grows
        return (
            f"{self.loss} {self.release} n={self.records} sites={self.sites} "
            f"epsilon={self.epsilon:g} intercept={self.intercept:g}{more}"
        )

    @property
    def truth(self) -> Vector:
        """Coefficients of its records, the intercept first."""
        if self.rare:
            return np.array([self.intercept, 0.3, 0.3, 1.5])
        if self.together:
            return np.array([self.intercept, 0.3, 0.35, -0.35])
        # no response of a linear model leaves its range
        scale = 1.0 if self.loss == "logistic" else 0.18
        return scale * np.array([self.intercept, 0.5, 0.99, 0.88])

    @property
    def shown(self) -> Sequence[int]:
        """Rounds of which there is a row."""
        return range(self.rounds) if self.rounds < 10 else range(3, self.rounds, 4)

    def windows_of(self, site: int) -> int:
        """Return how many windows a site sends in a round."""
        return 3 if self.uneven and site % 3 == 0 else 1

    def task(self, seed: int) -> Task:
        return task_of(parse_study(self.text(seed)))

    def text(self, seed: int) -> str:
        copies, score = self.release == "copies", self.release == "score"
        return study_text(
            "" if copies else f'release = "{self.release}"',
            kind="noisy-copies" if copies else "noisy-mle",
            declared=[f"{name} = {{ min = -1, max = 1 }}" for name in "abc"],
            loss=self.loss, ridge=0.0, norm_bound="typical", mechanism="insecure-simulation",
            epsilon=self.epsilon, seed=seed, records=self.records,
            residual_bound=0.5 if score and self.loss == "linear" else None,
            growth=0.1 if self.grows else 0.0,
            releases=self.every or sum(map(self.windows_of, range(self.sites))),
        )  # fmt: skip

    def window(self, rng: np.random.Generator, site: int = 0, records: int = 0) -> Arrays:
        """Draw a window of a site, of so many records; 0: of those of the first."""
        records = records or self.records
        features = rng.uniform(-1, 1, (records, 3))
        if self.rare:
            features[:, 2] = np.where(rng.random(records) < self.rare, 1.0, -1.0)
        if self.together:
            own = math.sqrt(self.together**-2 - 1)
            features[:, 2] = (features[:, 1] + own * features[:, 2]) / (1 + own)
        predictor = self.truth[0] + features @ self.truth[1:]
        if self.loss == "linear":
            # no response is cut: that would bend the line
            noise = SPREAD * np.clip(rng.standard_normal(records), -2.5, 2.5)
            noise /= 3 if self.wide and site >= self.wide else 1
            return Arrays(features, predictor + noise)
        chance = 1 / (1 + np.exp(-predictor))
        return Arrays(features, np.where(rng.random(records) < chance, 1.0, -1.0))


CELLS = (
    *(
        Cell("logistic", records, sites, epsilon, intercept)
        for records in (1500, 6000)
        for sites in (5, 15)
        for epsilon in (2.0, 8.0)
        for intercept in (-1.0, 0.0)
    ),
    Cell("logistic", 400, 8, 8.0),
    Cell("logistic", 3000, 8, 8.0),
    Cell("logistic", 3000, 8, 2.0),
    Cell("logistic", 3000, 9, 8.0, uneven=True),
    Cell("logistic", 3000, 9, 2.0, uneven=True),
    Cell("logistic", 1500, 8, 8.0, every=3),
    Cell("logistic", 3000, 4, 8.0, rounds=24),
    Cell("logistic", 6000, 10, 8.0, every=10, stopping=3),
    Cell("logistic", 2000, 10, 1.0, intercept=0.0, every=8),
    Cell("logistic", 20000, 8, 8.0, intercept=1.0, rare=0.01),
    *(
        Cell("linear", records, 8, epsilon, intercept, release=release)
        for release in ("score", "sufficient")
        for records, epsilon, intercept in ((1500, 2.0, -1.0), (3000, 8.0, 0.0), (6000, 8.0, -1.0))
    ),
    Cell("linear", 1000, 20, 8.0, release="sufficient", rounds=4, wide=6),
    Cell("linear", 1000, 8, 8.0, release="sufficient", rounds=4, wide=3),
    Cell("linear", 4000, 8, 4.0, 0.1, release="sufficient", rounds=5, together=0.995),
    Cell("linear", 3000, 8, 4.0, 0.1, release="sufficient", rounds=3, together=0.989),
    Cell("logistic", 3000, 8, 4.0, 0.1, release="copies", together=0.93),
    Cell("logistic", 250, 4, 4.0, rounds=40, grows=True),
    Cell("logistic", 250, 8, 2.0, 0.0, uneven=True, rounds=20, grows=True),
    Cell("linear", 250, 4, 4.0, release="score", rounds=40, grows=True),
    Cell("linear", 250, 4, 4.0, release="sufficient", rounds=40, grows=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="200 streams of a cell")
    parser.add_argument("--cells", default="", help="only cells whose label holds this text")
    parser.add_argument("--streams", type=int, help="so many streams of a cell instead")
    parser.add_argument("--seed", type=int, default=0, help="of the first stream (0)")
    parser.add_argument("--record", action="store_true", help="keep the rows of each cell")
    parser.add_argument("--table", action="store_true", help="the table of what is recorded")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(RESULTS.read_text(encoding="utf-8")))))
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    streams = options.streams or (200 if options.full else 30)
    found = []
    for cell in CELLS:
        if options.cells in cell.label:
            rows = rows_of(cell, range(options.seed, options.seed + streams))
            found += rows
            if options.record:
                record(rows)
    outside = [f"{row['cell']}, round {row['round']}" for row in found if row["outside"]]
    print(f"outside {LEAST:.1%} to {MOST:.1%}: {'; '.join(outside) or 'none'}")


def record(rows: Sequence[dict[str, Any]]) -> None:
    """Put the rows of a cell in the place of those recorded of it; cells that are none leave."""
    kept: dict[str, list[dict[str, Any]]] = {cell.label: [] for cell in CELLS}
    for row in json.loads(RESULTS.read_text(encoding="utf-8")):
        kept.get(row["cell"], []).append(row)
    kept[rows[0]["cell"]] = list(rows)
    lines = [row for each in kept.values() for row in each]
    RESULTS.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def rows_of(cell: Cell, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Run the streams of a cell; print and return its rows."""
    print(cell.label, flush=True)
    streams = [stream(cell, seed) for seed in seeds]
    first = row_of(cell, 0, [first_of(told) for told in streams])
    if first["coverage"] is not None:
        print(f"  first intervals hold {first['coverage']:6.1%} +-{first['error']:.1%}")
    shown = cell.shown
    rows = [row_of(cell, number, [told[number] for told in streams]) for number in shown]
    for row in rows:
        if row["coverage"] is None:
            print(f"  round {row['round']:2}: ready {row['ready']:4.0%}")
            continue
        print(
            f"  round {row['round']:2}: ready {row['ready']:4.0%}  holds {row['coverage']:6.1%} "
            f"+-{row['error']:.1%}  of all records {row['pooled']:6.1%}  worst mean "
            f"{row['bias']:5.2f}  deviation {row['deviation']:.2f}  half length {row['half']:.4f}"
            f"{'  OUTSIDE' * row['outside']}",
            flush=True,
        )
    return rows


def stream(cell: Cell, seed: int) -> list[tuple[Estimate, Vector]]:
    """Run a stream; return the estimate after each round, and the fit of all records so far."""
    # no two cells have the same records
    rng = np.random.default_rng([zlib.crc32(cell.label.encode()), seed])
    task, every = cell.task(seed), cell.every
    run, held, told, windows = OfflineRun(task), Counter[int](), [], list[Arrays]()
    pooled = np.zeros(4)
    for number in range(cell.rounds):
        for site in range(cell.sites - cell.stopping * (number > 1)):
            for _ in range(cell.windows_of(site)):
                slots = task.growth.next_window(held[site])
                # those at the start do not count
                held[site] += slots * (run.model.version > 0)
                windows.append(cell.window(rng, site, slots))
                # a model is made at once where it is time, and that of a round below
                run.fold(f"site-{site}", run.release(f"site-{site}", windows[-1], run.model))
                if every and run.waiting >= every:
                    run.move()
        estimate, _ = run.estimate(0.0)
        if not every:
            run.move()
        if number in cell.shown:
            pooled = pooled_fit(cell.loss, windows, pooled)
        told.append((estimate, pooled))
    return told


def first_of(told: Sequence[tuple[Estimate, Vector]]) -> tuple[Estimate, Vector]:
    """Return what was told after the first round with intervals; without one, after the last."""
    return next((one for one in told if one[0].status == "ready"), told[-1])


def pooled_fit(loss: str, windows: Sequence[Arrays], near: Vector) -> Vector:
    """Return the fit of all records without noise, shape (4,), from the one of those before."""
    features = np.concatenate([window.features for window in windows])
    responses = np.concatenate([window.responses for window in windows])
    design: Matrix = np.column_stack([np.ones(len(features)), features])
    if loss == "linear":
        found: Vector = np.linalg.lstsq(design, responses, rcond=None)[0]
        return found
    found = near
    for _ in range(3 if near.any() else 6):
        chance = 1 / (1 + np.exp(-design @ found))
        bread = (design * (chance * (1 - chance))[:, None]).T @ design
        found = found + np.linalg.solve(bread, design.T @ ((responses + 1) / 2 - chance))
    return found


def row_of(cell: Cell, number: int, told: Sequence[tuple[Estimate, Vector]]) -> dict[str, Any]:
    ready = [(one, pooled) for one, pooled in told if one.status == "ready"]
    row = {"cell": cell.label, "round": number + 1, "streams": len(told),
           "ready": len(ready) / len(told), "coverage": None, "outside": False}  # fmt: skip
    if len(ready) < 10:
        return row
    ends = [one.intervals(0.95) for one, _ in ready]
    low, high = (np.array([end[k] for end in ends if end]) for k in range(2))
    centre, half = (low + high) / 2, (high - low) / 2
    errors = (centre - cell.truth) / (half / 1.96)
    held = np.mean(np.abs(errors) <= 1.96, axis=1)
    pooled = np.abs(centre - np.array([fit for _, fit in ready])) <= half
    coverage, error = float(held.mean()), float(held.std(ddof=1) / np.sqrt(len(held)))
    return row | {
        "coverage": coverage, "error": error, "pooled": float(pooled.mean()),
        "bias": float(np.abs(errors.mean(axis=0)).max()),
        "deviation": float(errors.std(axis=0, ddof=1).mean()), "half": float(half.mean()),
        "outside": not LEAST - 2 * error <= coverage <= MOST + 2 * error,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of recorded rows: one of each cell."""
    lines = [
        "| design | streams | ready after round 2, 3, 4 (%) | intervals that hold it (%) |",
        "|---|---|---|---|",
    ]
    for cell in dict.fromkeys(row["cell"] for row in rows):
        own = [row for row in rows if row["cell"] == cell]
        ready = ", ".join(f"{100 * row['ready']:.0f}" for row in own if row["round"] in (2, 3, 4))
        held = ", ".join(
            "-" if row["coverage"] is None
            else f"{'**' * row['outside']}{100 * row['coverage']:.1f}{'**' * row['outside']}"
            for row in own
        )  # fmt: skip
        lines.append(f"| {cell} | {own[0]['streams']} | {ready} | {held} |")
    return lines


if __name__ == "__main__":
    main()
