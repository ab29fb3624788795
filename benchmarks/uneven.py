"""Do intervals of `gdwd` hold where one class is rare and not weighed, and did they before?

`python -m benchmarks.uneven [--draws N]`; `--show` prints the stored table. Streams of 40,000
records with 5, 10 and 20 % of positives, epsilon 1, default ridge. "former" is the rule without
what a step may miss and without a guard, at the default width; "now" is the present one at that
width, and "narrow" at a width of .5; "logistic" has no levelled curvature. Columns: the share of
coefficients that have an interval at the end; how many of those hold the fit to a million other
records, with the Monte Carlo error, and of the intercept alone; the same of each coefficient's
first interval, and of all estimates. Writes `benchmarks/results/uneven.json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.designed import generated, mixed
from benchmarks.first_intervals import first as first_of
from benchmarks.first_intervals import held as held_of
from benchmarks.interval_runs import Setting, folded, released, task_for
from benchmarks.intervals import population_fit, share_of
from benchmarks.intervals import told as percent
from pipeline.estimators.estimate import Estimate
from pipeline.methods.renewable import classes
from pipeline.reducer import estimate_of
from pipeline.types import Vector

RESULTS = Path(__file__).parent / "results" / "uneven.json"
SEED = 20261125
STARTS = {"5 %": -3.35, "10 %": -2.5, "20 %": -1.6}
#: The setting of each rule, and from which share of the rarer class on it holds.
RULES = {
    "former": (Setting("gdwd", 1.0, 1.0), 0.0),
    "now": (Setting("gdwd", 1.0, 1.0), classes.UNEVEN),
    "narrow": (Setting("gdwd", 1.0, 1.0, width=classes.NARROW), classes.UNEVEN),
    "logistic": (Setting("logistic", 1.0, 1.0), classes.UNEVEN),
}
COLUMNS = """\
| positives | rule | draws | width | given | held | intercept | first | intercept's first \
| all estimates |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Print a row for each share and rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--show", action="store_true", help="print the stored table")
    options = parser.parse_args()
    print(COLUMNS)
    if options.show:
        print("\n".join(json.loads(RESULTS.read_text())["rows"]))
        return
    rows = []
    for name in STARTS:
        for rule in RULES:
            rows.append(row_of(name, rule, options.draws))
            print(rows[-1], flush=True)
    RESULTS.write_text(json.dumps({"seed": SEED, "rows": rows}, indent=1) + "\n")


def row_of(name: str, rule: str, draws: int) -> str:
    """Return the row of a share of positives and a rule."""
    setting, uneven = RULES[rule]
    stream = generated(name, 4, mixed, 0.7, STARTS[name])(None)
    task = task_for(stream, setting)
    target = population_fit(stream, task)
    last, first, every = list[Vector](), list[Vector](), list[Vector]()
    with mock.patch.object(classes, "UNEVEN", uneven):
        for number in range(draws):
            rng = np.random.default_rng([SEED, int(-100 * STARTS[name]), number])
            drawn, estimates = released(task, stream.draw(rng, task.loss)), list[Estimate]()
            _, partition = folded(task, drawn, int(rng.integers(2**62)), estimates=estimates)
            held = np.array([held_of(one, target) for one in estimates])
            last.append(held_of(estimate_of(task, [partition]), target))
            shown = np.sum(~np.isnan(held), axis=0)
            every.append(np.where(shown, np.nansum(held, axis=0) / np.maximum(shown, 1), np.nan))
            first.append(first_of(held))
    cells = [name, rule, str(draws), f"{task.secant.width:g}", f"{np.mean(~np.isnan(last)):.0%}"]
    for found in (last, [one[:1] for one in last], first, [one[:1] for one in first], every):
        share = share_of(found)
        cells.append("" if share is None else percent(share))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
