"""What makes private intervals long: standard errors over the floor, one cause after another.

`python -m benchmarks.lengths [--data FOLDER] [--draws N] [--streams TEXT]`. Behind the floor, which
is what the true curvature and the whole budget in the gradient would give: the gradient has its own
share of the budget only; releases at far models do not count; the curvature that is released is
levelled; it carries noise; and the interval itself, whose spread is estimated and holds what the
noise of the curvature does to the step. Each column replaces one more thing that is true by what an
estimate has. Epsilon is 1.

`--best` asks which length is in reach at all: for each row of the table of intervals, the smallest
over splits of the budget and widths of the curvature at which 80 % of the coefficients or more have
an interval, if every release counted and the spread between them were known. "bound": no interval
that covers can be shorter, since the gradient's noise has its share of the budget only and the true
curvature stands for the released one. "reach": with the released curvature and its noise, where an
interval that comes out shorter than the bound counts as long as that. Behind them what intervals
have, from `benchmarks/results/intervals.json`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.held_out import chosen
from benchmarks.interval_records import Stream
from benchmarks.interval_runs import (
    Setting,
    floor_of,
    folded,
    pooled,
    released,
    task_for,
    true_weights,
)
from benchmarks.intervals import LOSSES, RESULTS
from pipeline.estimators.pooled import study_rows
from pipeline.linalg import sandwich
from pipeline.losses.secant import Secant
from pipeline.methods.renewable.bread import bread_of
from pipeline.methods.renewable.precision import Noise, noise_of
from pipeline.methods.renewable.private_estimate import estimate_private
from pipeline.methods.renewable.solution import solve
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Matrix, Vector

STEPS = ("own share", "releases", "levelled", "noise", "interval")
#: Shares of the curvature in the squared budget, and widths of it, that are tried; a length counts
#: where so many coefficients have one, over so many draws of the noise.
SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.285, 0.4, 0.55, 0.7)
WIDTHS = (0.0, 0.25, 0.5, 1.0, 2.0)
GIVEN, NOISES = 0.8, 20


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of elec.csv.gz and of held-out data")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--best", action="store_true", help="what any split allows, of all rows")
    parser.add_argument("--streams", default="", help="only streams with this text in their name")
    options = parser.parse_args()
    if options.best:
        show_best(options)
        return
    print(f"{'':36}" + "".join(f"{name:>12}" for name in STEPS))
    for stream in chosen(options.streams, options.data):
        for loss in ("gdwd", "logistic"):
            setting = Setting(loss)
            task = task_for(stream, setting)
            found = [ratios(stream, task, seed) for seed in range(options.draws)]
            # a draw without any interval counts in no column
            found = [one for one in found if not np.isnan(one["interval"])]
            if not found:
                print(f"{stream.name:24} {loss:11} no interval")
                continue
            means = {step: float(np.mean([one[step] for one in found])) for step in STEPS}
            told = "".join(f"{means[step]:12.2f}" for step in STEPS)
            print(f"{stream.name:24} {loss:11}{told}", flush=True)


def ratios(stream: Stream, task: RenewableTask, seed: int) -> Mapping[str, float]:
    """Return the median standard error over the floor after each step, for one draw."""
    drawn = released(task, stream.draw(np.random.default_rng([41, seed]), task.loss))
    point = pooled(task, drawn)
    _, partition = folded(task, drawn, seed)
    parts = [(1.0, state) for state in partition.sums.states.values()]
    solution, noise = solve(task, parts), noise_of(task)
    count = len(drawn[1])
    releases = count / task.slots
    scores, sharp, levelled = _moments(task, drawn[0], drawn[1], point, task.secant)
    meat = scores / count + noise.of_gradient(releases) ** 2 * np.eye(task.size)
    fewer = meat * releases / solution.moments.releases
    known = estimate_private(task, parts).standard_errors()
    errors = {
        "own share": _errors(sharp, meat),
        "releases": _errors(sharp, fewer),
        "levelled": _errors(levelled, fewer),
        "noise": _errors(solution.bread.matrix, fewer),
        "interval": np.full(task.size, np.nan) if known is None else known[0],
    }
    floor = floor_of(task, drawn, point)
    # only coefficients that have an interval
    has = ~np.isnan(errors["interval"])
    none = not has.any()
    return {
        name: np.nan if none else float(np.median((error / floor)[has]))
        for name, error in errors.items()
    }


def show_best(options: argparse.Namespace) -> None:
    """Print the shortest lengths that any split and width allow, beside those that there are."""
    stored = json.loads((RESULTS / "intervals.json").read_text())["rows"]
    have = {(row["stream"], row["setting"]): row["over_floor"] for row in stored}
    for stream in chosen(options.streams, options.data):
        for epsilon, (loss, q) in product((1.0, 4.0), LOSSES):
            setting = Setting(loss, q, epsilon)
            bound, reach, share, width = best(stream, setting)
            now = have.get((stream.name, setting.label)) or math.nan
            print(
                f"{stream.name:24} {setting.label:20} bound {bound:.2f}  reach {reach:.2f} (share "
                f"{share:g}, width {width:g})  now {now:.2f}, {now / reach:.2f} times",
                flush=True,
            )


def best(stream: Stream, setting: Setting) -> tuple[float, float, float, float]:
    """Return bound and reach over the floor, and the share and width of the latter; else NaN."""
    task = task_for(stream, setting)
    drawn = released(task, stream.draw(np.random.default_rng([43, 0]), task.loss))
    point, releases = pooled(task, drawn), len(drawn[1]) / task.slots
    floor, own, split = floor_of(task, drawn, point), noise_of(task), task.split
    bounds, reaches = [math.nan], [(math.nan, math.nan, math.nan)]
    for share, width in product(SHARES, WIDTHS if setting.loss == "gdwd" else WIDTHS[:1]):
        secant = Secant(task.loss, width)
        left = (split.gradient + split.curvature - share) / split.gradient
        bent = own.curvature * secant.bound / task.secant.bound * math.sqrt(split.curvature / share)
        noise = Noise(own.gradient / math.sqrt(left), bent, task.size, task.slots)
        scores, sharp, levelled = _moments(task, drawn[0], drawn[1], point, secant)
        meat = scores / len(drawn[1]) + noise.of_gradient(releases) ** 2 * np.eye(task.size)
        right, found = _errors(sharp, meat), []
        for number in range(NOISES):
            noised = (
                levelled
                - np.diag(task.penalty)
                + _noise(noise.of_curvature(releases), number, task.size)
            )
            bread = bread_of(noised, releases, task.penalty, noise)
            found.append(np.where(bread.unknown, np.nan, _errors(bread.matrix, meat)))
        has = ~np.isnan(found)
        if has.mean() < GIVEN:
            continue
        at = has.any(axis=0)
        middle = np.maximum(np.nanmedian(np.array(found)[:, at], axis=0), right[at])
        bounds.append(float(np.median(right[at] / floor[at])))
        reaches.append((float(np.median(middle / floor[at])), share, width))
    return float(np.nanmin(bounds)), *min(reaches[1:] or reaches)


def _noise(size: float, number: int, coefficients: int) -> Matrix:
    """Return noise of a mean curvature with the spectral size `size`."""
    drawn = np.random.default_rng([44, number]).normal(size=(coefficients, coefficients))
    whole: Matrix = (drawn + drawn.T) / 2 * size / math.sqrt(coefficients)
    return whole


def _errors(bread: Matrix, meat: Matrix) -> Vector:
    errors: Vector = np.sqrt(np.diag(sandwich(bread, meat)))
    return errors


def _moments(
    task: RenewableTask, features: Matrix, responses: Vector, point: Vector, secant: Secant
) -> tuple[Matrix, Matrix, Matrix]:
    """Return mean products of scores, and breads of the true and the levelled curvature."""
    rows = study_rows(task, features, responses, true_weights(task, responses))
    weight = np.ones(len(responses)) if rows.weights is None else rows.weights
    predictor, count = rows.design @ point, len(responses)

    def mean(curvature: Vector) -> Matrix:
        curved = rows.design * (weight * curvature)[:, None]
        bread: Matrix = curved.T @ rows.design / count + np.diag(task.penalty)
        return bread

    scores = rows.design * (weight * task.loss.slope(predictor, responses))[:, None]
    scores = scores + task.penalty * point
    return (
        scores.T @ scores / count,
        mean(task.loss.sharp_curvature(predictor, responses)),
        mean(secant.of(predictor, responses)),
    )


if __name__ == "__main__":
    main()
