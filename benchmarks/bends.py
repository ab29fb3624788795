"""What bends private estimates: scores of the true records at the models that clients met.

`python -m benchmarks.bends [--data FOLDER] [--stream TEXT] [--loss L] [--q Q] [--epsilon E]
[--share S] [--draws N]`: of the first share S of each stream, how far the fit to the records that
count is from that to all of them (mix); what linearised scores leave out since windows' curvatures
and the models that they met deviate together (unlike), and since curvature changes on the way
(second order), before anything is taken off; what C / 2 takes off; and how far estimates are off,
all as means over draws, in standard errors, intercept first. With --exact: how often the sandwich
of the fit to all records, without noise, holds the population.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.held_out import chosen
from benchmarks.interval_records import Stream
from benchmarks.interval_runs import (
    RHYTHM,
    Setting,
    floor_of,
    folded,
    pooled,
    released,
    task_for,
    true_weights,
    windows,
)
from benchmarks.intervals import population_fit
from pipeline.estimators.pooled import study_rows
from pipeline.methods.renewable.private_state import PrivateState
from pipeline.methods.renewable.solution import solve
from pipeline.types import Vector

#: Seeds of streams that only causes are looked for in.
SEED = 20261123


def main() -> None:
    """Print the parts of the mean error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of held-out data")
    parser.add_argument("--stream", default="unequal", help="the first with this text in its name")
    parser.add_argument("--loss", default="logistic")
    parser.add_argument("--q", type=float, default=1.0)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--exact", action="store_true", help="cover by the exact fit instead")
    parser.add_argument("--draws", type=int, default=30)
    options = parser.parse_args()
    stream, setting = (
        next(chosen(options.stream, options.data)),
        Setting(options.loss, options.q, options.epsilon),
    )
    if options.exact:
        exact(stream, Setting(options.loss, options.q, None), options.draws)
        return
    found = [parts_of(stream, setting, options.share, k) for k in range(options.draws)]
    print(f"{stream.name}, {setting.label}, the first {options.share:.0%} of {len(found)} streams")
    for name in found[0]:
        each = np.array([one[name] for one in found])
        print(f"{name:14}", " ".join(f"{mean:6.2f}" for mean in each.mean(axis=0)))


def exact(stream: Stream, setting: Setting, draws: int) -> None:
    """Print how often intervals of exact fits hold the population."""
    task = task_for(stream, setting)
    wanted, inside = population_fit(stream, task), []
    for number in range(draws):
        drawn = stream.draw(np.random.default_rng([SEED, number]), task.loss)
        fit = pooled(task, drawn)
        inside.append(np.abs(fit - wanted) < 1.96 * floor_of(task, drawn, fit))
    each = np.mean(inside, axis=1)
    error = np.std(each) / np.sqrt(draws - 1)
    print(f"{stream.name}, {setting.label}: {np.mean(each):.1%} ({error:.1%}) of {draws} streams")


def parts_of(stream: Stream, setting: Setting, share: float, number: int) -> dict[str, Vector]:
    """Return the parts of one draw's error, in its standard errors."""
    task, rng = task_for(stream, setting), np.random.default_rng([SEED, number])
    x, y, clients = stream.draw(rng, task.loss)
    some = slice(0, int(share * len(y)))
    drawn = released(task, (x[some], y[some], None if clients is None else clients[some]))
    models: list[Vector] = []
    _, partition = folded(task, drawn, int(rng.integers(2**62)), models)
    [state] = partition.sums.states.values()
    assert isinstance(state, PrivateState)
    solution = solve(task, [(1.0, state)])
    cut = [rows for _, rows in windows(drawn[1], drawn[2], task.slots)]
    used = range(len(cut) - round(solution.moments.releases), len(cut))
    counted = np.concatenate([cut[place] for place in used])
    own = pooled(task, (drawn[0][counted], drawn[1][counted], None))
    curvatures, apart, second = [], [], []
    for place in used:
        rows = study_rows(
            task, drawn[0][cut[place]], drawn[1][cut[place]], true_weights(task, drawn[1])
        )
        point, design, y = models[place // RHYTHM - 1], rows.design, drawn[1][cut[place]]
        weight = (1.0 if rows.weights is None else rows.weights) / len(y)
        at = design @ own
        curvature = (design * (weight * task.loss.sharp_curvature(at, y))[:, None]).T @ design
        bent = task.loss.slope(design @ point, y) - task.loss.slope(at, y)
        curvatures.append(curvature)
        apart.append(point - own)
        second.append(design.T @ (weight * bent) - curvature @ (point - own))
    mean = np.mean(curvatures, axis=0)
    unlike = np.mean([(h - mean) @ t for h, t in zip(curvatures, apart, strict=True)], axis=0)
    fit = pooled(task, drawn)
    errors = np.sqrt(np.diag(solution.variance(solution.spread)))
    bread = mean + np.diag(task.penalty)
    return {
        "mix": (own - fit) / errors,
        "unlike": -np.linalg.solve(bread, unlike) / errors,
        "second order": -np.linalg.solve(bread, np.mean(second, axis=0)) / errors,
        "taken off": np.linalg.solve(solution.bread.matrix, solution.unlike) / errors,
        "estimate": (solution.coefficients - fit) / errors,
    }


if __name__ == "__main__":
    main()
