"""What bends private estimates: scores of the true records at the models that clients met.

`python -m benchmarks.bends [--data FOLDER] [--stream TEXT] [--loss L] [--q Q] [--epsilon E]
[--share S] [--draws N]`: of the first share S of each stream, how far the fit to the records that
count is from that to all of them (mix); what linearised scores leave out since windows' curvatures
and the models that they met deviate together (unlike), and since curvature changes on the way
(second order), before anything is taken off; what k C / 2 takes off; and how far estimates are off,
all as means over draws, in standard errors, intercept first. With --exact: how often the sandwich
of the fit to all records, without noise, holds the population.

With --charged: of estimates from the newest epoch, the two newest and so on, in predictors of
records weighed by their curvature: the share of the releases behind the start, in how many draws
the rule stops there, the bend that it charges (once), what it would charge with the mean square
distance of all models in place of that of their mean, the true bias (the mean error over draws,
less what chance makes of its square), and the root mean square error as it is and without k C / 2.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from benchmarks.held_out import chosen
from benchmarks.interval_records import Drawn, Stream
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
from pipeline.estimators.reference_fit import study_rows
from pipeline.linalg import solve_positive
from pipeline.methods.renewable.client import RenewableTask
from pipeline.methods.renewable.solution import SECOND_ORDER, Solution, solve, solve_over
from pipeline.methods.renewable.state import PrivateState
from pipeline.methods.renewable.sums import epochs_of, spread_about
from pipeline.types import Matrix, Vector

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
    parser.add_argument("--charged", action="store_true", help="bends charged, and true ones")
    parser.add_argument("--draws", type=int, default=30)
    options = parser.parse_args()
    stream, setting = (
        next(chosen(options.stream, options.data)),
        Setting(options.loss, options.q, options.epsilon),
    )
    if options.exact:
        exact(stream, Setting(options.loss, options.q, None), options.draws)
        return
    if options.charged:
        charged(stream, setting, options.draws)
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


def charged(stream: Stream, setting: Setting, draws: int) -> None:
    """Print what is charged for so many of the newest epochs, beside what they are off by."""
    told = [epochs_of_draw(stream, setting, number) for number in range(draws)]
    print(f"{stream.name}, {setting.label}, {draws} draws")
    print("epochs  used  chosen  charged  by all models  true bias  rms error  without C / 2")
    for place in range(min(len(each) for each in told)):
        at = [each[place] for each in told]
        used, chosen_here, bent, scattered = np.mean([one[:4] for one in at], axis=0)
        errors, plain = (np.array([one[part] for one in at]) for part in (4, 5))
        mean, size = errors.mean(axis=0), float(np.mean(np.sum(errors**2, axis=1)))
        by_chance = (size - float(mean @ mean)) / (draws - 1)
        bias = math.sqrt(max(float(mean @ mean) - by_chance, 0.0))
        without = math.sqrt(float(np.mean(np.sum(plain**2, axis=1))))
        print(
            f"{place + 1:6}  {used:4.0%}  {chosen_here:6.0%}  {bent:7.3f}  {scattered:13.3f}  "
            f"{bias:9.3f}  {math.sqrt(size):9.3f}  {without:13.3f}",
            flush=True,
        )


def epochs_of_draw(
    stream: Stream, setting: Setting, number: int
) -> list[tuple[float, bool, float, float, Vector, Vector]]:
    """Return for each number of epochs what `charged` prints of one draw; errors in predictors."""
    task, rng = task_for(stream, setting), np.random.default_rng([SEED, number])
    drawn = released(task, stream.draw(rng, task.loss))
    _, partition = folded(task, drawn, int(rng.integers(2**62)))
    [state] = partition.sums.states.values()
    assert isinstance(state, PrivateState)
    parts = [(1.0, state)]
    fit, stop = pooled(task, drawn), solve(task, parts).moments.releases
    root, found = predictors_of(task, drawn, fit), []
    solutions = [solve_over(task, parts, k + 1) for k in range(len(epochs_of(parts)))]
    for solution in solutions:
        releases = solution.moments.releases
        off = solution.coefficients - fit
        plain = off - solve_positive(solution.bread.matrix, solution.unlike)
        found.append((
            releases / solutions[-1].moments.releases, releases == stop, solution.bent,
            bend_of_all(task, solution), root @ off, root @ plain,
        ))  # fmt: skip
    return found


def bend_of_all(task: RenewableTask, solution: Solution) -> float:
    """Return the bend where each model is off, and not their mean alone."""
    if not solution.is_near:
        return solution.bent
    moments, curvature = solution.moments, solution.bread.curvature
    scale = SECOND_ORDER * task.loss.remainder / float(curvature[0, 0])
    off = moments.expansion / moments.slots - solution.coefficients
    each = float(np.sum(curvature * spread_about(moments, solution.coefficients)))
    return solution.bent + scale * (max(each, 0.0) - float(off @ curvature @ off))


def predictors_of(task: RenewableTask, drawn: Drawn, fit: Vector) -> Matrix:
    """Return a root of the true curvature at the fit over that of the intercept, shape (d, d)."""
    rows = study_rows(task, drawn[0], drawn[1], true_weights(task, drawn[1]))
    weight = 1.0 if rows.weights is None else rows.weights
    curved = weight * task.loss.sharp_curvature(rows.design @ fit, drawn[1])
    total = (rows.design * curved[:, None]).T @ rows.design / float(np.sum(curved))
    root: Matrix = np.asarray(np.linalg.cholesky(total).T, dtype=np.float64)
    return root


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
