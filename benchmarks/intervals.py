"""Who gets intervals, whether they cover, and how long they are: real streams and hard ones.

`python -m benchmarks.intervals [--data FOLDER] [--full] [--streams TEXT] [--draws N]`. Every study
says ranges, a norm bound and epsilon, and leaves ridge and width of the curvature to their
defaults. Columns: the share of coefficients that have an interval at the end; how many of those
hold the penalised fit, without noise, to the same released records, and of streams that draw new
records the fit to a million others, which stands for the population; their median standard error
over the floor, which the true curvature and the whole budget in the gradient would give, and over
what estimates deviate from that fit; and the area under the curve beside that of the fit. Behind a
coverage stands its Monte Carlo error, from the spread between draws. Intervals hold sampling error,
too: they hold the fit to the same records more often than 95 % where that is large, and nearly
always without noise. The last three streams are held out (`benchmarks/held_out.py`).
Writes `benchmarks/results/intervals.json`, with
--full of 200 draws of every loss and budget, else intervals_quick.json.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.held_out import HELD_OUT
from benchmarks.interval_records import STREAMS, Stream
from benchmarks.interval_runs import Setting, auc, floor_of, pooled, released, streamed, task_for
from pipeline.errors import DataError
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Vector

RESULTS = Path(__file__).parent / "results"
LOSSES = (("gdwd", 0.5), ("gdwd", 1.0), ("gdwd", 2.0), ("logistic", 1.0))
QUICK, FULL = 4, 200
#: Draws of 40,000 records that stand for a population.
POPULATION = 25


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of elec.csv.gz and of held-out data")
    parser.add_argument("--full", action="store_true", help="every loss and budget, 200 draws")
    parser.add_argument("--streams", default="", help="only streams with this text in their name")
    parser.add_argument("--draws", type=int, help="so many draws of each row instead")
    options = parser.parse_args()
    draws = options.draws or (FULL if options.full else QUICK)
    losses = LOSSES if options.full else (LOSSES[1], LOSSES[3])
    budgets = (1.0, 4.0, None) if options.full else (1.0,)
    path = RESULTS / ("intervals.json" if options.full else "intervals_quick.json")
    rows = []
    for name, make in {**STREAMS, **HELD_OUT}.items():
        if options.streams not in name:
            continue
        try:
            stream = make(options.data)
        except (DataError, FileNotFoundError) as error:
            print(f"{name}: left out, {error}")
            continue
        for (loss, q), epsilon in product(losses, budgets):
            rows.append(show(row_of(stream, Setting(loss, q, epsilon), draws)))
            path.write_text(json.dumps({"draws": draws, "rows": rows}, indent=1) + "\n")


def row_of(stream: Stream, setting: Setting, draws: int) -> dict[str, object]:
    """Run some draws of a stream and sum them up."""
    task = task_for(stream, setting)
    given, covered, held, errors, apart, fits, areas = [], [], [], [], [], [], []
    floor = np.full(task.size, np.nan)
    population = None if stream.fixed else population_fit(stream, task)
    for seed in range(draws):
        drawn = released(task, stream.draw(np.random.default_rng([5, seed]), task.loss))
        if seed == 0 or not stream.fixed:
            fit = pooled(task, drawn)
        if seed == 0:
            floor = floor_of(task, drawn, fit)
        found = streamed(task, drawn, seed)
        ends, known = found.intervals(0.95), found.standard_errors()
        nothing = np.full(task.size, np.nan)
        low, high = (nothing, nothing) if ends is None else ends
        has = ~np.isnan(low)
        given.append(has)
        covered.append(np.where(has, (low <= fit) & (fit <= high), np.nan))
        if population is not None:
            inside = (low <= population) & (population <= high)
            held.append(np.where(has, inside, np.nan))
        errors.append(nothing if known is None else known[0])
        apart.append(found.coefficients - fit)
        fits.append(fit)
        areas.append([auc(drawn[0], drawn[1], point) for point in (found.coefficients, fit)])
    some = np.any(given)
    median = np.nanmedian(np.array(errors)[:, np.any(given, axis=0)], axis=0) if some else None
    at = np.any(given, axis=0)
    spread = np.sqrt(np.mean(np.square(apart), axis=0))[at]
    return {
        "stream": stream.name, "setting": setting.label, "draws": draws,
        "ridge": task.study.estimator.ridge, "width": task.secant.width,
        "given": float(np.mean(given)),
        "covered": share_of(covered),
        "population": share_of(held),
        "over_floor": None if median is None else float(np.median(median / floor[at])),
        "over_spread": None if median is None else float(np.median(median / spread)),
        "beyond_zero": None if median is None else int(
            np.sum(np.abs(np.mean(fits, axis=0)[at]) > 1.96 * median)
        ),
        "coefficients": task.size,
        "auc": [float(area) for area in np.mean(areas, axis=0)],
    }  # fmt: skip


def population_fit(stream: Stream, task: RenewableTask) -> Vector:
    """Return the penalised fit to many draws of a stream."""
    draws = [stream.draw(np.random.default_rng([6, k]), task.loss) for k in range(POPULATION)]
    features, responses = (np.concatenate([draw[part] for draw in draws]) for part in (0, 1))
    return pooled(task, (features, responses, None))


def share_of(flags: list[Vector]) -> tuple[float, float] | None:
    """Return the mean of the flags of all draws, NaN left out, and its Monte Carlo error."""
    each = [float(np.nanmean(draw)) for draw in flags if not np.isnan(draw).all()]
    if not each:
        return None
    return float(np.nanmean(flags)), float(np.std(each) / np.sqrt(max(len(each) - 1, 1)))


def show(row: dict[str, object]) -> dict[str, object]:
    """Print a row."""
    private, fit = row["auc"]  # type: ignore[misc]
    told = "no interval"
    if row["covered"] is not None:
        shares = [share for share in (row["covered"], row["population"]) if share]
        held = [f"{100 * mean:.1f} ({100 * error:.1f})" for mean, error in shares]  # type: ignore[misc]
        told = (
            f"covered {', population '.join(held)}  over floor {row['over_floor']:.2f}  "
            f"over spread {row['over_spread']:.2f}  "
            f"beyond zero {row['beyond_zero']}/{row['coefficients']}"
        )
    print(
        f"{row['stream']:24} {row['setting']:20} ridge {row['ridge']:<6.2g} width "
        f"{row['width']:<3g} given {row['given']:4.0%}  {told}  AUC {private:.3f} / {fit:.3f}",
        flush=True,
    )
    return row


if __name__ == "__main__":
    main()
