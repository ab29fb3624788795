"""What makes private intervals long: standard errors over the floor, one cause after another.

`python -m benchmarks.lengths [--data FOLDER] [--draws N] [--streams TEXT]`. Behind the floor, which
is what the true curvature and the whole budget in the gradient would give: the gradient has its own
share of the budget only; releases at far models do not count; the curvature that is released is
levelled; it carries noise; and the interval itself, whose spread is estimated and holds what the
noise of the curvature does to the step. Each column replaces one more thing that is true by what an
estimate has. Epsilon is 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
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
from pipeline.estimators.pooled import study_rows
from pipeline.linalg import sandwich
from pipeline.methods.renewable.precision import noise_of
from pipeline.methods.renewable.private_estimate import estimate_private
from pipeline.methods.renewable.solution import solve
from pipeline.methods.renewable.task import RenewableTask
from pipeline.types import Matrix, Vector

STEPS = ("own share", "releases", "levelled", "noise", "interval")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of elec.csv.gz and of held-out data")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--streams", default="", help="only streams with this text in their name")
    options = parser.parse_args()
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
    scores, sharp, levelled = _moments(task, drawn[0], drawn[1], point)
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


def _errors(bread: Matrix, meat: Matrix) -> Vector:
    errors: Vector = np.sqrt(np.diag(sandwich(bread, meat)))
    return errors


def _moments(
    task: RenewableTask, features: Matrix, responses: Vector, point: Vector
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
        mean(task.secant.of(predictor, responses)),
    )


if __name__ == "__main__":
    main()
