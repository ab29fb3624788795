"""One cell of a table: our figure, the paper's, and how far apart chance may put them.

Every paper has a module that makes its tables, prints them by `run` and ends with exit code 1 where
a gated cell lies outside its tolerance.

In the tables of paper dwd all figures are percentages. Ours is the mean over R runs of the *exact*
accuracy of the fitted coefficients in the population, so no test set adds error to it. The paper's
is a mean over runs that each had a test set of 10,000 records; how many runs is not known, and ten
are supposed.

**Fixed populations** (Tables 1 and 2). With v the variance of the exact accuracy between our runs
and a our mean, the variance of the difference is v / R + v / 10 + a (1 - a) / 10,000 / 10.

**Drawn populations** (Table 3). It is not stated that sites were drawn anew in every run, so the
paper's figure of OnWP counts as one draw of them: v / R + v + a (1 - a) / 100,000. That is wide.
But the methods of one row saw the same sites, so the others are compared with what they should be
*given* the paper's OnWP: the prediction of the regression of their accuracy on OnWP's over our
runs, with its variance s^2 (1 + 1 / R + (x0 - mean x)^2 / Sxx), and the error of both test sets.

`mc_error` is the root of that variance. The tolerance is half a unit of the last digit of every
paper's figure that enters, plus sqrt(t^2 estimated + z^2 known), where t is Student's quantile for
the variances estimated from our runs and z the normal one for those of test sets, both at 1 % for
all gated cells of one printing together (Bonferroni). No other allowance is made.

**Means over replications** (paper ldp-sgd). The other figure is taken to average a known number of
replications that vary as ours do: v / R + v / others, and nothing more. It is the paper's, or where
the paper has none a `reference`, which an independent implementation gave.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from scipy import stats

from pipeline.types import Vector

PAPER_RUNS = 10
PAPER_TEST = 10_000
ROUNDING = 0.05
FALSE_ALARM = 0.01
#: Columns that stand side by side, at most.
MANY = 8
RESULTS = Path(__file__).parents[1] / "results"
_INTERNAL = ("estimated", "known", "freedom", "rounding")


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure in percent.

    given: Where the paper's figure is compared with a prediction from another: that prediction.
    reference: What an independent implementation gave where the paper has no figure.
    tolerance, within: None where there is no other figure.
    estimated, known, freedom, rounding: What `judged` makes the tolerance from: both parts of the
        variance, the degrees of freedom of the first, and the rounding of the paper's figures.
    """

    table: str
    row: str
    column: str
    paper: float | None
    ours: float
    sd: float
    mc_error: float
    gated: bool = False
    given: float | None = None
    tolerance: float | None = None
    within: bool | None = None
    estimated: float = 0.0
    known: float = 0.0
    freedom: int = 1
    rounding: float = ROUNDING
    reference: float | None = None

    @property
    def other(self) -> float | None:
        """The figure that ours is compared with."""
        return self.reference if self.paper is None else self.paper


@dataclass(frozen=True, slots=True)
class Runs:
    """Exact and tested accuracies of one method over runs, in [0, 1]."""

    exact: Sequence[float]
    tested: Sequence[float]


def cell_of(
    place: tuple[str, str, str], runs: Runs, *, paper: float | None, gated: bool, draws: int
) -> Cell:
    """Compare the mean over our runs with the paper's figure.

    place: Table, row, column.
    draws: How many draws of what varies between our runs the paper's figure is taken to average.
    """
    number, between = len(runs.exact), float(np.var(runs.exact, ddof=1))
    estimated = between / number + (0.0 if paper is None else between / draws)
    known = 0.0 if paper is None else _test_error(float(np.mean(runs.exact)))
    cell = _plain(place, runs, paper, estimated=estimated, known=known)
    return replace(cell, gated=gated and paper is not None, freedom=number - 1)


def conditional_cell(
    place: tuple[str, str, str],
    runs: Runs,
    reference: Runs,
    *,
    paper: float,
    paper_reference: float,
    gated: bool,
) -> Cell:
    """Compare the paper's figure with its prediction from the paper's figure of another method."""
    x, y = np.asarray(reference.exact), np.asarray(runs.exact)
    number, centred, at = len(x), x - x.mean(), paper_reference / 100
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residual = y - y.mean() - slope * centred
    predicted = float(y.mean()) + slope * (at - float(x.mean()))
    factor = 1 + 1 / number + (at - float(x.mean())) ** 2 / spread
    estimated = float(residual @ residual) / (number - 2) * factor
    # both figures come from the same test sets; independence is the cautious supposition
    known = _test_error(predicted) + slope**2 * _test_error(at)
    cell = _plain(place, runs, paper, estimated=estimated, known=known)
    return replace(
        cell,
        given=100 * predicted,
        gated=gated,
        freedom=number - 2,
        rounding=ROUNDING * (1 + abs(slope)),
    )


def mean_cell(
    place: tuple[str, str, str],
    values: Sequence[float] | Vector,
    *,
    paper: float | None = None,
    reference: float | None = None,
    others: int = 200,
    rounding: float = ROUNDING,
    gated: bool = False,
) -> Cell:
    """Return a cell from one value of each replication, in the unit of the table.

    others: How many replications the other figure averages.
    rounding: Half a unit of its last digit.
    """
    number, between = len(values), float(np.var(values, ddof=1))
    known = not (paper is None and reference is None)
    estimated = between / number + (between / others if known else 0.0)
    return Cell(
        *place, paper=paper, ours=float(np.mean(values)), sd=math.sqrt(between),
        mc_error=math.sqrt(estimated), gated=gated and known, estimated=estimated,
        freedom=number - 1, rounding=rounding, reference=reference,
    )  # fmt: skip


