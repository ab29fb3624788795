"""Who gets intervals, whether they cover, and how long they are: real streams and hard ones.

`python -m benchmarks.intervals [--data FOLDER] [--full] [--streams TEXT] [--epsilon E] [--draws N]
[--minutes M]`; `--show` prints the stored table and what all data sets say of a budget, with
`--table` as Markdown. Every study says ranges, a norm bound and epsilon, and leaves the ridge
to its default. Columns: the share of coefficients that have an interval at the
end; how many of those hold the penalised fit, without noise, to the same released records, and of
streams that draw new records the fit to a million others, which stands for the population; the same
for the estimate in the middle of the stream; the median standard error over the floor, which the
true curvature and the whole budget in the gradient would give, and over what estimates deviate from
that fit; and the area under the curve beside that of the fit. Behind a coverage stands its Monte
Carlo error, from the spread between draws. Intervals hold sampling error, too: they hold the fit to
the same records more often than 95 % where that is large, and nearly always without noise. The last
six streams are held out (`benchmarks/held_out.py`). Every row draws noise and records of its own,
in rounds over all rows, until there are N draws or M minutes of the processor are used up: no row
stops because of what it found. E is 1, 4 or "open". Writes
`benchmarks/results/intervals.json` with --full, of every loss and budget, else
intervals_quick.json, after each row; with --streams or --epsilon the other stored rows stay. A draw
depends on its row and its number alone: rows of two commands are those of one.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.held_out import chosen
from benchmarks.interval_records import Stream
from benchmarks.interval_runs import Setting, auc, floor_of, halfway, pooled, released, task_for
from pipeline.estimators.estimate import Estimate
from pipeline.methods.renewable.client import RenewableTask
from pipeline.types import Vector

RESULTS = Path(__file__).parent / "results"
LOSSES = (("gdwd", 0.5), ("gdwd", 1.0), ("gdwd", 2.0), ("logistic", 1.0))
QUICK, FULL, BLOCK = 4, 200, 40
#: Budgets by their names on the command line.
BUDGETS = {"1": 1.0, "4": 4.0, "open": None}
#: Draws of 40,000 records that stand for a population.
POPULATION = 25
#: Seeds that no rule was chosen on.
FRESH = 20261122
#: What rows are to be within: percent that hold the fit, length over the floor, share given.
LEAST, MOST, LONG, GIVEN = 92.5, 98.5, 1.5, 0.8
#: Of the table on the page of the method.
COLUMNS = """\
| stream | setting | draws | ridge | given | covered: fit | population | in mid-stream \
| over floor | over spread | AUC private / fit |
|---|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of elec.csv.gz and of held-out data")
    parser.add_argument("--full", action="store_true", help="every loss and budget, 200 draws")
    parser.add_argument("--streams", default="", help="only streams with this text in their name")
    parser.add_argument("--draws", type=int, help="so many draws of each row instead")
    parser.add_argument("--epsilon", choices=BUDGETS, help="rows of this budget alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of the processor, at most")
    parser.add_argument("--show", action="store_true", help="print the stored table")
    parser.add_argument("--table", action="store_true", help="with --show: as Markdown")
    options = parser.parse_args()
    path = RESULTS / ("intervals.json" if options.full else "intervals_quick.json")
    if options.show:
        if options.table:
            print(COLUMNS)
        shown = json.loads(path.read_text())["rows"]
        for row in shown:
            print(markdown(row)) if options.table else show(row)
        overall(shown)
        return
    kept = {}
    if (options.streams or options.epsilon) and path.exists():
        kept = {(r["stream"], r["setting"]): r for r in json.loads(path.read_text())["rows"]}
    rows, most = list(rows_of(options)), options.draws or (FULL if options.full else QUICK)
    for done in range(0, most, BLOCK):
        for row in rows:
            if time.process_time() > 60 * options.minutes:
                return
            row.draw(min(done + BLOCK, most))
            found = kept | {row.name: row.summary() for row in rows if row.seen}
            stored = {"seed": FRESH, "rows": list(found.values())}
            path.write_text(json.dumps(stored, indent=1) + "\n")
            show(row.summary())


