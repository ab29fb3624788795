"""Do intervals hold when they are first shown, and at every moment of a stream that is watched?

`python -m benchmarks.first_intervals [--data FOLDER] [--streams TEXT] [--epsilon E] [--draws N]`;
`--show` prints the stored table. Streams and studies are those of `benchmarks.intervals`. Columns:
the share of coefficients that had an interval at any time; how many of the first ones hold the
target, with the Monte Carlo error, and of the coefficient whose first ones hold it least often, if
ten draws had one; the same of all that were shown in the course of a stream; how often an interval
that was there was gone in the next estimate; and after which share of the records the median first
one came. The target is the penalised fit to a million other records, and where every draw has the
same records the fit to them. Writes `benchmarks/results/first_intervals.json`; other rows stay.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from zlib import crc32

import numpy as np

from benchmarks.held_out import chosen
from benchmarks.interval_records import Stream
from benchmarks.interval_runs import Setting, folded, pooled, released, task_for
from benchmarks.intervals import population_fit, share_of
from benchmarks.intervals import told as percent
from pipeline.estimators.estimate import Estimate
from pipeline.types import Vector

RESULTS = Path(__file__).parent / "results" / "first_intervals.json"
#: No rule was chosen on its draws.
SEED = 20261127
#: A coefficient of which fewer draws had an interval is not compared with others.
FEW = 10
COLUMNS = """\
| stream | setting | draws | given | first ones hold | least | all hold | gone again \
| first after |
|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Print a row for each stream and loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of elec.csv.gz and of held-out data")
    parser.add_argument("--streams", default="", help="only streams with this text in their name")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--show", action="store_true", help="print the stored table")
    options = parser.parse_args()
    print(COLUMNS)
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else {}
    if options.show:
        print("\n".join(rows.values()))
        return
    for stream in chosen(options.streams, options.data):
        for loss in ("gdwd", "logistic"):
            setting = Setting(loss, 1.0, options.epsilon)
            name = f"{stream.name}, {setting.label}"
            rows[name] = row_of(stream, setting, options.draws)
            print(rows[name], flush=True)
            RESULTS.write_text(json.dumps({"seed": SEED, "rows": rows}, indent=1) + "\n")


def row_of(stream: Stream, setting: Setting, draws: int) -> str:
    """Return the row of a stream and a setting."""
    task = task_for(stream, setting)
    target = None if stream.fixed else population_fit(stream, task)
    firsts, every, came, gone, shown = list[Vector](), list[Vector](), list[float](), 0, 0
    for number in range(draws):
        name = crc32(f"{stream.name}, {setting.label}".encode())
        rng = np.random.default_rng([SEED, name, number])
        drawn, estimates = released(task, stream.draw(rng, task.loss)), list[Estimate]()
        if target is None:
            target = pooled(task, drawn)
        folded(task, drawn, int(rng.integers(2**62)), estimates=estimates)
        flags = np.array([held(one, target) for one in estimates])
        firsts.append(first(flags))
        every.append(flags.ravel())
        given = ~np.isnan(flags)
        came += list(given.argmax(axis=0)[given.any(axis=0)] / len(flags))
        gone += int(np.sum(given[:-1] & ~given[1:]))
        shown += int(np.sum(given[:-1]))
    # windows of clients fill at other times, so that draws may have more estimates or fewer
    longest = max(flags.size for flags in every)
    every = [np.append(flags, np.full(longest - flags.size, np.nan)) for flags in every]
    some = [column[~np.isnan(column)] for column in np.array(firsts).T]
    each = [share_of(list(flags[:, None])) for flags in some if len(flags) >= FEW]
    least = min((share for share in each if share), key=lambda share: share[0], default=None)
    cells = [stream.name, setting.label, str(draws), f"{np.mean(~np.isnan(firsts)):.0%}"]
    cells += ["" if s is None else percent(s) for s in (share_of(firsts), least, share_of(every))]
    cells += [f"{gone / max(shown, 1):.1%}", f"{np.median(came):.0%}" if came else ""]
    return f"| {' | '.join(cells)} |"


def held(found: Estimate, target: Vector) -> Vector:
    """Return whether each interval holds its target, NaN where there is none, shape (d,)."""
    nothing = np.full(len(target), np.nan)
    low, high = found.intervals(0.95) or (nothing, nothing)
    return np.where(np.isnan(low), np.nan, (low <= target) & (target <= high))


def first(flags: Vector) -> Vector:
    """Return whether the first interval of each coefficient held, NaN where there was none, (d,).

    flags: Of each estimate and coefficient, shape (estimates, d).
    """
    given = ~np.isnan(flags)
    at = given.argmax(axis=0)
    return np.where(given.any(axis=0), flags[at, np.arange(flags.shape[1])], np.nan)


if __name__ == "__main__":
    main()