def judged(cells: Sequence[Cell]) -> list[Cell]:
    """Fill in tolerances: the gated cells share one false alarm in a hundred printings."""
    level = FALSE_ALARM / max(1, sum(cell.gated for cell in cells)) / 2
    return [_judge(cell, level) for cell in cells]


def arguments(doc: str | None, titles: Mapping[str, str], results: str) -> argparse.Namespace:
    """Read what all papers' commands take.

    results: Name of the JSON file.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="many replications")
    parser.add_argument("--runs", type=int, help="replications of a row")
    parser.add_argument("--tables", nargs="+", choices=titles, default=list(titles))
    parser.add_argument("--out", type=Path, default=RESULTS / results, help="where the JSON goes")
    return parser.parse_args()


def run(
    parts: Sequence[tuple[set[str], Callable[[], Sequence[Cell]]]],
    titles: Mapping[str, str],
    options: argparse.Namespace,
    *,
    errors: bool = True,
) -> int:
    """Make tables, print them and put them into the result file; return the exit code.

    parts: Names of tables that are made together, and what makes them. Gated cells of one part
        share a false alarm. A part without any of the tables that are asked for is not run.
    errors: As `show`.
    """
    begun, gated, wrong = time.monotonic(), 0, list[Cell]()
    for tables, make in parts:
        if not tables & set(options.tables):
            continue
        cells = judged(make())
        for table, title in titles.items():
            own = [cell for cell in cells if cell.table == table]
            if not own or table not in options.tables:
                continue
            print(show(own, title=title, errors=errors), "\n", flush=True)
            replace_rows(own, table, options.out)
            gated += sum(cell.gated for cell in own)
            wrong += [cell for cell in own if cell.gated and not cell.within]
    took = time.monotonic() - begun
    print(f"{gated - len(wrong)} of {gated} gated cells agree; {took:.0f} s")
    for cell in wrong:
        print(f"  {cell.table}, {cell.row}, {cell.column}: {cell.ours:.4f} against {cell.other}")
    return int(bool(wrong))


def replace_rows(cells: Sequence[Cell], table: str, path: Path) -> None:
    """Put a table's rows in the place of those that the result file, a JSON list, has of it.

    Figures have four digits after the point.
    """
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    rows = [row for row in held if row["table"] != table] + [
        {
            key: round(value, 4) if isinstance(value, float) else value
            for key, value in asdict(cell).items()
            if key not in _INTERNAL
        }
        for cell in cells
    ]
    text = ",\n".join(f" {json.dumps(row)}" for row in rows)
    path.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def show(cells: Sequence[Cell], *, title: str, errors: bool = False) -> str:
    """Return a table as text: ours (sd), then the other figure and how they agree.

    With `errors` it is `mc_error` that stands in brackets, and a verdict for gated cells alone.
    Columns without any other figure follow as a table of their own where there are many.
    """
    columns = list(dict.fromkeys(cell.column for cell in cells))
    known = dict.fromkeys(cell.column for cell in cells if cell.other is not None)
    parts = [columns]
    if known and len(columns) > MANY:
        parts = [list(known), [column for column in columns if column not in known]]
    rows = list(dict.fromkeys(cell.row for cell in cells))
    found = {(cell.row, cell.column): _entry(cell, errors) for cell in cells}
    text = [title]
    for part in parts:
        lines = [["", *part], *([row, *(found.get((row, c), "") for c in part)] for row in rows)]
        widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
        text += ["".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(text)


def _plain(
    place: tuple[str, str, str], runs: Runs, paper: float | None, *, estimated: float, known: float
) -> Cell:
    """Return a cell with its variances, which are given in units of rates and not of percent."""
    return Cell(
        *place,
        paper=paper,
        ours=100 * float(np.mean(runs.exact)),
        sd=100 * float(np.std(runs.tested, ddof=1)),
        mc_error=100 * math.sqrt(estimated + known),
        estimated=1e4 * estimated,
        known=1e4 * known,
    )


def _test_error(accuracy: float) -> float:
    """Return the variance that test sets leave in a figure of the paper."""
    return accuracy * (1 - accuracy) / PAPER_TEST / PAPER_RUNS


def _judge(cell: Cell, level: float) -> Cell:
    if cell.other is None:
        return cell
    student, normal = float(stats.t.isf(level, cell.freedom)), float(stats.norm.isf(level))
    reach = cell.rounding + math.sqrt(student**2 * cell.estimated + normal**2 * cell.known)
    compared = cell.ours if cell.given is None else cell.given
    return replace(cell, tolerance=reach, within=abs(compared - cell.other) <= reach)


def _entry(cell: Cell, errors: bool) -> str:
    # as many digits as the other figure has
    digits = max(0, -math.floor(math.log10(2 * cell.rounding) + 1e-9))
    own = max(2, digits)
    text = f"{cell.ours:.{own}f} ({cell.mc_error if errors else cell.sd:.{own}f})"
    if cell.other is None or cell.tolerance is None:
        return text if cell.other is None else f"{text} [{cell.other:g}]"
    if cell.given is not None:
        text += f" given {cell.given:.2f}"
    if errors and not cell.gated:
        return f"{text} [{cell.other:g}]"
    verdict = "ok" if cell.within else "NO"
    note = "" if cell.gated else ", not gated"
    return f"{text} [{cell.other:.{digits}f} +-{cell.tolerance:.{own}f} {verdict}{note}]"