def rows_of(options: argparse.Namespace) -> list[Row]:
    """Return the rows that are asked for, and say of which the data are not there."""
    losses = LOSSES if options.full else (LOSSES[1], LOSSES[3])
    budgets = list(BUDGETS.values()) if options.full else [1.0]
    if options.epsilon is not None:
        budgets = [BUDGETS[options.epsilon]]
    rows: list[Row] = []
    for stream in chosen(options.streams, options.data):
        rows += [Row(stream, Setting(*loss, e)) for loss, e in product(losses, budgets)]
    return sorted(rows, key=lambda row: (row.setting.q != 1, row.setting.epsilon or math.inf))


@dataclass
class Row:
    """The draws of one row so far.

    seen: What each draw had, by name of a column.
    """

    stream: Stream
    setting: Setting
    seen: dict[str, list[Vector]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    def __post_init__(self) -> None:
        self.task = task_for(self.stream, self.setting)
        self.population: Vector | None = None
        self.fit = self.floor = np.full(self.task.size, np.nan)

    @property
    def name(self) -> tuple[str, str]:
        """What tells it from other rows."""
        return self.stream.name, self.setting.label

    def draw(self, until: int) -> None:
        """Run draws until there are so many."""
        name = zlib.crc32(f"{self.stream.name}, {self.setting.label}".encode())
        if self.population is None and not self.stream.fixed:
            self.population = population_fit(self.stream, self.task)
        for number in range(self.count, until):
            rng = np.random.default_rng([FRESH, name, number])
            drawn = released(self.task, self.stream.draw(rng, self.task.loss))
            if number == 0 or not self.stream.fixed:
                self.fit = pooled(self.task, drawn)
            if number == 0:
                self.floor = floor_of(self.task, drawn, self.fit)
            middle, end = halfway(self.task, drawn, int(rng.integers(2**62)))
            self._note("", end)
            self._note("middle ", middle)
            known = end.standard_errors()
            nothing = np.full(self.task.size, np.nan)
            self.seen["errors"].append(nothing if known is None else known[0])
            self.seen["apart"].append(end.coefficients - self.fit)
            self.seen["fits"].append(self.fit)
            if number < BLOCK:
                points = (end.coefficients, self.fit)
                self.seen["auc"].append(np.array([auc(*drawn[:2], point) for point in points]))
        self.count = until

    def _note(self, when: str, found: Estimate) -> None:
        """Keep whether the intervals of an estimate hold the fit, and the population."""
        nothing = np.full(self.task.size, np.nan)
        low, high = found.intervals(0.95) or (nothing, nothing)
        for name, target in (("fit", self.fit), ("population", self.population)):
            if target is not None:
                inside = (low <= target) & (target <= high)
                self.seen[when + name].append(np.where(np.isnan(low), np.nan, inside))

    def summary(self) -> dict[str, object]:
        """Return the row."""
        given = ~np.isnan(self.seen["fit"])
        at = given.any(axis=0)
        some = at.any()
        median = np.nanmedian(np.array(self.seen["errors"])[:, at], axis=0) if some else None
        spread = np.sqrt(np.mean(np.square(self.seen["apart"]), axis=0))[at]
        size = np.abs(np.mean(self.seen["fits"], axis=0)[at])
        return {
            "stream": self.stream.name, "setting": self.setting.label, "draws": self.count,
            "ridge": self.task.study.estimator.ridge,
            "given": float(np.mean(given)),
            "covered": share_of(self.seen["fit"]),
            "population": share_of(self.seen["population"]),
            "middle_given": float(np.mean(~np.isnan(self.seen["middle fit"]))),
            "middle_covered": share_of(self.seen["middle fit"]),
            "middle_population": share_of(self.seen["middle population"]),
            "over_floor": None if median is None else float(np.median(median / self.floor[at])),
            "over_spread": None if median is None else float(np.median(median / spread)),
            "beyond_zero": None if median is None else int(np.sum(size > 1.96 * median)),
            "coefficients": self.task.size,
            "auc": [float(area) for area in np.mean(self.seen["auc"], axis=0)],
        }  # fmt: skip


def population_fit(stream: Stream, task: RenewableTask) -> Vector:
    """Return the penalised fit to many draws of a stream."""
    draws = [stream.draw(np.random.default_rng([6, k]), task.loss) for k in range(POPULATION)]
    features, responses = (np.concatenate([draw[part] for draw in draws]) for part in (0, 1))
    return pooled(task, (features, responses, None))


def share_of(flags: list[Vector]) -> tuple[float, float | None] | None:
    """Return the mean of the flags of all draws, NaN left out, and its Monte Carlo error.

    Where one draw alone has any flag, nobody knows the error: it is None.
    """
    each = [float(np.nanmean(draw)) for draw in flags if not np.isnan(draw).all()]
    if not each:
        return None
    error = float(np.std(each) / np.sqrt(len(each) - 1)) if len(each) > 1 else None
    return float(np.nanmean(flags)), error


def told(share: tuple[float, float | None]) -> str:
    """Return a share in percent, with its Monte Carlo error."""
    mean, error = share
    return f"{100 * mean:.1f} ({'one draw' if error is None else f'{100 * error:.1f}'})"


def show(row: Mapping[str, Any]) -> None:
    """Print a row."""
    private, fit = row["auc"]
    cover = "no interval"
    if row["covered"] is not None:
        shares = [share for share in (row["covered"], row["population"]) if share]
        cover = (
            f"covered {', population '.join(map(told, shares))}  "
            f"over floor {row['over_floor']:.2f}  "
            f"over spread {row['over_spread']:.2f}  "
            f"beyond zero {row['beyond_zero']}/{row['coefficients']}"
        )
    print(
        f"{row['stream']:24} {row['setting']:20} {row['draws']:3} draws  "
        f"ridge {row['ridge']:<6.2g} given {row['given']:4.0%}  {cover}  "
        f"AUC {private:.3f} / {fit:.3f}",
        flush=True,
    )


def overall(rows: list[dict[str, Any]]) -> None:
    """Print how often intervals of each budget cover, the mean over data sets, and which rows do.

    Rows of one data set share its records and what is hard about them, so that they say little more
    than one: all their intervals are one share, and the error is from the spread between data sets.
    Rows of which one draw alone has any interval are left out.
    """
    names = ("covered", "population", "middle_covered", "middle_population")
    for budget, name in product(("epsilon 1", "epsilon 4"), names):
        given = "middle_given" if "middle" in name else "given"
        sets: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for row in rows:
            if budget in row["setting"] and row[name] and row[name][1] is not None:
                count = row["draws"] * row["coefficients"] * row[given]
                # "insured, typical" has the records of "insured"
                sets[row["stream"].split(",")[0]].append((count * row[name][0], count))
        if not sets:
            continue
        held, counts = np.array([np.sum(of, axis=0) for of in sets.values()]).T
        error = float(np.std(held / counts) / np.sqrt(len(sets) - 1))
        share = told((float(np.mean(held / counts)), error))
        found = sum(len(of) for of in sets.values())
        print(f"{budget}, {name}: {share} of {len(sets)} data sets, {found} rows")
    for budget in ("epsilon 1", "epsilon 4"):
        known = [row for row in rows if budget in row["setting"] and row["covered"]]
        covered = np.array([100 * row["covered"][0] for row in known])
        print(
            f"{budget}: {len(known)} rows with intervals; {np.sum(covered < LEAST)} hold the fit "
            f"in less than {LEAST} %, {np.sum(covered > MOST)} in more than {MOST} %; "
            f"{sum(row['over_floor'] > LONG for row in known)} are longer than {LONG} floors, "
            f"{sum(row['given'] < GIVEN for row in known)} given to less than {GIVEN:.0%}"
        )


def markdown(row: Mapping[str, Any]) -> str:
    """Return a row of the table on the page of the method."""

    def share(name: str) -> str:
        return told(row[name]) if row[name] else ""

    def ratio(name: str) -> str:
        return "" if row[name] is None else f"{row[name]:.2f}"

    middle = share("middle_population") or share("middle_covered")
    cells = (
        row["stream"], row["setting"], row["draws"], f"{row['ridge']:.2g}",
        f"{row['given']:.0%}", share("covered"), share("population"), middle,
        ratio("over_floor"), ratio("over_spread"), " / ".join(f"{a:.3f}" for a in row["auc"]),
    )  # fmt: skip
    return f"| {' | '.join(str(cell) for cell in cells)} |"


if __name__ == "__main__":
    main()
